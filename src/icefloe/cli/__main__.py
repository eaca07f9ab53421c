"""The same as the script `icefloe`: `python -m icefloe.cli`."""

from icefloe.cli.entry import main

if __name__ == "__main__":
    main()

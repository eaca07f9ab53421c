"""The command line: `icefloe COMMAND PLACE ...`, thin over `Repository` and `Session`.

`entry` is what the script calls, `app` puts the commands together, `commands` has one module for
each family of them. A command takes arguments, calls the library and returns a view (`views`);
`output` shows it to people as text, or to programs as JSON.
"""

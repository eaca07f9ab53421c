#!/bin/sh
# Make a virtual environment with pinned versions, and a stamp in it that says it is ready.
# Usage: make_environment.sh FOLDER PYTHON PIP-ARGUMENTS...
set -eu
folder=$1
python=$2
shift 2

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "icefloe needs Python 3.11 or newer, but '$python' is $("$python" --version 2>&1 || true)." >&2
    echo "Say which one to use:  make PYTHON=/path/to/python3.11 ..." >&2
    exit 1
fi
if [ ! -x "$folder/bin/python" ] && ! "$python" -m venv "$folder"; then
    rm -rf "$folder"
    echo "'$python -m venv' failed; some systems ship it apart, as a package named python3-venv." >&2
    exit 1
fi

echo "Installing pinned versions into $folder (once; takes a minute or two) ..."
pip() { "$folder/bin/python" -m pip --disable-pip-version-check "$@"; }
pip install --quiet --constraint constraints.txt --upgrade pip
pip install --quiet --constraint constraints.txt --build-constraint constraints.txt "$@"
touch "$folder/.ready"

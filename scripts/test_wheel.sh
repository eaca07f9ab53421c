#!/bin/sh
# Build the wheel, install it into an empty environment with nothing but pip, and use it there.
# Usage: test_wheel.sh [PYTHON]
set -eu
python=${1:-python3}
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$python" -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
pip wheel --no-deps --wheel-dir "$folder" .
wheel=$(ls "$folder"/icefloe-*.whl)
cd "$folder"

echo "1. the wheel alone: Python works, and the script says what to install"
"$folder/venv/bin/python" -m zipfile --list "$wheel" > content
grep -q "icefloe/py.typed" content
pip install "$wheel"
venv/bin/python -c "
import icefloe, zarr
repo = icefloe.Repository.create('alone')
with repo.transaction('main', message='first') as store:
    zarr.create_array(store, name='a', shape=(4,), dtype='i4')[:] = 7
"
if venv/bin/icefloe log alone 2> said; then echo "expected a refusal" >&2; exit 1; fi
grep -q "pip install 'icefloe\[cli\]'" said

echo "2. with [cli]: commands work, and the viewer says what to install"
pip install "$wheel[cli]"
venv/bin/icefloe log alone --json | grep -q '"message": "first"'
venv/bin/icefloe tree alone
if venv/bin/icefloe ui alone --no-browser 2> said; then echo "expected a refusal" >&2; exit 1; fi
grep -q "pip install 'icefloe\[ui\]'" said

echo "3. with [ui]: the page is in the wheel"
pip install "$wheel[cli,ui]"
venv/bin/python -c "
import icefloe
from icefloe.viewer.server import Viewer
print('the viewer starts on port', Viewer(icefloe.Repository.open('alone')).port)
" 2> /dev/null
echo "the wheel works"

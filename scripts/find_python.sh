#!/bin/sh
# Print the path of the first of the wanted versions (such as 3.14 3.13) that works, or nothing at all.
# Looks on the PATH, then where the usual version managers keep interpreters that are not active.
for version
do
    for candidate in \
        "$(command -v "python$version")" \
        "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python3 \
        "${XDG_DATA_HOME:-$HOME/.local/share}/uv/python/cpython-$version".*/bin/python3
    do
        [ -x "$candidate" ] || continue
        found=$("$candidate" -c 'import sys, venv; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
        if [ "$found" = "$version" ]; then
            echo "$candidate"
            exit 0
        fi
    done
done

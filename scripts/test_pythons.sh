#!/bin/sh
# Run the unit tests on every supported Python that is installed.
set -eu
ran=0
for version in $PYTHON_VERSIONS; do
    interpreter="python$version"
    if ! "$interpreter" -c 'import sys' >/dev/null 2>&1; then
        echo "== Python $version: not found, left out"
        continue
    fi
    echo "== Python $version"
    venv=".venvs/$version"
    [ -x "$venv/bin/python" ] || "$interpreter" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --upgrade pip
    "$venv/bin/python" -m pip install --quiet -e '.[dev,platform,report]'
    "$venv/bin/python" -m pytest -q -n auto -m "not e2e"
    ran=$((ran + 1))
done
if [ "$ran" -eq 0 ]; then
    echo "error: none of Python $PYTHON_VERSIONS is installed" >&2
    exit 1
fi

#!/bin/sh
# Run the unit and integration tests on every supported Python that is installed, pyenv's included.
# PYTEST_ARGS replaces pytest's options, e.g. PYTEST_ARGS="-x tests/rollout".
set -eu

works() {
    "$1" -c 'import sys' >/dev/null 2>&1
}

# pyenv's shims answer only for versions that are switched on, so those that are merely installed are looked for.
interpreter_of() {
    if works "python$1"; then
        echo "python$1"
        return
    fi
    root=${PYENV_ROOT:-$(pyenv root 2>/dev/null || echo "$HOME/.pyenv")}
    for candidate in "$root"/versions/"$1".*/bin/"python$1"; do
        if works "$candidate"; then
            echo "$candidate"
            return
        fi
    done
}

ran=0
failed=""
for version in $PYTHON_VERSIONS; do
    interpreter=$(interpreter_of "$version")
    if [ -z "$interpreter" ]; then
        echo "== Python $version: not found, left out"
        continue
    fi
    echo "== Python $version"
    venv=".venvs/$version"
    works "$venv/bin/python" || "$interpreter" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --upgrade pip
    "$venv/bin/python" -m pip install --quiet -e '.[dev,platform,openai-agents,strands]'
    # shellcheck disable=SC2086 # options, one word each
    "$venv/bin/python" -m pytest -q -m "not e2e" ${PYTEST_ARGS:--n auto} || failed="$failed $version"
    ran=$((ran + 1))
done
if [ "$ran" -eq 0 ]; then
    echo "error: none of Python $PYTHON_VERSIONS is installed" >&2
    exit 1
fi
if [ -n "$failed" ]; then
    echo "error: the tests failed on Python$failed" >&2
    exit 1
fi

#!/bin/sh
# Tests, lints and types of the Python package. PYTHON names an interpreter that has requirements-dev.txt installed.
set -eu
cd "$(dirname "$0")"
python="${PYTHON:-python3}"
"$python" -m ruff format --check .
"$python" -m ruff check .
"$python" -m pyright
"$python" -m pytest -q "$@"

#!/bin/sh
# openai_suite.sh - the official openai package works with lagan-gateway: openai_suite.py. PYTHON
# names an interpreter that has the package (pip install openai).
python=${PYTHON:-python3}
"$python" -c 'import openai' 2>/dev/null ||
  { echo "the Python package openai is not installed; skipped"; exit 0; }
exec timeout 600 "$python" "$(dirname "$0")/openai_suite.py" "${1:-.}"

#!/bin/sh
# openai_suite.sh - the official openai package works with lagan-gateway: openai_suite.py. PYTHON
# names an interpreter that has the packages (pip install openai httpx).
python=${PYTHON:-python3}
"$python" -c 'import openai, httpx' 2>/dev/null ||
  { echo "the Python packages openai and httpx are not installed; skipped"; exit 0; }
exec timeout 600 "$python" "$(dirname "$0")/openai_suite.py" "${1:-.}"

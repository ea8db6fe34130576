#!/bin/sh
# h11_compare.sh [STREAMS] - the HTTP parser reads what h11 reads: h11_compare.py (python3-h11).
for python in /usr/bin/python3 python3 ''; do
  [ -n "$python" ] || { echo "python3-h11 is not installed"; exit 77; }
  "$python" -c 'import h11' 2>/dev/null && break
done
top=$(cd "${srcdir:-$(dirname "$0")/../..}" && pwd)
exec "$python" "$top/tests/gateway/h11_compare.py" "$PWD/tests/gateway/http_reader" "${1:-2000}" \
  "${LAGAN_TEST_SEED:-1}"

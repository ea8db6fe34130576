#!/bin/sh
# raw_client.sh - a client that was written from lagan-protocol(7) alone works: raw_client.py.
for python in /usr/bin/python3 python3 ''; do
  [ -n "$python" ] || { echo "python3-zmq or python3-msgpack is not installed"; exit 77; }
  "$python" -c 'import zmq, msgpack' 2>/dev/null && break
done
top=$(cd "${srcdir:-$(dirname "$0")/../..}" && pwd)
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
timeout 240 "$python" "$top/tests/client/raw_client.py" "$PWD/lagand" "$top/models/recall-gemma3" \
  "$dir/run" >"$dir/output" 2>&1
code=$?
[ $code -eq 0 ] || cat "$dir/output"
exit $code

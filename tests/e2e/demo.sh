#!/bin/bash
# demo.sh - `./bootstrap demo` gets every answer, goes on with one whose worker is killed in its middle,
# says how long that took, and leaves nothing behind.
set -u
build=$PWD
top=$(cd "${srcdir:-$(dirname "$0")/../..}" && pwd)
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/tmp"
TMPDIR=$dir/tmp timeout 300 "$top/tools/demo.sh" "$build" >"$dir/said" 2>&1
code=$?
tail -5 "$dir/said"
[ $code -eq 0 ] || { cat "$dir/said"; echo "exit code $code"; exit 1; }
grep -q '^< nine hundred ninety-nine milli\[kill -9 [0-9]*\]on nine hundred' "$dir/said" ||
  { echo "no answer was cut by a kill"; exit 1; }
grep -q 'its worker failed: [0-9]* ms without a token$' "$dir/said" ||
  { echo "nothing says how long the gap was"; exit 1; }
[ -z "$(ls -A "$dir/tmp")" ] || { ls -lR "$dir/tmp"; echo "that was left"; exit 1; }
left=$(grep -lsaF -f <(printf '%s' "$dir/tmp") /proc/[0-9]*/cmdline)
[ -z "$left" ] || { echo "processes were left: $left"; exit 1; }

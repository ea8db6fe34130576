#!/bin/bash
# demo.sh - `./bootstrap demo` gets every output, also of a request whose worker is killed,
# prints how long the interruption took, and leaves no process and no file.
set -u
build=$PWD
top=$(cd "${srcdir:-$(dirname "$0")/../..}" && pwd)
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/tmp"
TMPDIR=$dir/tmp timeout 300 "$top/tools/demo.sh" "$build" >"$dir/output" 2>&1
code=$?
tail -5 "$dir/output"
[ $code -eq 0 ] || { cat "$dir/output"; echo "exit code $code"; exit 1; }
grep -q '^< nine hundred ninety-nine milli\[kill -9 [0-9]*\]on nine hundred' "$dir/output" ||
  { echo "no output was interrupted by a kill"; exit 1; }
grep -q 'its worker failed: [0-9]* ms without a token$' "$dir/output" ||
  { echo "the length of the interruption is missing"; exit 1; }
[ -z "$(ls -A "$dir/tmp")" ] || { ls -lR "$dir/tmp"; echo "that was left"; exit 1; }
left=$(grep -lsaF -f <(printf '%s' "$dir/tmp") /proc/[0-9]*/cmdline)
[ -z "$left" ] || { echo "processes were left: $left"; exit 1; }

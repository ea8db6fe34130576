#!/bin/sh
# headers.sh - every header compiles by itself: it includes what it needs.
cd "${srcdir:-$(dirname "$0")/..}" || exit 99
flags=$(pkg-config --cflags msgpack-c jansson 2>/dev/null || pkg-config --cflags msgpack jansson)
bad=0
for h in $(find include base ipc wire gpu worker route sim daemon client ctl gateway bench tests \
  -name '*.h' | sort); do
  case $h in gpu/cuda/*) continue ;; esac   # need the toolkit; nvcc compiles them with their .cu
  # shellcheck disable=SC2086
  printf '#include "%s"\n' "$h" |
    ${CC:-cc} -std=gnu11 -Wall -Werror -fsyntax-only -I. $flags -x c - ||
    { echo "$h: does not compile alone"; bad=1; }
done
exit $bad

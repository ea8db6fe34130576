#!/bin/sh
# no_failpoints.sh - what is shipped has no failpoint in it; what the torture tests run has.
#
# Run from the build directory. The word is what failpoint.c cannot do without.
for f in lagand lagan-worker laganctl .libs/liblagan.so; do
  [ -e "$f" ] || { echo "$f is not built"; exit 99; }
  grep -qa LAGAN_FP "$f" && { echo "$f has failpoints"; exit 1; }
done
for f in tests/torture/lagand tests/torture/lagan-worker; do
  grep -qa LAGAN_FP "$f" || { echo "$f has no failpoints"; exit 1; }
done
exit 0

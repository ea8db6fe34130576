#!/bin/sh
# no_failpoints.sh - installed programs contain no failpoints; programs of the torture tests do.
#
# Run from the build directory. failpoint.c always contains the text LAGAN_FP.
for f in lagand lagan-worker laganctl .libs/liblagan.so; do
  [ -e "$f" ] || { echo "$f is not built"; exit 99; }
  grep -qa LAGAN_FP "$f" && { echo "$f has failpoints"; exit 1; }
done
for f in tests/torture/lagand tests/torture/lagan-worker; do
  grep -qa LAGAN_FP "$f" || { echo "$f has no failpoints"; exit 1; }
done
exit 0

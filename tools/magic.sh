#!/bin/sh
# magic.sh - every object's magic number is its own.
# A tarball that lies unpacked in a build tree (make distcheck) is left out.
cd "${srcdir:-$(dirname "$0")/..}" || exit 99
twice=$(grep -rhoE '^#define [A-Z_]+_MAGIC +0x[0-9a-f]{8}u?$' --include='*.[ch]' \
  --exclude-dir='lagan-[0-9]*' . |
  awk '{ print $3 }' | sort | uniq -d)
test -z "$twice" || { echo "used twice: $twice"; exit 1; }

#!/bin/sh
# manuals.sh - the manuals that programs print from their tables are right mdoc: groff has nothing to say.
command -v groff >/dev/null || { echo "groff is not there"; exit 77; }
for m in laganctl.1 lagand.8 lagan-protocol.7; do
  said=$(groff -mdoc -Tascii -ww -z "$m" 2>&1 | grep -v "can't break line")
  test -z "$said" || { echo "$m: $said"; exit 1; }
  test "$(wc -l <"$m")" -gt 200 || { echo "$m ends early"; exit 1; }
done

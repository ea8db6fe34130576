#!/bin/sh
# manuals.sh - the manuals that programs print from their tables are valid mdoc: no groff warnings.
command -v groff >/dev/null || { echo "groff is not installed"; exit 77; }
for m in laganctl.1 lagand.8 lagan-gateway.8 lagan-protocol.7; do
  warnings=$(groff -mdoc -Tascii -ww -z "$m" 2>&1 | grep -v "can't break line")
  test -z "$warnings" || { echo "$m: $warnings"; exit 1; }
  test "$(wc -l <"$m")" -gt 100 || { echo "$m is truncated"; exit 1; }
done

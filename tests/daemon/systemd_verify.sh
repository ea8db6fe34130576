#!/bin/sh
# systemd_verify.sh - systemd understands every line of the unit, the users and the directories.
set -u
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not there"; exit 77; }
top=${srcdir:-$(dirname "$0")/../..}
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT

# The programs it names have to exist where it is verified.
sed "s|@sbindir@/lagand|/bin/true|; s|^ExecStart=/bin/true.*|ExecStart=/bin/true|" \
  "$top/systemd/lagand.service.in" >"$dir/lagand.service"
out=$(systemd-analyze verify --man=no "$dir/lagand.service" 2>&1)
code=$?
# Users and units of other packages may be absent here; lines that are not understood may not.
out=$(printf '%s\n' "$out" | grep "lagand.service" | grep -v -e 'User=lagan' -e 'nvidia-persistenced')
if [ -n "$out" ]; then
  printf '%s\n' "$out"
  echo "systemd-analyze verify: exit code $code"
  exit 1
fi
grep -n '@[a-z]*@' "$dir/lagand.service" && { echo "a path was not filled in"; exit 1; }

if systemd-analyze security --help 2>/dev/null | grep -q -- --offline; then
  systemd-analyze security --offline=true --threshold=35 "$dir/lagand.service" >"$dir/score" 2>&1 ||
    { tail -1 "$dir/score"; echo "the unit is more exposed than 3.5"; exit 1; }
  tail -1 "$dir/score"
fi
if command -v systemd-sysusers >/dev/null; then
  mkdir -p "$dir/root/etc"
  systemd-sysusers --root="$dir/root" - <"$top/systemd/lagan.sysusers" >"$dir/users" 2>&1 ||
    { cat "$dir/users"; echo "lagan.sysusers is not understood"; exit 1; }
fi
exit 0

#!/bin/bash
# systemd_verify.sh - systemd understands every line of the units, the drop-in, the users and the
# directories, and rates the service no more exposed than systemd/README.md states.
set -u
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not installed"; exit 77; }
top=${srcdir:-$(dirname "$0")/../..}
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT

# The programs that the unit names must exist on the machine that verifies it.
sed "s|@sbindir@/lagand|/bin/true|; s|@bindir@/laganctl reload|/bin/true|" \
  "$top/systemd/lagand.service.in" >"$dir/lagand.service"
cp "$top/systemd/lagand.socket" "$dir/"
grep -n '@[a-z]*@' "$dir/lagand.service" && { echo "a path was not filled in"; exit 1; }

twice=$(grep -o '^Exec[A-Za-z]*=' "$dir/lagand.service" | sort | uniq -d)
[ -z "$twice" ] || { echo "systemd would run two commands of $twice"; exit 1; }

sed 's|@sbindir@/lagan-gateway|/bin/true|' "$top/systemd/lagan-gateway.service.in" \
  >"$dir/lagan-gateway.service"
cp "$dir/lagan-gateway.service" "$dir/lagan-gateway@.service"
cp "$top/systemd/lagan-gateway.socket" "$dir/"
cp "$top/systemd/lagan-gateway.socket" "$dir/lagan-gateway@.socket"
grep -n '@[a-z]*@' "$dir/lagan-gateway.service" && { echo "a path was not filled in"; exit 1; }

others=$(sed -n 's/^Exec[A-Za-z]*=\([^ ]*\).*/\1/p' "$dir"/*.service |
  grep -v -x -e /bin/true -e /bin/sh)
[ -z "$others" ] || { echo "a minimal system may have no $others"; exit 1; }
# A refused reload must fail: with `kill -HUP`, systemctl reload would always succeed.
grep -q '^ExecReload=@bindir@/laganctl reload$' "$top/systemd/lagand.service.in" ||
  { echo "systemctl reload does not return the exit code of laganctl reload"; exit 1; }
# systemd makes the service the owner of all files in its StateDirectory.
state=$(sed -n 's/^StateDirectory=//p' "$dir/lagand.service")
! grep -q "/var/lib/$state/" "$top/systemd/lagan.tmpfiles" ||
  { echo "the service would own the models"; exit 1; }

understood() { # WHAT: the units under test, in words
  # Users and units of other packages may be absent here; lines that are not understood may not.
  errors=$(systemd-analyze verify --man=no "$dir/lagand.service" "$dir/lagand.socket" 2>&1 |
    grep -e lagand.service -e lagand.socket -e lagan-cuda.conf |
    grep -v -e 'User=lagan' -e 'nvidia-persistenced' -e 'modprobe@')
  [ -z "$errors" ] ||
    { printf '%s\n' "$errors" "systemd does not understand $1"; exit 1; }
}

exposed() { # at most TENTHS, for WHAT configuration, UNIT: lagand.service
  systemd-analyze security --help 2>/dev/null | grep -q -- --offline || return 0
  systemd-analyze security --offline=true --threshold="$1" "$dir/${3:-lagand.service}" \
    >"$dir/score" 2>&1 || { cat "$dir/score"; echo "$2: more exposed than $1 tenths"; exit 1; }
  echo "$2: $(tail -1 "$dir/score")"
}

understood 'the unit'
name=$(sed -n 's/^#define FRONTEND_SOCKET "\(.*\)".*/\1/p' "$top/daemon/net/frontend.h")
grep -q "^FileDescriptorName=$name$" "$dir/lagand.socket" ||
  { echo "lagand does not know the socket by its name"; exit 1; }
exposed 7 'without GPUs'
errors=$(systemd-analyze verify --man=no "$dir"/lagan-gateway.* \
  "$dir/lagan-gateway@1.service" 2>&1 |
  grep lagan-gateway | grep -v -e 'User=lagan' -e 'Failed to resolve group')
[ -z "$errors" ] || { printf '%s\n' "$errors" "systemd does not understand the gateway"; exit 1; }
exposed 15 'gateway' lagan-gateway.service
mkdir "$dir/lagand.service.d"
cp "$top/systemd/lagan-cuda.conf" "$dir/lagand.service.d/"
understood 'the unit with its drop-in'
exposed 13 'with GPUs'
grep -q 'char-nvidia' "$dir/score" || { echo "the drop-in was not read"; exit 1; }

if command -v systemd-sysusers >/dev/null; then
  mkdir -p "$dir/root/etc"
  systemd-sysusers --root="$dir/root" - <"$top/systemd/lagan.sysusers" >"$dir/users" 2>&1 ||
    { cat "$dir/users"; echo "lagan.sysusers is not understood"; exit 1; }
fi
if command -v systemd-tmpfiles >/dev/null; then
  # The files get the owner of this process: only root can change the owner of a file.
  sed -E "s/ (root|lagan) +(root|lagan) / $(id -u) $(id -g) /" "$top/systemd/lagan.tmpfiles" \
    >"$dir/tmpfiles"
  systemd-tmpfiles --root="$dir/root" --create "$dir/tmpfiles" >"$dir/made" 2>&1 &&
    [ ! -s "$dir/made" ] ||
    { cat "$dir/made"; echo "lagan.tmpfiles is not understood"; exit 1; }
fi
exit 0

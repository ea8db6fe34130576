#!/bin/bash
# systemd_live.sh - the unit under a real systemd: reload, kills, watchdog, memory limit, stop.
#
# Needs root. systemd is PID 1 of new namespaces, on an overlay of the root directory that is
# dropped at the end; its cgroups are below a new cgroup of each hierarchy. The unit runs the
# programs of the build directory. Exit code 77: this host cannot do that.
set -u
build=$PWD
top=$(cd "${srcdir:-$(dirname "$0")/../..}" && pwd)
cannot() { echo "skipped: $1"; exit 77; }
[ "$(id -u)" = 0 ] || cannot 'needs root'
[ -x /lib/systemd/systemd ] || cannot 'systemd is not installed'
case $build/ in /home/* | /root/* | /tmp/*) cannot "the unit hides $build" ;; esac
dir=$(mktemp -d) || exit 99
root=$dir/root
group=lagan-test-$$
init=
clean() {
  [ -z "$init" ] || { kill -9 "$init"; wait; } 2>/dev/null
  umount -R "$root" "$dir" 2>/dev/null
  rmdir "$dir"
  for i in $(seq 50); do # until the last process has ended
    find /sys/fs/cgroup -depth -type d -path "*/$group*" -exec rmdir {} + 2>/dev/null
    [ -n "$(find /sys/fs/cgroup -maxdepth 2 -name "$group")" ] || break
    sleep 0.1
  done
}
trap clean EXIT
mount -t tmpfs tmpfs "$dir" && mkdir "$dir/upper" "$dir/work" "$root" &&
  mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" "$root" ||
  cannot 'cannot mount an overlay of the root directory'

# The installed files, with the programs of the build directory.
sed "s|@sbindir@/lagand|$build/lagand --config /etc/lagan/lagan.yaml|; s|@bindir@|$build|" \
  "$top/systemd/lagand.service.in" >"$root/etc/systemd/system/lagand.service"
cp "$top/systemd/lagan.sysusers" "$root/usr/lib/sysusers.d/lagan.conf"
cp "$top/systemd/lagan.tmpfiles" "$root/usr/lib/tmpfiles.d/lagan.conf"
chroot "$root" systemd-sysusers >"$dir/sysusers" 2>&1 || { cat "$dir/sysusers"; exit 1; }
mkdir -p "$root/etc/lagan" "$root/var/lib/lagan/models"
cp -r "$top/models/recall-gemma3" "$root/var/lib/lagan/models/m"
echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"
rm -rf "$root"/etc/systemd/system/*.wants
ln -sf /lib/systemd/system/basic.target "$root/etc/systemd/system/default.target"

cat >"$root/check" <<'END'
set -u
ctl() { timeout 300 "$BUILD/laganctl" --connect ipc:///run/lagan/api.sock "$@"; }
fail() { echo "FAILED: $1"; journalctl -u lagand -o cat --no-pager -n 30; exit 1; }
expect() { # CODE, COMMAND...: runs it with its output in /out
  want=$1; shift
  "$@" >/out 2>&1; code=$?
  [ $code = "$want" ] || { cat /out; fail "exit code $code, not $want: $*"; }
}
says() { grep -qF -- "$1" /out || { cat /out; fail "not printed: $1"; }; }
configure() { # API, the first line; KV, kv.memory
  printf '%s\nmodels:\n  - path: /var/lib/lagan/models/m\n    device: cpu\n' "$1"
  printf '    kv: { memory: %s }\n' "$2"
} >/etc/lagan/lagan.yaml
shows() { systemctl show lagand -p "$1" --value; }
generate() { ctl generate --text 'k3=blue;k3?' --max-tokens 900 --ignore-eos --json; }
ids() { sed 's/.*"ids":\[\([0-9,]*\)\].*/\1/' "$1"; }
undisturbed() { # WHAT, COMMAND...: a stream has the same tokens, whatever the command does
  generate >/got & sleep 0.1
  shift; "$@" >/out 2>&1; wait $!
  [ "$(ids /got)" = "$(ids /want)" ] || { cat /got; fail "other tokens: $*"; }
}
kill_main() { kill "$1" "$(shows MainPID)"; }
kill_worker() { kill -9 "$(pgrep -f 'lagan-worker --worker=w0' | head -1)"; }
limit() { # MemoryMax= of the unit
  mkdir -p /etc/systemd/system/lagand.service.d
  printf '[Service]\nMemoryMax=%s\n' "$1" >/etc/systemd/system/lagand.service.d/limit.conf
  systemctl daemon-reload
}

systemctl is-system-running --wait >/out 2>&1
systemd-tmpfiles --create /usr/lib/tmpfiles.d/lagan.conf
echo 'start'
configure 'api: { max_inflight: 9 }' 64MiB
expect 0 systemctl start lagand
[ "$(shows NFileDescriptorStore)" -ge 5 ] || fail 'the fd store lacks descriptors'
generate >/want
echo 'reload: a changed and a wrong configuration'
configure 'api: { max_inflight: 7, max_connections: 100 }' 64MiB
expect 0 systemctl reload lagand
journalctl -u lagand -o cat --no-pager -n 20 >/out
says 'took api.max_inflight'
says 'api.max_connections keeps its value until `laganctl daemon reexec`'
echo 'x: 1' >>/etc/lagan/lagan.yaml
expect 1 systemctl reload lagand
expect 0 systemctl status lagand
says 'status=78'
says 'unknown key "x"; the running lagand continues'
expect 0 ctl config show
grep -qE 'api.max_inflight +7' /out || fail 'a refused reload has changed an option'
sed -i '$d' /etc/lagan/lagan.yaml
echo 'kills, re-exec, restart and reload beside a stream'
undisturbed worker kill_worker
undisturbed lagand kill_main -9
[ "$(shows NRestarts)" = 1 ] || fail "$(shows NRestarts) restarts"
undisturbed reexec ctl daemon reexec
undisturbed restart systemctl restart lagand
undisturbed reload systemctl reload lagand
echo 'watchdog'
undisturbed stopped kill_main -STOP
journalctl -u lagand -o cat --no-pager >/out
says 'Watchdog timeout'
echo 'stop'
expect 0 systemctl stop lagand
[ -z "$(ls /run/lagan)" ] || fail 'files are left in /run/lagan'
[ "$(shows NFileDescriptorStore)" = 0 ] || fail 'the fd store is not empty'
echo 'memory limit'
limit 100M
systemctl start lagand >/out 2>&1 && { echo 'no limits of memory on this host'; exit 0; }
[ "$(shows ExecMainStatus) $(shows NRestarts)" = '78 0' ] || fail 'a model above MemoryMax='
shows StatusText >/out
says 'lagand.service has 100.0 MiB; lower kv.memory'
limit 170M
systemctl reset-failed lagand
configure '' auto
expect 0 systemctl start lagand
for i in $(seq 100); do
  printf '{"text":"k3=blue;q7=stone;%s","temperature":1,"seed":%s,' "$i" "$i"
  echo '"max_tokens":900,"ignore_eos":true}'
done >/requests
ctl generate --requests /requests --concurrency 60 >/got 2>&1 &
sleep 1
systemctl set-property --runtime lagand MemoryMax=70M
for i in $(seq 600); do
  ctl status >/out 2>&1
  grep -q 'out of memory' /out && break
  sleep 0.1
done
says 'lagand.service has 70.0 MiB; the kernel killed pid'
expect 7 ctl status
wait $! || { cat /got; fail 'requests failed beside an OOM kill'; }
[ "$(shows NRestarts) $(shows ActiveState)" = '0 active' ] || fail 'lagand ended with its worker'
exit 0
END

# A network namespace, too: systemd sets net.unix.max_dgram_qlen.
for at in /sys/fs/cgroup /sys/fs/cgroup/*/; do
  [ -e "$at/cgroup.procs" ] || continue
  mkdir -p "$at/$group" 2>/dev/null && groups="${groups-} $at/$group"
done
# shellcheck disable=SC2016
setsid bash -c '
  for g in $2; do echo $$ >"$g/cgroup.procs"; done 2>/dev/null
  exec unshare -mpfCiun --kill-child bash -c "
    mount --make-rprivate / && cd \"$1\" || exit
    mount -t proc proc proc; mount -t sysfs sysfs sys
    mount -t tmpfs tmpfs run; mount -t tmpfs tmpfs tmp; mount -t tmpfs tmpfs dev
    for d in null zero full random urandom tty; do cp -a /dev/\$d dev/; done
    mkdir dev/pts dev/shm; mount -t devpts devpts dev/pts; mount -t tmpfs tmpfs dev/shm
    ln -s /proc/self/fd dev/fd; ln -s pts/ptmx dev/ptmx
    mkdir -p old; pivot_root . old; cd /; umount -l /old
    export container=lagan SYSTEMD_PROC_CMDLINE=\"$3\"
    exec /lib/systemd/systemd --system --log-target=journal </dev/null >/tmp/console 2>&1"
' - "$root" "${groups-}" \
  "$([ -e /sys/fs/cgroup/cgroup.controllers ] || echo systemd.unified_cgroup_hierarchy=0)" &
init=$!
for i in $(seq 600); do
  one=$(pgrep -P "$init" -o) && grep -q '^systemd$' "/proc/$one/comm" &&
    nsenter -t "$one" -a -w test -S /run/systemd/private && break
  [ "$i" = 600 ] && cannot 'systemd does not start in namespaces'
  sleep 0.1
done
nsenter -t "$one" -a -w env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin BUILD="$build" bash /check

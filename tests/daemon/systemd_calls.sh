#!/bin/bash
# systemd_calls.sh - the units allow every system call of lagand, its workers and lagan-gateway. The
# calls of a CPU worker are traced here; those of a CUDA worker were recorded on a GPU host
# (tests/data/systemd).
#
# strace lists the calls of the programs from start to end with one request in between. The filter
# sets are systemd's own. A refused call may abort the process (libzmq and sched_setscheduler()) or
# make it slow without a message (loading and mincore()).
set -u
build=$PWD
top=$(cd "${srcdir:-$(dirname "$0")/../..}" && pwd)
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not installed"; exit 77; }
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT

# Names of a filter set, including those of the sets in it.
names() {
  systemd-analyze syscall-filter "$1" | sed 's/#.*//' | tail -n +2 | while read -r name; do
    case $name in
      @*) names "$name" ;;
      ?*) echo "$name" ;;
    esac
  done
}

# The lines of a unit in their order: a list adds calls, a list after ~ removes them.
allow() { # UNIT
  : >"$dir/allowed"
  while read -r line; do
    for word in ${line#\~}; do
      case $word in
        @*) names "$word" ;;
        *) echo "$word" ;;
      esac
    done | sort -u >"$dir/set"
    case $line in
      \~*) comm -23 "$dir/allowed" "$dir/set" ;;
      *) sort -u "$dir/allowed" "$dir/set" ;;
    esac >"$dir/next"
    mv "$dir/next" "$dir/allowed"
  done < <(sed -n 's/^SystemCallFilter=//p' "$top/systemd/$1")
  grep -qx read "$dir/allowed" || { echo "the list of $1 was not understood"; exit 1; }
  grep -qx mount "$dir/allowed" && { echo "$1 allows mount()"; exit 1; }
}
allow lagand.service.in

check() { # the list of calls FILE, of WHOM
  refused=$(comm -23 "$1" "$dir/allowed" | tr '\n' ' ')
  echo "$2: $(wc -l <"$1") system calls used, $(wc -l <"$dir/allowed") allowed"
  [ -z "$refused" ] || { echo "used and not allowed: $refused"; exit 1; }
}

grep -v '^#' "$top/tests/data/systemd/calls_cuda.txt" >"$dir/recorded"
check "$dir/recorded" 'lagand and a CUDA worker'

strace -o /dev/null true 2>/dev/null ||
  { echo "strace is not installed or may not trace"; exit 77; }
# The leak check of AddressSanitizer does not work in a traced program.
ASAN_OPTIONS=detect_leaks=0 timeout 60 strace -f -o "$dir/log" "$build/laganctl" \
  --spawn "$top/models/recall-gemma3" --device cpu \
  generate --text 'k3=blue;q7=stone;m1=river;q7?' --max-tokens 16 \
  >"$dir/output" 2>"$dir/errors" ||
  { cat "$dir/errors"; exit 1; }
grep -qx stone "$dir/output" || { echo "expected \"stone\", not: $(cat "$dir/output")"; exit 1; }

sed -nE 's/^[0-9]+ +(<\.\.\. )?([a-z_0-9]+)(\(| resumed).*/\2/p' "$dir/log" | sort -u >"$dir/called"
check "$dir/called" 'lagand and a CPU worker'
if grep -Eo 'socket\(AF_[A-Z0-9]+' "$dir/log" | grep -v AF_UNIX; then
  echo "the unit allows AF_UNIX sockets only"
  exit 1
fi

command -v curl >/dev/null || exit 0
allow lagan-gateway.service.in
ASAN_OPTIONS=detect_leaks=0 strace -f -o "$dir/log" "$build/lagan-gateway" \
  --config /dev/null --listen "unix:$dir/http" --lagand "ipc://$dir/run/api.sock" --announce \
  --shutdown-timeout 1s >"$dir/url" 2>"$dir/errors" &
gateway=$!
"$build/lagand" --runtime-dir "$dir/run" --model "$top/models/recall-gemma3" --device cpu \
  2>>"$dir/errors" &
lagand=$!
trap 'kill $gateway $lagand 2>/dev/null; wait; rm -rf "$dir"' EXIT
for _ in $(seq 600); do
  curl -sf --unix-socket "$dir/http" http://x/health >/dev/null && break
  sleep 0.05
done
curl -s --unix-socket "$dir/http" http://x/v1/completions \
  -d '{"prompt":"k3=blue;q7=stone;q7?","stream":true}' >"$dir/output"
grep -q DONE "$dir/output" || { cat "$dir/output" "$dir/errors"; echo "no stream"; exit 1; }
traced=$(cat "/proc/$gateway/task/$gateway/children") # the only child of strace
kill -HUP $traced
sleep 0.2
kill -TERM $traced
wait $gateway || { cat "$dir/errors"; echo "the gateway exited with $?"; exit 1; }
sed -nE 's/^[0-9]+ +(<\.\.\. )?([a-z_0-9]+)(\(| resumed).*/\2/p' "$dir/log" | sort -u >"$dir/called"
check "$dir/called" 'lagan-gateway'

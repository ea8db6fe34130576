#!/bin/bash
# systemd_calls.sh - every system call of lagand and its workers is one that the unit lets through: of a CPU
# worker as it runs here, of a CUDA worker as recorded on a GPU host (tests/data/systemd).
#
# strace writes down what they call from their start to their end, a request between; the list is systemd's
# own. libzmq, for one, aborts where sched_setscheduler() is refused, and a refused mincore() would make
# loading slow and say nothing.
set -u
build=$PWD
top=$(cd "${srcdir:-$(dirname "$0")/../..}" && pwd)
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not there"; exit 77; }
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT

# Names of a filter set, those of the sets in it too.
names() {
  systemd-analyze syscall-filter "$1" | sed 's/#.*//' | tail -n +2 | while read -r name; do
    case $name in
      @*) names "$name" ;;
      ?*) echo "$name" ;;
    esac
  done
}

# The unit's lines in their order: a list adds, ~ takes away.
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
done < <(sed -n 's/^SystemCallFilter=//p' "$top/systemd/lagand.service.in")
grep -qx read "$dir/allowed" || { echo "the unit's list was not understood"; exit 1; }
grep -qx mount "$dir/allowed" && { echo "the unit lets mount() through"; exit 1; }

check() { # the list of calls FILE, of WHOM
  refused=$(comm -23 "$1" "$dir/allowed" | tr '\n' ' ')
  echo "$2: $(wc -l <"$1") system calls used, $(wc -l <"$dir/allowed") let through"
  [ -z "$refused" ] || { echo "used and not let through: $refused"; exit 1; }
}

grep -v '^#' "$top/tests/data/systemd/calls_cuda.txt" >"$dir/recorded"
check "$dir/recorded" 'lagand and a CUDA worker'

strace -o /dev/null true 2>/dev/null || { echo "strace is not there, or may not trace"; exit 77; }
# A leak cannot be looked for in a traced program.
ASAN_OPTIONS=detect_leaks=0 timeout 60 strace -f -o "$dir/log" "$build/laganctl" --spawn "$top/models/recall-gemma3" --device cpu \
  generate --text 'k3=blue;q7=stone;m1=river;q7?' --max-tokens 16 >"$dir/said" 2>"$dir/errors" ||
  { cat "$dir/errors"; exit 1; }
grep -qx stone "$dir/said" || { echo "an answer was expected, not: $(cat "$dir/said")"; exit 1; }

sed -nE 's/^[0-9]+ +(<\.\.\. )?([a-z_0-9]+)(\(| resumed).*/\2/p' "$dir/log" | sort -u >"$dir/called"
check "$dir/called" 'lagand and a CPU worker'
if grep -Eo 'socket\(AF_[A-Z0-9]+' "$dir/log" | grep -v AF_UNIX; then
  echo "the unit lets no socket but AF_UNIX through"
  exit 1
fi

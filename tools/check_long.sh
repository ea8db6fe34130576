#!/bin/bash
# check_long.sh BUILDDIR - what is too long for `make check`: sanitizer builds, planted faults, a soak, kills.
#
# Each part says what it does before it begins and how it ended; the exit code is the worst of them.
# Before an issue is called resolved, not in continuous integration.
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "${1:-.}" && pwd)
worst=0

part() { # part NAME COMMAND...
  name=$1
  shift
  printf '%s ...\n' "$name"
  since=$(date +%s)
  if "$@" >"$build/long-${name// /-}.out" 2>&1; then
    printf '  ok, %d s\n' $(($(date +%s) - since))
  else
    printf '  FAILED after %d s; the end of long-%s.out:\n' $(($(date +%s) - since)) "${name// /-}"
    tail -n 30 "$build/long-${name// /-}.out"
    worst=1
  fi
}

sanitized() { # sanitized LIST: a build of its own, every test in it
  dir=$build/san-${1%%,*}
  mkdir -p "$dir" && cd "$dir" || return 1
  [ -e Makefile ] || "$top/configure" -q --enable-sanitize="$1" --without-cuda || return 1
  make -s -j"$(nproc)" all || return 1
  make -s -j"$(nproc)" check || { cat tests/*/*.log 2>/dev/null | grep -aE 'ERROR: |WARNING: Thread|runtime error|FAILED' | head -40; return 1; }
}

export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
part 'address and undefined' sanitized address,undefined
part 'thread' sanitized thread
part 'planted faults' "$top/tools/planted.sh" all
part 'a minute of 64 clients' env LAGAN_SOAK_SECONDS=60 srcdir="$top" "$build/tests/e2e/test_service"
part 'models with one more kill' "$top/ipc/proof/check.sh" long
part 'a million kills' env LAGAN_TORTURE_KILLS=1000000 LAGAN_TORTURE_DAEMONS=10000 LAGAN_TORTURE_ROUNDS=100 \
  "$build/tests/torture/test_kill"
part 'a hundred thousand evil workers' env LAGAN_TORTURE_EVIL=100000 "$build/tests/torture/test_evil"
part 'ten thousand kills of real workers' env LAGAN_TORTURE_REAL_KILLS=10000 LAGAN_TORTURE_ROUNDS=25 srcdir="$top" \
  "$build/tests/torture/test_resume"
exit $worst

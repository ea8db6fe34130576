#!/bin/bash
# check_long.sh BUILDDIR [PART]... - what is too long for `make check`; without PART all of it, many hours.
#
# Each part says what it does before it begins, how far it is, and how it ended; the exit code is the worst
# of them. Kills can also be run in pieces on several machines: the programs take --kills, --seed and
# --seconds (tests/torture/args.h). Before an issue is called resolved, not in continuous integration.
set -uo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "${1:-.}" && pwd)
shift
parts=" $* "
worst=0

part() { # part NAME SENTENCE COMMAND...
  name=$1 out=$build/long-$1.out
  [ "$parts" = '  ' ] || [ "${parts#* $name }" != "$parts" ] || return
  printf '%s: %s ...\n' "$name" "$2"
  shift 2
  since=$(date +%s)
  if "$@" 2>&1 </dev/null | tee "$out" | { grep --line-buffered -E ': [0-9]+ of [0-9]+$' || true; }; then
    printf '  ok, %d s\n' $(($(date +%s) - since))
  else
    printf '  FAILED after %d s; the end of %s:\n' $(($(date +%s) - since)) "${out##*/}"
    tail -n 30 "$out"
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

fuzzed() { # fuzzed SECONDS NAME...: one after the other
  seconds=$1
  shift
  for f; do "$top/tools/fuzz.sh" -t "$seconds" "$f" || return 1; done
}

died_at_points() {
  "$torture/test_kill" --rounds 100 --actions 1 'at_every*' &&
    "$torture/test_heirs" --rounds 100 --actions 1 'at_every*'
}

ended_in_groups() {
  "$torture/test_group" --kills 300 --lagands 100 'streams*' && "$torture/test_group" --rounds 5 'at_every*'
}

ended_at_points() {
  for t in test_kill test_heirs test_resume; do "$torture/$t" --rounds 10 'at_every*' || return 1; done
}

export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
torture=$build/tests/torture
export srcdir=$top LAGAN_TEST_SEED=${LAGAN_TEST_SEED:-$(date +%s)}
part address 'make check with the address and undefined sanitizers' sanitized address,undefined
part thread 'make check with the thread sanitizer' sanitized thread
part planted 'faults that the fuzzers are to find' "$top/tools/planted.sh" all
part late 'a row that is retracted after the launch is found' "$torture/test_planted" --late 20000 'a_row*'
part fuzz 'an hour and a quarter of hostile rings, plans, records, manifests and mirrors' fuzzed 900 ring plan relay manifest mirror
part soak 'a minute of 64 clients' env LAGAN_SOAK_SECONDS=60 "$build/tests/e2e/test_service"
part worlds 'ten million requests in pretended worlds, each lived twice' "$build/lagan-sim" soak --requests 10000000
part models 'models with one more kill' "$top/ipc/proof/check.sh" long
part kills 'a million kills of mock workers, and of pairs' "$torture/test_kill" --kills 1000000 'no_kill*'
part lagands 'ten thousand kills of lagand' "$torture/test_kill" --daemons 10000 'a_killed_lagand*'
part heirs 'ten thousand successions of lagand' "$torture/test_heirs" --kills 10000 'a_lagand*'
part points 'a hundred deaths at every point of the protocol' died_at_points
part real 'ten thousand kills of real workers' "$torture/test_resume" --kills 5000 'streams*'
part groups 'nine hundred kills of ranks, and every way to end at every point' ended_in_groups
part actions 'every way to end, ten times at every point' ended_at_points
part instants 'a hundred deaths of real workers at every point' "$torture/test_resume" --rounds 100 --actions 1 'at_every*'
part evil 'ten thousand evil workers' "$torture/test_evil" --lives 10000
part hostile 'clients that mean harm: the others wait at most twice as long' "$torture/test_hostile" --requests 4000 --times 2
part silence 'an hour of load, and workers that are stopped' "$torture/test_silence" --watch 3600 --stops 100
exit $worst

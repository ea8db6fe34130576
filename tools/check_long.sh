#!/bin/bash
# check_long.sh BUILDDIR [PART]... - what is too long for `make check`; without PART all of it, many
# hours.
#
# Each part says what it does before it begins, how far it is, and how it ended; the exit code is
# the worst of them. Kills are run in as many pieces as there are processors; on several machines
# the programs take --kills, --seed and --seconds (tests/torture/args.h). Before an issue is called
# resolved, not in continuous integration.
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
  if "$@" 2>&1 </dev/null | tee "$out" |
    { grep --line-buffered -E ': [0-9]+ of [0-9]+$|, in all$' || true; }; then
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
  make -s -j"$(nproc)" check && return
  cat tests/*/*.log 2>/dev/null |
    grep -aE 'ERROR: |WARNING: Thread|runtime error|FAILED' | head -40
  return 1
}

fuzzed() { # fuzzed SECONDS NAME...: one after the other
  seconds=$1
  shift
  for f; do "$top/tools/fuzz.sh" -t "$seconds" "$f" || return 1; done
}

# A part of many at once, so that all processors have something to do: what each counts is added up,
# and is to be what was asked for. As a program says it: "N WHAT", or, where WHAT is "a point", a
# line "POINT N" each.
in_pieces() { # in_pieces COUNT WHAT PER_PROCESSOR OPTION PROGRAM CASE [ARG]...
  count=$1 what=$2 n=$(($(nproc) * $3)) option=$4 program=$5 case=$6 failed=0 pids=
  shift 6
  dir=$build/long-$name.d
  rm -rf "$dir" && mkdir "$dir" || return 1
  for i in $(seq "$n"); do
    "$torture/$program" --seed $((LAGAN_TEST_SEED + i)) "--$option" $(((count + n - 1) / n)) \
      "$@" "$case" >"$dir/$i" 2>&1 &
    pids="$pids $!"
  done
  tail -q -f --pid=$! "$dir/$n" | grep --line-buffered -E ': [0-9]+ of [0-9]+$' |
    sed -u "s/^/one of $n: /"
  for p in $pids; do wait "$p" || failed=$((failed + 1)); done
  cat "$dir"/* | grep -vE ': [0-9]+ of [0-9]+$'
  cat "$dir"/* | awk -v count="$count" -v what="$what" -v n="$n" -v failed="$failed" '
    match($0, "[0-9]+ " what) && what != "a point" { sum += substr($0, RSTART) }
    NF == 2 && $1 ~ /^[a-z]+_[a-z_]+$/ && $2 ~ /^[0-9]+$/ { at[$1] += $2; fired += $2 }
    END {
      for (p in at) { points++; if (least == "" || at[p] < least) least = at[p] }
      sub(/, $/, "", what)
      if (what == "a point") sum = least; else printf "%d %s, ", sum, what
      if (points) printf "%d deaths at %d points, at each at least %d, ", fired, points, least
      printf "%d processes of which %d failed, in all\n", n, failed
      exit failed || sum < count
    }'
}

ended_in_groups() {
  "$torture/test_group" --kills 300 --lagands 100 '*give_equal_bits*' &&
    "$torture/test_group" --rounds 5 '*at_every_point*'
}

ended_at_points() {
  for t in test_kill test_lagand_restart test_resume; do
    "$torture/$t" --rounds 10 '*at_every_point*' || return 1
  done
}

export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
torture=$build/tests/torture
export srcdir=$top LAGAN_TEST_SEED=${LAGAN_TEST_SEED:-$(date +%s)}
part address 'make check with the address and undefined sanitizers' sanitized address,undefined
part thread 'make check with the thread sanitizer' sanitized thread
part openai 'the openai package of Python against lagan-gateway' \
  "$top/tests/gateway/openai_suite.sh" "$build"
part h11 'the HTTP parser of lagan-gateway against h11' \
  "$top/tests/gateway/h11_compare.sh" 200000
part streams 'ten minutes of HTTP streams while workers and lagand are killed' \
  python3 "$top/tests/gateway/kill_streams.py" "$build" 600 "$LAGAN_TEST_SEED"
part prefix 'a build that is configured twice' "$top/tests/daemon/reconfigured.sh"
part systemd 'the unit under a real systemd' \
  sh -c 'cd "$1" && { "$0" || [ $? = 77 ]; }' "$top/tests/daemon/systemd_live.sh" "$build"
part planted 'faults that the fuzzers are to find' "$top/tools/planted.sh" all
part late 'a manifest entry that is retracted after the launch is found' \
  "$torture/test_planted" --late 20000 'manifest_entry*'
part fuzz 'two hours of invalid rings, descriptors, plans, records, manifests, logs and HTTP' \
  fuzzed 900 ring control plan receive manifest log_file http body
part soak 'a minute of 64 clients' env LAGAN_SOAK_SECONDS=60 "$build/tests/e2e/test_service"
part mixture 'three hundred draws of models, settings, requests and what is done to them' \
  "$build/tests/e2e/test_mixture" --draws 300
part worlds 'ten million requests in pretended worlds, each lived twice' \
  "$build/lagan-sim" soak --requests 10000000
part models 'models with one more kill' "$top/ipc/proof/check.sh" long
part kills 'a million kills of mock workers' \
  in_pieces 1000000 'kills, ' 1 kills test_kill 'killed_worker_loses*'
part pairs 'a hundred thousand kills of pairs' \
  in_pieces 100000 'kills of pairs' 1 pairs test_kill 'killed_worker_or*'
part lagands 'ten thousand kills of lagand' \
  in_pieces 10000 'kills of lagand' 1 daemons test_kill 'killed_lagand*'
part reexec 'ten thousand kills and re-execs of lagand' \
  in_pieces 10000 replacements 3 kills test_lagand_restart 'killed_or_reexecuted*'
part workers 'a hundred deaths of mock workers at every point of the protocol' \
  in_pieces 100 'a point' 1 rounds test_kill 'worker_may_fail*' --actions 1
part points 'a hundred deaths of lagand at every point of the protocol' \
  in_pieces 100 'a point' 1 rounds test_kill 'lagand_may_be_killed*' --actions 1
part handing 'a hundred deaths of lagand at every point of handing on' \
  in_pieces 100 'a point' 1 rounds test_lagand_restart 'lagand_failing*' --actions 1
part real 'ten thousand kills of real workers' \
  in_pieces 10000 'kills in' 1 kills test_resume 'killed_workers_give*'
part real16 'ten thousand more in bf16, with lanes and standbys' \
  in_pieces 10000 'kills in' 1 kills test_resume 'killed_workers_with*'
part instants 'a hundred deaths of real workers at every point' \
  in_pieces 100 'a point' 1 rounds test_resume '*at_every_point*' --actions 1
part groups 'nine hundred kills of ranks, and every way to end at every point' ended_in_groups
part actions 'every way to end, ten times at every point' ended_at_points
part evil 'ten thousand evil workers' in_pieces 10000 'evil workers' 1 lives test_malicious '*'
part hostile 'hostile clients: other clients wait at most twice as long' \
  "$torture/test_hostile" --requests 4000 --times 2
part silence 'an hour of load, and workers that are stopped' \
  "$torture/test_hung" --watch 3600 --stops 100
exit $worst

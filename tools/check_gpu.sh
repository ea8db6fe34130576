#!/bin/bash
# check_gpu.sh ROOT [--sanitize] [NAME...] - the tests that a GPU can run, on the first one: ROOT is
# a build tree or a bundle. NAMEs pick some of them (a part of the name will do).
#
# --sanitize: instead of that every kernel under compute-sanitizer, with a tenth of the random
# cases; its NAMEs are memcheck, racecheck, initcheck or parts of programs' names.
#
# One line a test, and of a failing one the sentences; the exit code says whether all passed. A test
# that takes longer than its limit has failed: a wrong kernel may never end. Ending
# the script ends the running test.
set -u
root=$(cd "${1:-.}" && pwd) || exit 2
shift
export srcdir=${srcdir:-$root}

# seconds, program, arguments after --device cuda
tests='
60  tests/gpu/test_memory
60  tests/gpu/test_device
60  tests/gpu/test_partition
60  tests/gpu/test_shapes
120 tests/gpu/test_ops
120 tests/gpu/test_ops --invariant
60  tests/gpu/test_ops --part 52 --only *matmul*
60  tests/gpu/test_peer_exchange
60  tests/gpu/test_experts
60  tests/gpu/test_altup
60  tests/gpu/test_mamba2
120 tests/gpu/test_steps
120 tests/gpu/test_attend
120 tests/gpu/test_attend --invariant
120 tests/gpu/test_attend --part 52
60  tests/gpu/test_step_inputs
120 tests/gpu/test_sample
120 tests/gpu/test_bits
120 tests/gpu/test_whole
180 tests/gpu/test_families
120 tests/worker/test_adopt
120 tests/torture/test_resume standby_without*
120 tests/torture/test_resume requests_resume*
120 tests/torture/test_resume nothing_is_adopted*
120 tests/torture/test_resume --kills 12 killed_workers_give*
120 tests/torture/test_resume --kills 12 killed_workers_with*
120 tests/e2e/test_beams
120 tests/e2e/test_cache
60  tests/e2e/script_runner --only *flushed*
120 tests/e2e/test_preempt
120 tests/e2e/test_mixture --draws 4
300 tests/e2e/test_golden
60  tests/e2e/test_tune
120 tests/e2e/test_encdec
120 tests/e2e/test_split
60  tests/e2e/test_split --set dtype=bf16 --only no_change*
300 tests/e2e/test_real
'

# Where there are several that we may use: models and sums on as many ranks. The first has all else.
gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
[ -z "${CUDA_VISIBLE_DEVICES:-}" ] || gpus=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .)
[ "$gpus" -lt 2 ] || tests="60  tests/gpu/test_collective --most $gpus
60  tests/gpu/test_collective --most $gpus --kernel all_reduce=nccl,all_gather=nccl
240 tests/arch/test_ranks --most $gpus
120 tests/e2e/test_split --set tensor_parallel=2
120 tests/e2e/test_beams --set tensor_parallel=2 --only samples_are*
$tests"

# seconds, tool, program, arguments. initcheck and racecheck have products by our own kernels alone:
# what cuBLASLt's store with the copy engine initcheck does not see, and calls unwritten; racecheck
# finds fault with two of them (docs/lab/serving.md). What the library leaves unwritten or gets
# wrong shows in the sums, which every tool's run compares with doubles.
own=matmul=small,matmul=generic,act_matmul=small,act_matmul=generic
own=$own,gate_matmul=small,gate_matmul=generic
line=matmul=line,matmul=generic,act_matmul=generic,gate_matmul=generic
hopper=matmul=sm90,matmul=generic,act_matmul=generic,gate_matmul=sm90,gate_matmul=generic
ring=matmul=ring,matmul=generic,act_matmul=generic,gate_matmul=ring,gate_matmul=generic
sanitized="
60  memcheck  tests/gpu/test_ops --rounds 10
60  memcheck  tests/gpu/test_ops --rounds 15 --part 52 --only *matmul*
60  memcheck  tests/gpu/test_ops --rounds 5 --invariant
60  memcheck  tests/gpu/test_mamba2 --rounds 5
60  memcheck  tests/gpu/test_attend --rounds 10
60  memcheck  tests/gpu/test_attend --rounds 5 --invariant
60  memcheck  tests/gpu/test_attend --rounds 10 --part 52
60  memcheck  tests/gpu/test_peer_exchange
60  memcheck  tests/gpu/test_experts --rounds 10
60  memcheck  tests/gpu/test_altup
60  memcheck  tests/gpu/test_step_inputs
60  memcheck  tests/gpu/test_partition --only a_*
60  memcheck  tests/gpu/test_partition --only ops*
60  memcheck  tests/gpu/test_sample --only a_* --rounds 20
60  memcheck  tests/gpu/test_sample --only draws* --rounds 5
60  memcheck  tests/gpu/test_sample --only logprobs* --rounds 5
60  racecheck tests/gpu/test_ops --rounds 4 --kernel $own
120 racecheck tests/gpu/test_ops --rounds 4 --invariant --kernel $line
60  racecheck tests/gpu/test_ops --rounds 3 --kernel $hopper --only *matmul*
120 racecheck tests/gpu/test_ops --rounds 4 --part 52 --dtype bf16 --kernel $ring --only *matmul*
60  racecheck tests/gpu/test_mamba2 --rounds 3
120 racecheck tests/gpu/test_attend --rounds 4
120 racecheck tests/gpu/test_attend --rounds 4 --invariant --only attend_is*
120 racecheck tests/gpu/test_attend --rounds 4 --part 52 --only generation_sees*
60  racecheck tests/gpu/test_experts --rounds 10
60  racecheck tests/gpu/test_altup --rounds 10
60  racecheck tests/gpu/test_partition --only a_*
60  racecheck tests/gpu/test_partition --only ops*
120 racecheck tests/gpu/test_step_inputs
120 racecheck tests/gpu/test_sample --only a_* --rounds 5
60  initcheck tests/gpu/test_ops --rounds 10 --plain --kernel $own
60  initcheck tests/gpu/test_ops --rounds 5 --invariant --plain --kernel $line
60  initcheck tests/gpu/test_ops --rounds 10 --plain --kernel $hopper --only *matmul*
60  initcheck tests/gpu/test_ops --rounds 15 --plain --part 52 --kernel $ring --only *matmul*
60  initcheck tests/gpu/test_mamba2 --rounds 5 --plain
120 initcheck tests/gpu/test_attend --rounds 10 --plain
120 initcheck tests/gpu/test_attend --rounds 10 --plain --part 52
60  initcheck tests/gpu/test_experts --rounds 10 --plain
60  initcheck tests/gpu/test_altup --rounds 20 --plain
60  initcheck tests/gpu/test_step_inputs --plain
60  initcheck tests/gpu/test_sample --only a_* --rounds 20 --plain
"

wanted() {
  [ $# -gt 1 ] || return 0
  name=$1
  shift
  for n; do case $name in *"$n"*) return 0 ;; esac; done
  return 1
}

sanitizer=
if [ "${1:-}" = --sanitize ]; then
  shift
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  [ -x "$sanitizer" ] ||
    { echo 'check_gpu.sh: compute-sanitizer of the CUDA Toolkit is missing' >&2; exit 2; }
  tests=$sanitized
fi
out=$(mktemp) || exit 2
test=
trap 'rm -f "$out"' EXIT
# timeout has its own process group.
trap '[ -z "$test" ] || { kill "$test"; wait "$test"; }; exit 1' INT TERM
failed=0
ran=0
while read -r limit program args; do
  [ -n "$limit" ] && wanted "$program $args" "$@" || continue
  since=$(date +%s%N)
  run="$root/$program"
  if [ -n "$sanitizer" ]; then # the first word is its tool
    tool=$program program=${args%% *}
    more=
    case $tool in
      # tests/gpu/fixture.c has the reason.
      initcheck) more='--check-api-memory-access no --kernel-name-exclude kns=small_copy' ;;
      racecheck) more=--force-blocking-launches ;; # what it keeps of 280 queued kernels was 128 GB
    esac
    run="$sanitizer --tool $tool $more --error-exitcode 9 $root/$program"
    args=${args#"$program"}
  fi
  # The line of the result replaces this line.
  [ ! -t 1 ] || printf '%-19s%s %s\r' runs "${tool:+$tool }$program" "$args"
  # shellcheck disable=SC2086 # run and args are words
  timeout -k 5 "$limit" $run --device cuda $args >"$out" 2>&1 </dev/null &
  test=$!
  wait "$test"
  code=$?
  test=
  took=$((($(date +%s%N) - since) / 1000000))
  ran=$((ran + 1))
  if [ $code = 0 ]; then
    printf 'ok      %6d ms  %s %s\n' "$took" "${tool:+$tool }$program" "$args"
  else
    failed=$((failed + 1))
    printf 'FAILED  %6d ms  %s %s (exit %d)\n' "$took" "${tool:+$tool }$program" "$args" $code
    grep -avE '^\[ +(RUN|OK|SKIPPED) +\]|^\[==|^\[  PASSED' "$out" |
      head -n "${LINES_OF_A_FAILURE:-24}" | cut -c1-220 |
      sed 's/^/        /'
  fi
done <<<"$tests"
printf '%d of %d passed in %d s\n' $((ran - failed)) $ran "$SECONDS"
[ $failed = 0 ] && [ $ran -gt 0 ]

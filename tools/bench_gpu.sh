#!/bin/bash
# bench_gpu.sh ROOT [PART...] - the benchmarks of a GPU: ROOT is a build tree or a bundle.
#
# PARTs: check probe attend rows steps matmul llama t5 bart beams fp8 restart peers, all by default.
# Only by name: families (decode of one model per family), ranks (needs two GPUs), load (writes
# 16 GB below TMPDIR). check runs first, because only correct results are timed. Prints the JSON
# lines of each benchmark (bench/README.md). The peers bench/hf_bench.py and bench/matmul_torch.py
# need PyTorch, the first also transformers; without it they are left out. BENCH_SET: more --set
# KEY=VALUE.
set -u
root=$(cd "${1:-.}" && pwd) || exit 2
shift
export srcdir=${srcdir:-$root}
parts=${*:-check probe attend rows steps matmul llama t5 bart beams fp8 restart peers}
trace=$(mktemp) || exit 2
trap 'rm -f "$trace"' EXIT
failed=0

serve() { # serve MODEL ARGUMENT...: with random weights
  model=$1
  shift
  # shellcheck disable=SC2086 # BENCH_SET is words
  timeout -k 20 "${BENCH_SECONDS:-300}" "$root/bench/bench_serve" \
    --model "$srcdir/bench/configs/$model" --device cuda \
    --set weights=random:1 --set dtype=bf16 --set step_timing=true ${BENCH_SET:-} "$@" || failed=1
}

has() { # has MODULE...: Python's; else there is no peer
  for module; do
    python3 -c "import $module" 2>/dev/null || {
      echo "bench_gpu.sh: without $module, no peer" >&2
      return 1
    }
  done
}

for part in $parts; do
  case $part in
    check)
      for model in llama3 t5_relu bart; do
        timeout -k 5 120 "$root/tests/e2e/test_golden" --device cuda --only "$model*" \
          >"$trace" 2>&1 || {
          failed=1
          tail -n 20 "$trace"
        }
        grep -a 'largest error' "$trace"
      done ;;
    llama)
      python3 "$srcdir/bench/traces.py" openorca 192 >"$trace" || failed=1
      serve llama-3.1-8b decode=1:1024 decode=64:1024 decode=256:1024 \
        serve=256:1024:256:512 prefill=64:1024 "trace=$trace:512" ;;
    t5) serve t5-large batch=1:512:64 batch=32:512:64 batch=128:512:64 ;;
    bart) serve bart-large-cnn batch=1:1024:128 batch=32:1024:128 batch=128:1024:128 ;;
    beams) # four from each source; then four from one source against four greedy requests of it
      for model in bart-large-cnn:1024:128 t5-large:512:64; do
        at=${model#*:}
        serve "${model%%:*}" --set max_num_seqs=512 "beam=32:$at:4" "beam=128:$at:4"
      done
      serve t5-large same=4:512:160 beam=1:512:160:4 ;;
    families) # the rows of bench/performance.in
      for model in qwen3-8b gemma-3-12b gemma-3n-e4b gemma-4-26b-a4b gpt-oss-20b bamba-9b \
        granite-4.0-h-small nemotron-h-8b; do
        serve "$model" decode=64:1024
      done
      for dtype in fp16 fp32; do
        BENCH_SET="--set dtype=$dtype" serve llama-3.1-8b decode=64:1024
      done ;;
    fp8) serve llama-3.1-8b --set kv.dtype=fp8 decode=1:1024 decode=64:1024 decode=256:1024 ;;
    probe)
      module=$root/lagan-cuda.so
      [ -e "$module" ] || module=$root/lib/lagan/lagan-cuda.so
      timeout -k 5 120 "$root/bench/bench_restart" "$module" || failed=1
      timeout -k 5 60 "$root/bench/bench_step_gap" || failed=1
      timeout -k 5 120 "$root/bench/bench_host_tier" || failed=1 ;;
    steps)
      for model in llama-3.1-8b t5-large; do
        timeout -k 5 60 "$root/bench/bench_step" "$srcdir/bench/configs/$model" || failed=1
      done ;;
    attend) timeout -k 5 60 "$root/bench/bench_attend" || failed=1 ;;
    matmul)
      timeout -k 5 300 "$root/bench/bench_matmul" || failed=1
      ! has torch || timeout -k 5 120 python3 "$srcdir/bench/matmul_torch.py" || failed=1 ;;
    load)
      checkpoint=$(mktemp -d) || exit 2
      timeout -k 5 600 "$root/bench/bench_weight_load" make "$checkpoint" &&
        timeout -k 5 120 "$root/bench/bench_weight_load" "$checkpoint" cuda || failed=1
      rm -rf "$checkpoint" ;;
    rows)
      timeout -k 5 60 "$root/tests/gpu/test_step_inputs" --device cuda >"$trace" 2>&1 &&
        timeout -k 5 60 "$root/bench/bench_step_inputs" || {
        failed=1
        tail -n 20 "$trace"
      } ;;
    ranks)
      timeout -k 5 60 "$root/bench/bench_collective" --device cuda || failed=1
      for n in 2 1; do
        ranks="--set tensor_parallel=$n"
        BENCH_SET="${BENCH_SET:-} $ranks" serve llama-3.1-8b decode=1:1024 decode=64:1024
        BENCH_SET="${BENCH_SET:-} $ranks" serve t5-large batch=1:512:64 batch=32:512:64
      done
      BENCH_SET="${BENCH_SET:-} --set tensor_parallel=2" \
        serve llama-3.1-8b kill=16:1024:16 rank=16:1024:16 ;;
    restart) serve llama-3.1-8b kill=16:4000:16 ;;
    peers) ! has torch transformers || python3 "$srcdir/bench/hf_bench.py" || failed=1 ;;
    *)
      echo "bench_gpu.sh: there is no part $part" >&2
      failed=1 ;;
  esac
done
exit $failed

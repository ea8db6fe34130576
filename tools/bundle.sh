#!/bin/bash
# bundle.sh SRCDIR OUT PROGRAM... - a tree that runs on a GPU host without development packages.
#
# From the build tree it is started in: the PROGRAMs, stripped, lagan-cuda.so, liblagan, and every
# shared library they need but the C library's own. Left out are what the GPU's driver brings, and
# cuBLASLt and NCCL, which are opened at run time. OUT may be moved anywhere:
#
#   OUT/lagand, laganctl          start here: they find the rest by their own path
#   OUT/check-gpu, bench-gpu      the tests and the benchmarks
#   OUT/bin, lib, tests, bench    what these run
#   OUT/models                    two small models: see models/README.md
set -eu
src=$(cd "$1" && pwd)
out=$2
shift 2

rm -rf "$out" "$out.tar.gz"
mkdir -p "$out/bin" "$out/lib/lagan"
for p; do
  case $p in
    tests/* | bench/*) to=$out/$p ;;
    *) to=$out/bin/$p ;;
  esac
  mkdir -p "$(dirname "$to")"
  strip -o "$to" "$p"
  chmod 755 "$to"
done
[ ! -e lagan-cuda.so ] || strip --strip-unneeded -o "$out/lib/lagan/lagan-cuda.so" lagan-cuda.so
strip --strip-unneeded -o "$out/lib/liblagan.so.0" .libs/liblagan.so.0
ln -s liblagan.so.0 "$out/lib/liblagan.so"
mkdir -p "$out/include"
cp "$src/include/lagan.h" "$src/include/lagan_wire.h" "$out/include/"

# The closure of what they are linked with. The C library and its loader are the host's: they belong
# together.
ldd "$@" .libs/liblagan.so.0 | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  while read -r lib; do
    case ${lib##*/} in
      libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.*) ;;
      libresolv.so.* | ld-linux*) ;;
      liblagan.so.*) ;;
      *) strip --strip-unneeded -o "$out/lib/${lib##*/}" "$lib" ;;
    esac
  done

cp -r "$src/models" "$out/models"
mkdir -p "$out/tests/data" "$out/tests/e2e" "$out/tools" "$out/bench"
cp "$src/tests/e2e/"*.script "$out/tests/e2e/"
cp -rL "$src/tests/data/golden" "$src/tests/data/tokenizers" "$out/tests/data/"
cp "$src/tools/check_gpu.sh" "$src/tools/bench_gpu.sh" "$out/tools/"
cp -r "$src/bench/configs" "$src/bench/hf_bench.py" "$src/bench/matmul_torch.py" \
  "$src/bench/traces.py" "$out/bench/"

# A program of bin/ that knows its libraries. LD_LIBRARY_PATH reaches the workers too: lagand passes
# it on.
start() { # start NAME COMMAND
  printf '%s\n' '#!/bin/sh' 'top=$(dirname "$(readlink -f "$0")")' \
    'LD_LIBRARY_PATH=$top/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}' 'export LD_LIBRARY_PATH' \
    "exec $2" >"$out/$1"
  chmod 755 "$out/$1"
}
for p in lagand laganctl lagan-worker; do start $p "\"\$top/bin/$p\" \"\$@\""; done
start check-gpu '"$top/tools/check_gpu.sh" "$top" "$@"'
start bench-gpu '"$top/tools/bench_gpu.sh" "$top" "$@"'

tar -C "$(dirname "$out")" -czf "$out.tar.gz" "$(basename "$out")"
printf 'bundle: %s (%s), %s.tar.gz (%s)\n' "$out" "$(du -sh "$out" | cut -f1)" "$out" \
  "$(du -h "$out.tar.gz" | cut -f1)"

#!/bin/sh
# coverage.sh - line coverage of each folder by the tests; `make coverage` runs it.
#
#   tools/coverage.sh BUILD [TEST...]   e.g. tools/coverage.sh build tests/base/test_map
#
# Compiles the tree without optimization into BUILD/coverage, runs the TESTs (default: all of `make
# check`) and prints for each folder the executed lines, all lines and per cent, then the ten files
# with the most lines that were not executed. Lines of a file that is in several programs count
# once, from the program that executed most of them. Figures add up over calls; delete
# BUILD/coverage to start from zero. Needs gcov, which comes with gcc.
src=$(cd "${srcdir:-$(dirname "$0")/..}" && pwd) || exit 99
mkdir -p "${1:?usage: coverage.sh BUILD [TEST...]}/coverage" && cd "$1/coverage" || exit 99
shift
unset srcdir
# exec stops the counters. With vfork() a child would stop those of lagand, whose memory it shares.
if [ ! -e Makefile ]; then
  "$src/configure" -q --without-cuda CFLAGS='-O0 -g --coverage' CPPFLAGS=-Dvfork=fork \
    >configure.out 2>&1 ||
    { tail configure.out; exit 99; }
fi
status=0
if [ $# -eq 0 ]; then
  make -s -k -j"$(nproc)" check >check.out 2>&1 || status=1
else
  # shellcheck disable=SC2086
  make -s -j"$(nproc)" "$@" >make.out 2>&1 &&
    make -s check-TESTS TESTS="$*" check_PROGRAMS= check_LIBRARIES= >check.out 2>&1 || status=1
fi
[ $status -eq 0 ] || echo "coverage.sh: a test or the build failed: $PWD/make.out, check.out"
find . -name '*.gcno' ! -path './tests/*' ! -path './bench/*' -exec gcov -n {} + 2>/dev/null |
  awk '
    /^File / {
      file = ""
      if (match($0, /\/(base|ipc|wire|gpu|worker|route|sim|daemon|client|ctl)\/.*\.[ch]/))
        file = substr($0, RSTART + 1, RLENGTH - 1)
      next
    }
    /^Lines executed:/ && file != "" {
      split($2, part, /[:%]/); n = $4; hit = int(part[2] * n / 100 + 0.5)
      if (!(file in lines) || hit > done[file]) { lines[file] = n; done[file] = hit }
      file = ""
    }
    END {
      for (f in lines) {
        d = f; sub(/\/[^\/]*$/, "", d)
        all[d] += lines[f]; ran[d] += done[f]; total += lines[f]; run += done[f]
        printf "missed %6d of %6d  %s\n", lines[f] - done[f], lines[f], f | \
          "sort -k2,2nr | head -10 >&2"
      }
      for (d in all)
          printf "%-16s %7d of %7d  %5.1f %%\n", d, ran[d], all[d], 100 * ran[d] / all[d] | "sort"
      close("sort")
      if (total) printf "%-16s %7d of %7d  %5.1f %%\n", "all", run, total, 100 * run / total
      else { print "coverage.sh: nothing was built"; exit 1 }
    }' || status=1
exit $status

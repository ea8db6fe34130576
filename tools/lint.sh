#!/bin/sh
# lint.sh - clang-tidy and cppcheck on C files; `make lint` and `make lint-all` run it.
#
#   LINT_FLAGS='compiler flags' LINT_CUDA=INCLUDES tools/lint.sh BUILD [all | FILE...]
#
# Without files: the .c files that differ from $BASE (default HEAD~1), and new ones. .clang-tidy has
# the checks. A program that is not installed is named and skipped. Fails if one of them finds
# something.
build=$(cd "${1:?usage: lint.sh BUILD [all | FILE...]}" && pwd) || exit 99
shift
cd "${srcdir:-$(dirname "$0")/..}" || exit 99

if [ "$*" = all ]; then
  set -- $(git ls-files '*.c')
elif [ $# -eq 0 ]; then
  set -- $(git diff --name-only --diff-filter=d "${BASE:-HEAD~1}" -- '*.c'
    git ls-files -o --exclude-standard '*.c')
fi
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
for f; do
  case $f in
    gpu/cuda/*) [ -n "$LINT_CUDA" ] || continue ;;   # needs the headers of the toolkit
    # These two need libraries that the build does not need.
    tests/gpu/fake_nccl.c | bench/transports_peers.c) continue ;;
  esac
  echo "$f"
done | sort -u >"$tmp/files"
[ -s "$tmp/files" ] || { echo 'lint.sh: no C file has changed'; exit 0; }

status=0
if command -v clang-tidy >/dev/null; then
  # One flag a line, without the warnings, which are gcc's and which the build prints.
  { printf '%s\n' $LINT_FLAGS | grep -v '^-W'
    printf '%s\n' -include "$build/config.h" "-I$build" "-I$PWD" "-I$PWD/include" \
      '-DSYSCONFDIR=""' '-DPKGLIBEXECDIR=""' '-DGPU_MODULE_DIR=""' '-DCUDA_ARCHS=""'
    [ -z "$LINT_CUDA" ] || printf '%s\n' -isystem "$LINT_CUDA"
  } >"$tmp/compile_flags.txt"
  xargs -P"$(nproc)" -n8 clang-tidy -quiet -p "$tmp" <"$tmp/files" 2>"$tmp/log" || status=1
else
  echo 'lint.sh: clang-tidy is not installed: skipped'
fi
if command -v cppcheck >/dev/null; then
  cppcheck -q -j"$(nproc)" --std=c11 --enable=warning,portability --inline-suppr \
    --error-exitcode=1 \
    --suppressions-list=tools/cppcheck.txt --file-list="$tmp/files" -I. \
    --include="$build/config.h" || status=1
else
  echo 'lint.sh: cppcheck is not installed: skipped'
fi
exit $status

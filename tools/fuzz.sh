#!/bin/sh
# fuzz.sh [-t SECONDS] [-c CORPUS] NAME|all - build tests/fuzz/fuzz_NAME.c with clang and run it.
#
# Needs clang and its runtime (Debian: clang-14 libclang-rt-14-dev). What to link is in
# tests/fuzz/planted/NAME.txt (tools/planted.sh has the format). Findings are left in the present
# directory; what was learnt is kept in CORPUS, if one is given.
seconds=60
corpus=
while getopts t:c: o; do
  case $o in t) seconds=$OPTARG ;; c) corpus=$OPTARG ;; *) exit 2 ;; esac
done
shift $((OPTIND - 1))
test $# -eq 1 || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$PWD
cd "$(dirname "$0")/.." || exit 99
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

printf '#define %s "/nowhere"\n' SYSCONFDIR PKGLIBEXECDIR >"$tmp/config.h"

field() { sed -n "s/^$2: *//p" "tests/fuzz/planted/$1.txt"; }

one() {
  sources=$(field "$1" sources); pkgs=$(field "$1" pkgs); libs=$(field "$1" libs)
  test -z "$pkgs" || {
    flags=$(pkg-config --cflags $pkgs)
    libs="$(pkg-config --libs $pkgs) $libs"
  }
  ${CLANG:-clang} -g -O1 -std=gnu11 -D_GNU_SOURCE '-DPACKAGE_VERSION="0"' -I. "-I$tmp" $flags \
    -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -o "$tmp/fuzz_$1" \
    "tests/fuzz/fuzz_$1.c" $sources $libs || return 1
  mkdir -p "$tmp/learnt"
  (cd "$here" && "$tmp/fuzz_$1" -max_total_time="$seconds" -print_final_stats=1 -rss_limit_mb=2048 \
    -artifact_prefix="$here/" "${corpus:-$tmp/learnt}" "$OLDPWD/tests/data/fuzz_$1" 2>"$tmp/log")
  r=$?
  if [ $r -eq 0 ]; then
    sed -n "s/^stat::number_of_executed_units: */fuzz_$1: no finding, inputs run: /p" "$tmp/log"
  else
    tail -60 "$tmp/log"
  fi
  return $r
}

names=$1
if [ "$names" = all ]; then names=$(cd tests/fuzz/planted && ls *.txt | sed 's/\.txt$//'); fi
bad=0
for name in $names; do one "$name" || bad=1; done
exit $bad

#!/bin/sh
# check.sh [long] - checks that each model holds in every reachable state and each mutant fails.
#
# Needs spin; exit status 77 without it. long: one more kill in each model; takes minutes and GBs.
dir=$(cd "$(dirname "$0")" && pwd)
command -v spin >/dev/null || {
  echo "spin is not installed: the models of ipc/proof are not checked"
  exit 77
}
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
bad=0

run() { # MODEL DEFINES: status 0 holds, 1 fails, 2 not checked
  rm -rf "$work"/* && cd "$work" || exit 99
  # shellcheck disable=SC2086
  spin $2 -a "$dir/$1.pml" >spin.out 2>&1 &&
    ${CC:-cc} -O0 -w -DSAFETY -DCOLLAPSE -o pan pan.c 2>>spin.out || { cat spin.out; return 2; }
  ./pan -m1000000 >pan.out 2>&1
  grep -q 'search not completed' pan.out && ! grep -q 'errors: 1' pan.out && return 2
  grep -q 'errors: 0' pan.out && return 0
  grep -q 'errors: 1' pan.out && return 1
  return 2
}
holds() {
  run "$1" "$2"
  case $? in
  0) echo "$1 $2: holds, $(awk '/states, stored/ { print $1 }' pan.out) states" ;;
  *) echo "$1 $2: DOES NOT HOLD"; grep -hE 'pan:|Error' spin.out pan.out 2>/dev/null; bad=1 ;;
  esac
}
caught() {
  run "$1" "$2"
  case $? in
  1) echo "$1 $2: caught" ;;
  *) echo "$1 $2: NOT CAUGHT"; bad=1 ;;
  esac
}

holds wake ''
for m in NO_RING_FENCE NO_SLEEP_FENCE NO_RECHECK FLAG RING_FIRST DRAIN_LATE NO_SPACE_RING \
  SPACE_NOT_ANNOUNCED SPACE_LATE; do
  caught wake -D$m
done
holds recover ''
holds recover '-DNO_DRAIN -DK=1'
for m in NO_OFFSET STALE FORGET PAST_END NO_END; do caught recover -D$m; done
holds manifest ''
holds manifest -DNO_ODD
for m in RETRACT_LATE COMMIT_EARLY REPORT_FIRST REUSE_EARLY GROW_FIRST 'KEEP_DEAD -DK=2'; do
  caught manifest "-D$m"
done
if [ "$1" = long ]; then
  holds recover -DK=3
  holds manifest -DK=2
fi
exit $bad

#!/bin/bash
# count.sh OUTPUT BUILDDIR - what `make check` did: failures with their logs, then one closing line.
#
# A test program counts with its cmocka tests, a script as one. The closing line is the whole run's.
set -u
out=$1 dir=$2
passed=0 failed=0 skipped=0
while read -r verdict name; do
  log=$dir/$name.log
  p=$(grep -c '^\[       OK \]' "$log" 2>/dev/null)
  f=$(grep -oE '^\[  FAILED  \] [a-zA-Z_0-9]+$' "$log" 2>/dev/null | sort -u | wc -l)
  s=$(grep -c '^\[  SKIPPED \] [a-zA-Z_0-9]*$' "$log" 2>/dev/null)
  case $verdict in
    PASS:) [ "$p" -gt 0 ] || p=1; passed=$((passed + p)); skipped=$((skipped + s)) ;;
    SKIP:) skipped=$((skipped + 1)) ;;
    *)
      passed=$((passed + p)); failed=$((failed + (f > 0 ? f : 1)))
      printf '\n---- %s %s\n' "$verdict" "$name"
      tail -n 60 "$log" 2>/dev/null ;;
  esac
done < <(grep -E '^(PASS|FAIL|XPASS|XFAIL|SKIP|ERROR): ' "$out")
if [ $((passed + failed)) -eq 0 ]; then
  tail -n 40 "$out"
  failed=1
fi
grep -E '^(PASS|FAIL|SKIP|ERROR): ' "$out" | sort | uniq -c |
  awk '{ print $2, $3 }' | sort | sed 's/^/  /'
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]

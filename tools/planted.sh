#!/bin/sh
# planted.sh [-t SECONDS] NAME|all - would the fuzzer see it? Plant faults and look.
#
# For every fault in tests/fuzz/planted/NAME.txt: copy the sources, plant that ONE fault, build
# tests/fuzz/fuzz_NAME.c with clang's libFuzzer and AddressSanitizer, run it for at most SECONDS
# (default 60) and say after how many it was found. Then the real sources for as long: no finding.
# Then the line coverage of the parser by what that run learnt. Fails when a fault is missed or does
# not build, the real sources have a finding, or less than 90 % of the parser's lines were run.
#
# The file:
#
#   # a comment
#   sources: ipc/ring.c ipc/shm.c base/e*.c    what to link with the fuzzer, .c files of the tree
#   parser: ipc/ring.c                         whose coverage counts, one or several
#   pkgs: jansson                              pkg-config names (may be missing)
#   libs: -lm                                  other libraries (may be missing)
#   max_len: 4096                              longest input to try (may be missing)
#
#   fault: a record may cross the wrap         what it breaks: the line that is reported
#   file: ipc/ring.c                           where
#   -    if (bytes > left) return broken();    the old lines, exactly, each behind one '-';
#   +    if (bytes > left + 32) return ...     the new ones, behind '+' (none: the lines go away)
#
# The old lines must be in the file exactly once. At least five faults a fuzzer, each one something
# that a person could write by mistake. Needs clang, libclang-rt and llvm (profdata, cov), perl.
seconds=60
while getopts t: o; do
  case $o in t) seconds=$OPTARG ;; *) exit 2 ;; esac
done
shift $((OPTIND - 1))
test $# -eq 1 || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.." || exit 99
top=$PWD
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM
: "${CLANG:=clang}"
version=$($CLANG -dumpversion | cut -d. -f1)
tool() { command -v "$1-$version" || command -v "$1"; }

field() { sed -n "s/^$2: *//p" "$top/tests/fuzz/planted/$1.txt"; }

# copy DIR: every source the fuzzer could include.
copy() {
  mkdir -p "$1" &&
    find include base ipc wire gpu worker route sim daemon gateway tests -name '*.[ch]' |
      tar -cf - -T - | tar -xf - -C "$1" &&
    printf '#define %s "/nowhere"\n' SYSCONFDIR PKGLIBEXECDIR >"$1/config.h"
}

# compile DIR FLAGS OUT: DIR's fuzzer and its sources, several at a time.
compile() {
  (cd "$1" && set -e
    for c in "tests/fuzz/fuzz_$name.c" $sources; do
      o=$3.$(echo "$c" | tr / _).o
      [ -e "$o" ] ||
        $CLANG -g -O1 -std=gnu11 -D_GNU_SOURCE '-DPACKAGE_VERSION="0"' -I. $cflags $2 \
          -c -o "$o" "$c"
    done
    $CLANG $2 -o "$3" "$3".*.o $libs) >"$3.log" 2>&1
}

# hunt PROGRAM DIR: run for at most $seconds; 0: found something.
hunt() {
  mkdir -p "$2/learnt"
  "$1" -max_total_time="$seconds" -seed=1 -rss_limit_mb=2048 -timeout=10 \
    -artifact_prefix="$2/found-" ${max_len:+-max_len=$max_len} "$2/learnt" \
    "$top/tests/data/fuzz_$name" >"$2/log" 2>&1
  ls "$2"/found-* >/dev/null 2>&1
}

# split NAME DIR: DIR/1/{what,file,old,new}, DIR/2/...
split_faults() {
  perl -e '
    my ($dir, $n, %f) = ($ARGV[0], 0);
    sub put { return unless $n; mkdir "$dir/$n"; for my $k (qw(what file old new)) {
      open my $o, ">", "$dir/$n/$k" or die $!; print $o $f{$k} // ""; } }
    while (<STDIN>) {
      if (/^fault: *(.*)/) { put(); $n++; %f = (what => $1); }
      elsif ($n && /^file: *(.*?)\s*$/) { $f{file} = $1 }
      elsif ($n && /^-(.*\n)/) { $f{old} .= $1 }
      elsif ($n && /^\+(.*\n)/) { $f{new} .= $1 }
    }
    put(); print $n' "$2" <"tests/fuzz/planted/$1.txt"
}

# plant DIR FAULT: change DIR/file; fails when the old text is not there exactly once.
plant() {
  perl -0777 -e '
    my ($path, $old, $new) = map { local @ARGV = $_; my $t = <>; $t // "" } @ARGV[0, 1, 2];
    my $n = () = $path =~ /\Q$old\E/g;
    if ($old eq "" || $n != 1) { print STDERR "old text found $n times\n"; exit 1 }
    $path =~ s/\Q$old\E/$new/;
    open my $o, ">", $ARGV[0] or die $!; print $o $path' \
    "$1/$(cat "$2/file")" "$2/old" "$2/new"
}

one() {
  name=$1
  sources=$(field "$name" sources); parser=$(field "$name" parser); pkgs=$(field "$name" pkgs)
  libs=$(field "$name" libs); max_len=$(field "$name" max_len); cflags=
  test -z "$pkgs" || {
    cflags=$(pkg-config --cflags $pkgs)
    libs="$(pkg-config --libs $pkgs) $libs"
  }
  dir=$tmp/$name; missed=0
  mkdir -p "$dir/faults" "$dir/real" && copy "$dir/tree" || return 99
  if ! compile "$dir/tree" -fsanitize=fuzzer,address "$dir/real/fuzz"; then
    cat "$dir/real/fuzz.log"; echo "$name: does not build"; return 1
  fi
  n=$(split_faults "$name" "$dir/faults")
  i=0
  while [ $((i += 1)) -le "$n" ]; do
    f=$dir/faults/$i
    what="$(cat "$f/file"): $(cat "$f/what")"
    cp "$dir/tree/$(cat "$f/file")" "$f/before"
    if ! plant "$dir/tree" "$f"; then echo "$name: CANNOT PLANT $what"; missed=1; continue; fi
    # Only what the fault touches is compiled again; a header touches everything.
    case $(cat "$f/file") in
    *.h) ;;
    *) for o in "$dir/real/fuzz".*.o; do ln "$o" "$f/${o##*/}"; done
      rm -f "$f/fuzz.$(tr / _ <"$f/file").o" ;;
    esac
    if compile "$dir/tree" -fsanitize=fuzzer,address "$f/fuzz"; then
      t0=$(date +%s)
      if hunt "$f/fuzz" "$f"; then
        echo "$name: found in $(($(date +%s) - t0)) s: $what"
      else
        echo "$name: MISSED in $seconds s: $what"; missed=1
      fi
    else
      tail -5 "$f/fuzz.log"; echo "$name: DOES NOT BUILD: $what"; missed=1
    fi
    cp "$f/before" "$dir/tree/$(cat "$f/file")"
    rm -f "$f"/fuzz*
  done
  if [ "$n" -lt 5 ]; then echo "$name: only $n faults are planted"; missed=1; fi
  if hunt "$dir/real/fuzz" "$dir/real"; then
    tail -40 "$dir/real/log"; echo "$name: THE REAL SOURCES have a finding"; missed=1
  else
    echo "$name: no finding in $seconds s with the real sources"
  fi
  mkdir "$dir/cov"
  if ! compile "$dir/tree" '-fsanitize=fuzzer -fprofile-instr-generate -fcoverage-mapping' \
    "$dir/cov/fuzz"; then cat "$dir/cov/fuzz.log"; return 1; fi
  LLVM_PROFILE_FILE=$dir/cov/raw "$dir/cov/fuzz" -runs=0 "$dir/real/learnt" \
    "tests/data/fuzz_$name" >/dev/null 2>&1
  $(tool llvm-profdata) merge -o "$dir/cov/data" "$dir/cov/raw" || return 1
  for p in $parser; do
    percent=$($(tool llvm-cov) export -summary-only -instr-profile="$dir/cov/data" \
      "$dir/cov/fuzz" "$dir/tree/$p" |
      perl -0777 -ne 'print int($1) if /"totals":.*?"lines":\{[^}]*"percent":([0-9.]+)/s')
    echo "$name: ${percent:-0} % of the lines of $p were run"
    if [ "${percent:-0}" -lt 90 ]; then
      $(tool llvm-cov) show -instr-profile="$dir/cov/data" "$dir/cov/fuzz" "$dir/tree/$p" |
        grep -E '^ +[0-9]+\| +0\|' | head -40
      missed=1
    fi
  done
  return $missed
}

names=$1
if [ "$names" = all ]; then names=$(cd tests/fuzz/planted && ls *.txt | sed 's/\.txt$//'); fi
bad=0
for name in $names; do one "$name" || bad=1; rm -rf "${tmp:?}/$name"; done
exit $bad

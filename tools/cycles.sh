#!/bin/sh
# cycles.sh - finds files that use each other, directly or through other files.
#
#   tools/cycles.sh BUILD          checks every folder of the table below against its limit
#   tools/cycles.sh BUILD FOLDER   prints the cycles of a folder, and the symbols that close them
#
# A file uses another one if its object needs a symbol, function or data, that the object of the
# other file defines. Static functions have no such entry, so two of the same name are not confused.
# A folder includes its subfolders. Objects of sources that no longer exist are ignored; a source
# without a current object is an error, except in gpu/cuda, which is skipped if the CUDA module was
# not built.
build=${1:?usage: cycles.sh BUILD [FOLDER]}
src=$(cd "${srcdir:-$(dirname "$0")/..}" && pwd) || exit 99
cd "$build" || exit 99

objects() { # objects FOLDER: "object source" for each source file of the folder
  (cd "$src" && find "$1" -name '*.c' | LC_ALL=C sort) | while read -r c; do
    dir=${c%/*}; name=${c##*/}; name=${name%.c}
    case $c in gpu/cuda/*) [ -e gpu/cuda/cuda_device.pic.o ] || continue ;; esac
    for o in "$dir/$name.pic.o" "$dir/$name.o" "$dir"/*_a-"$name.o" "$dir"/*-"$name.o" none; do
      [ ! -e "$o" ] || break
    done
    if [ "$o" = none ] || [ "$src/$c" -nt "$o" ]; then echo "$c: no current object" >&2
    else echo "$o $c"; fi
  done
}

folder() { # folder DIR LIMIT VERBOSE: fails if a cycle of DIR has more than LIMIT files
  objects "$1" >"$list"
  [ -s "$list" ] || return 0
  # shellcheck disable=SC2046
  nm -A -P $(cut -d' ' -f1 "$list") | awk -v dir="$1" -v limit="$2" -v verbose="$3" '
    NR == FNR { source[$1 ":"] = $2; name[n++] = $2; next }
    $3 == "U" || $3 == "w" { unit = source[$1]; needs[unit, ++count[unit]] = $2; next }
    $3 ~ /^[TDBRVWCGS]$/ { owner[$2] = source[$1] }
    END {
      for (i = 0; i < n; i++) for (j = 1; j <= count[name[i]]; j++) {
        symbol = needs[name[i], j]; o = owner[symbol]
        if (o == "" || o == name[i]) continue
        reach[name[i], o] = 1
        edge[name[i], o] = edge[name[i], o] " " symbol
      }
      for (k = 0; k < n; k++) for (i = 0; i < n; i++) if ((name[i], name[k]) in reach)
        for (j = 0; j < n; j++) if ((name[k], name[j]) in reach) reach[name[i], name[j]] = 1
      for (i = 0; i < n; i++) {
        if (name[i] in shown || !((name[i], name[i]) in reach)) continue
        size = 0; line = ""
        for (j = 0; j < n; j++) if ((name[i], name[j]) in reach && (name[j], name[i]) in reach) {
          member[size++] = name[j]; shown[name[j]] = 1
          s = name[j]; sub(/.*\//, "", s); line = line " " s
        }
        if (verbose || size > limit) print dir ": cycle of " size " files:" line
        if (verbose) for (j = 0; j < size; j++) for (k = 0; k < size; k++)
          if ((member[j], member[k]) in edge)
            print "  " member[j] " uses " member[k] ":" edge[member[j], member[k]]
        if (size > limit) { print dir ": a cycle may have at most " limit " files"; bad = 1 }
      }
      exit bad
    }' "$list" -
}

missing=$(mktemp) && list=$(mktemp) || exit 99
trap 'rm -f "$missing" "$list"' EXIT
if [ -n "$2" ]; then folder "$2" 9999 1; exit; fi
status=0
while read -r dir limit; do
  folder "$dir" "$limit" 0 2>>"$missing" || status=1
done <<'TABLE'
base          1
ipc           1
route         1
gpu/cpu       2
gpu/cuda      4
worker        4
daemon        3
client        3
gateway       7
ctl           15
sim           3
TABLE
[ ! -s "$missing" ] || { sort -u "$missing"; echo "cycles.sh: build first (make)"; exit 99; }
exit $status

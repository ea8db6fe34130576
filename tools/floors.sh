#!/bin/sh
# floors.sh - no file includes a file from its own height or above, except beside itself.
#
# The table is the architecture: one line a folder (or a header that is a floor of its own), lowest
# first, then what it may include besides itself. Change it on purpose or not at all.
cd "${srcdir:-$(dirname "$0")/..}" || exit 99
table=$(mktemp) || exit 99
trap 'rm -f "$table"' EXIT
cat >"$table" <<'TABLE'
include
base
ipc            include base
gpu            base
worker/kv      base
worker/sched   include base worker/kv
worker/text    base
worker/model   base gpu worker/kv
worker/arch    base gpu worker/kv worker/model
worker/exec    base gpu worker/kv worker/model worker/sched
worker         include base ipc gpu worker/kv worker/sched worker/text worker/model worker/arch worker/exec
route          base
sim            include base ipc route worker/kv worker/sched
daemon/daemon.h   include base
daemon/config     include base ipc daemon/daemon.h
daemon/persist    include base ipc daemon/daemon.h daemon/config
daemon/ledger     include base ipc daemon/daemon.h daemon/config daemon/persist
daemon/net        include base ipc daemon/daemon.h daemon/config daemon/persist daemon/ledger
daemon/supervise  include base ipc daemon/daemon.h daemon/config daemon/persist daemon/ledger daemon/net
daemon/request    include base ipc route daemon/daemon.h daemon/config daemon/persist daemon/ledger daemon/net daemon/supervise
daemon/ops        include base ipc daemon/daemon.h daemon/config daemon/persist daemon/ledger daemon/net daemon/supervise daemon/request
daemon            include base ipc route daemon/daemon.h daemon/config daemon/persist daemon/ledger daemon/net daemon/supervise daemon/request daemon/ops
client         include base ipc
ctl            include base client
TABLE
find include base ipc gpu worker route sim daemon client ctl \
  \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null |
while read -r f; do sed -n 's|^#include "\(.*\)"|'"$f"' \1|p' "$f"; done |
awk '
function home(path,   d) {                       # path itself, or the deepest folder that holds it
    if (path in may) return path
    for (d = path; sub(/\/[^\/]*$/, "", d); ) if (d in may) return d
    return ""
}
NR == FNR { may[$1] = " " $0 " "; next }
$2 == "config.h" { next }
{
    h = home($1); t = home($2); n++
    if (t == "" || index(may[h], " " t " ") == 0) { print $1 ": may not include " $2; bad = 1 }
}
END { if (!n) { print "no includes found"; bad = 1 } exit bad }' "$table" -

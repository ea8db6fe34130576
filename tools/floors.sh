#!/bin/sh
# floors.sh - no file includes a file from its own height or above, except beside itself.
#
# The table is the architecture: one line a folder, lowest first, then what it may include besides
# itself. A line may name one header of a folder: that header is lower than the folder. Change the
# table on purpose or not at all. K is gpu/cuda/kernels. Its comm and sampling share one height:
# sampling on ranks exchanges statistics, and the exchange skips rows that need no whole logits.
cd "${srcdir:-$(dirname "$0")/..}" || exit 99
table=$(mktemp) || exit 99
trap 'rm -f "$table"' EXIT
# A name after @ stands for a list of folders.
kernels='K/base K/elementwise K/memory K/attention K/moe K/gemm K/ssm K/comm K/sampling K/norm'
worker='worker/worker.h include base ipc wire gpu worker/kv worker/manifest worker/sched'
worker="$worker worker/partition worker/text worker/model worker/arch worker/exec"
daemon='include base ipc wire daemon/daemon.h daemon/config daemon/persist daemon/ledger daemon/net'
sed -e 's|@LOOP|@PROCESS worker/tp worker/ops|' -e 's|@PROCESS|@WORKER worker/process|' \
  -e "s|@WORKER|$worker|" -e "s|@DAEMON|$daemon|" -e "s|@KERNELS|$kernels|" \
  -e 's|K/|gpu/cuda/kernels/|g' >"$table" <<'TABLE'
include
base
ipc            include base
wire           include base ipc
gpu            base
gpu/cpu        base gpu
K/base         base gpu
K/elementwise  base gpu K/base
K/memory       base gpu K/base
K/attention    base gpu K/base
K/moe          base gpu K/base
K/gemm         base gpu K/base K/elementwise
K/ssm          base gpu K/base K/elementwise
K/comm         base gpu K/base K/sampling
K/sampling     base gpu K/base K/comm
K/norm         base gpu K/base K/comm
gpu/cuda       base gpu @KERNELS
worker/kv      base
worker/manifest base worker/kv
worker/sched   include base worker/kv
worker/partition include base worker/kv worker/sched
worker/text    base
worker/model   base gpu worker/kv
worker/arch    base gpu worker/kv worker/model
worker/exec    base gpu worker/kv worker/model worker/sched worker/partition
worker/worker.h  base
worker/io/request.h base worker/sched worker/text worker/exec
worker/process   @WORKER
worker/tp        @PROCESS
worker/ops       @PROCESS
worker/handover  @LOOP worker/io/request.h
worker/load      @LOOP worker/handover
worker/io        @LOOP worker/handover worker/io/request.h
worker           @LOOP worker/handover worker/load worker/io worker/io/request.h
route          base
sim            include base route wire worker/kv worker/sched worker/partition
daemon/daemon.h   include base
daemon/config     include base ipc wire daemon/daemon.h
daemon/persist    include base ipc wire daemon/daemon.h daemon/config
daemon/ledger     include base ipc wire daemon/daemon.h daemon/config daemon/persist
daemon/net        include base ipc wire daemon/daemon.h daemon/config daemon/persist daemon/ledger
daemon/supervise  @DAEMON
daemon/request    @DAEMON route daemon/supervise
daemon/ops        @DAEMON route daemon/supervise daemon/request
daemon            @DAEMON route daemon/supervise daemon/request daemon/ops
client         include base wire
ctl            include base client
gateway/http   base
gateway/api    include base gateway/http
gateway        include base ipc wire client gateway/http gateway/api
TABLE
find include base ipc wire gpu worker route sim daemon client ctl gateway \
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

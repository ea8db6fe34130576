/* test_failures.c - provokes the failures that users meet, and checks exit code and message.
 *
 * A row is a shell script and what it must print: the text of the failure has to name the object,
 * the fault and the remedy. The scripts share the functions of `prelude`. Rows that this program
 * cannot provoke name the test that does. */
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ROWS = 80, SKIPPED = 66 }; /* SKIPPED: exit code of needs() */

struct failure {
    const char *what, *script;
    int code;          /* exit code of the script */
    const char *words; /* parts of its output or of lagand's log; each line must be there */
};

/* $D: directory of the row; $M: a model; $K: laganctl for the lagand at $D/rt, which up() starts
 * with its log in $D/log. $pid: lagand. other: runs a command as a user without groups; full: runs
 * a command that finds $D/full on a file system of 4 KiB and N files, with 0 bytes left. */
static const char prelude[] =
    "M=$SRC/models/recall-gemma3\n"
    "R=\"./lagand --runtime-dir $D/rt --device cpu\"\n"
    "K=\"timeout -k 1 30 ./laganctl --connect ipc://$D/rt/api.sock\"\n"
    "pid=\n"
    "down() { test -z \"$pid\" || { kill $pid; wait $pid; } 2>/dev/null; }\n"
    "trap 'r=$?; down; exit $r' EXIT\n"
    "copy() { cp -r \"$M\" $D/$1 && chmod -R u+w $D/$1; }\n"
    "run() { timeout -k 1 30 $R \"$@\"; }\n"
    "up() { $R --set kv.memory=16MiB --set threads=1 \"$@\" 2>$D/log & pid=$!\n"
    "       $K status --wait=30 >/dev/null || test $? = 7 || { cat $D/log; exit 99; }; }\n"
    "worker() { $K workers list --json | sed 's/.*\"name\":\"w0\",\"pid\":\\([0-9]*\\).*/\\1/'; }\n"
    "public() { ./laganctl keygen $1 --json | sed 's/.*public\":\"\\([^\"]*\\).*/\\1/'; }\n"
    /* $D/server and $D/client: keys that know each other */
    "keys() { s=$(public $D/server); c=$(public $D/client)\n"
    "         echo \"client $c alice max_inflight=1\" >>$D/server; echo \"server $s\" >>$D/client; "
    "}\n"
    "needs() { \"$@\" >/dev/null 2>&1 || exit 66; }\n"
    "other() { setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"; }\n"
    "as_other() { needs other test -x lagand -a -r $M/config.json; chmod 755 $D; }\n"
    "full() { needs unshare -rm true; mkdir $D/full; unshare -rm sh -c \"mount -t tmpfs -o "
    "size=4k,nr_inodes=$1 full $D/full; cat /dev/zero >$D/full/x 2>/dev/null; shift; "
    "exec timeout -k 1 30 \\\"\\$@\\\"\" sh \"$@\"; }\n"
    "LONG='--max-tokens 900 --ignore-eos'\n"
    "TCP=tcp://127.0.0.1:$((20000 + $$ % 10000))\n"
    "TK=\"timeout -k 1 30 ./laganctl --keys $D/client --connect $TCP\"\n";

static const struct failure rows[] = {
    { "1 the path of a model is wrong", "run --model /no/such", 78,
      "model such: /no/such: No such file or directory" },
    { "2 weights are cut short",
      "copy m; truncate -s 700000 $D/m/model.safetensors; run --model $D/m", 78,
      "model.safetensors is truncated 857848 bytes before the end of tensor model.norm.weight\n"
      "no worker could be started; exiting with 78" },
    { "2 the cause of a failed start is printed once",
      "copy m; truncate -s 700000 $D/m/model.safetensors; run --model $D/m 2>&1 | grep -c "
      "truncated",
      0, "1\n" },
    { "3 config.json is cut short", "copy m; truncate -s 100 $D/m/config.json; run --model $D/m",
      78, "config.json: line 6, column 16: premature end of input" },
    { "3 model_type is unknown",
      "copy m; sed -i 's/\"model_type\": \"[a-z0-9_]*\"/\"model_type\": \"zz\"/' $D/m/config.json; "
      "run --model $D/m",
      78, "config.json: model_type is \"zz\", only llama" },
    { "3 a shape differs",
      "copy m; sed -i 's/\"vocab_size\": [0-9]*/\"vocab_size\": 300/' $D/m/config.json; run "
      "--model $D/m",
      78, "model.embed_tokens.weight\n300" },
    { "3 there are no weights", "copy m; rm $D/m/model.safetensors; run --model $D/m", 78,
      "model.safetensors" },
    { "4 a git-lfs pointer in place of the weights",
      "copy m; printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:1\\nsize 5\\n' "
      ">$D/m/model.safetensors; run --model $D/m",
      78, "model.safetensors is a git-lfs pointer\nrun git lfs pull" },
    { "5 tokenizer.json is cut short: model verify",
      "copy m; truncate -s 700 $D/m/tokenizer.json; ./laganctl model verify $D/m", 78,
      "tokenizer.json: line\nserving ids only, no text\ncorrect the file, or remove it" },
    { "5 tokenizer.json is cut short: lagand",
      "copy m; truncate -s 700 $D/m/tokenizer.json; up --model $D/m; $K status", 7,
      "degraded\nids only, no text: the tokenizer of model m could not be loaded" },
    { "6 a folder without config.json", "mkdir $D/m; run --model $D/m", 78,
      "has no config.json; lagan needs a directory" },
    { "6 a GGUF file", ": >$D/m.gguf; run --model $D/m.gguf", 78,
      "lagan does not read GGUF files" },
    { "7 weights are larger than memory",
      "mkdir $D/m; sed 's/\"intermediate_size\": [0-9]*/\"intermediate_size\": 262144/; "
      "s/\"hidden_size\": [0-9]*/\"hidden_size\": 8192/' $M/config.json >$D/m/config.json; run "
      "--model $D/m --set weights=random:1",
      78, "do not fit" },
    { "8 kv.memory is larger than memory", "run --model $M --set kv.memory=4000GiB", 78,
      "do not fit\nlower kv.memory" },
    { "9 kv.memory is too small", "run --model $M --set kv.memory=64KiB", 78,
      "too small\nraise kv.memory" },
    { "10 the kernel kills a worker because memory ran out",
      "mkdir $D/cg; for f in 'cgroup.controllers memory' 'memory.max 1073741824' 'memory.current "
      "0' "
      "'memory.events oom_kill 0'; do echo \"${f#* }\" >$D/cg/${f%% *}; done\n"
      "up --model $M --cgroup-root $D/cg; echo oom_kill 1 >$D/cg/memory.events; kill -9 $(worker)\n"
      "i=0; until $K status | grep -q 'out of memory' || test $i -ge 100; do i=$((i + 1)); sleep "
      "0.1; done\n"
      "$K status --wait=30",
      7,
      "degraded  1 of 1 workers ready\nout of memory: cgroup / has 1024.0 MiB; the kernel killed "
      "pid \n"
      "raise the limit or lower kv.memory, then `laganctl restart w0`" },
    { "12 device cuda without CUDA",
      "needs test ! -e /dev/nvidiactl; timeout -k 1 30 ./lagand --runtime-dir $D/rt --model $M "
      "--device cuda",
      78, "device cuda" },
    { "13 two lagands with one runtime directory", "up --model $M; run --model $M", 69,
      "another lagand (pid \nuses the runtime directory" },
    { "14 the tcp port is in use",
      "keys; up --model $M --api.tcp $TCP --api.keys $D/server;"
      " timeout -k 1 30 ./lagand --runtime-dir $D/rt2 --device cpu --model $M --api.tcp $TCP "
      "--api.keys $D/server",
      69, "Address already in use\nanother program uses the port" },
    { "15 a typo, a wrong value and a missing path in lagan.yaml",
      "printf 'api:\\n  max_inflght: 3\\nmodels:\\n  - path: /x\\n    kv: { memory: lots }\\n  - "
      "name: b\\n' "
      ">$D/c.yaml; run --config $D/c.yaml",
      78,
      "c.yaml:2:16: unknown key \"api.max_inflght\"; did you mean api.max_inflight?\nc.yaml:5:19: "
      "kv.memory: \"lots\"\n"
      "/x: No such file or directory\nmodels: entry 2 has no path" },
    { "16 lagan.yaml has a tab",
      "printf 'log:\\n\\tlevel: info\\n' >$D/c.yaml; run --config $D/c.yaml", 78,
      "c.yaml:2:1: a tab indents this line; YAML allows spaces only" },
    { "16 lagan.yaml has an open bracket", "echo 'log: [1,2' >$D/c.yaml; run --config $D/c.yaml",
      78, "c.yaml:2:1: \nthe list [ that begins in line 1, column 6 is not closed" },
    { "17 a user outside the group of clients", "as_other; up --model $M; other $K status", 77,
      "this user may not use ipc:///\nrt/api.sock; members of the group lagan may" },
    { "17 a user outside the group of operators",
      "as_other; up --model $M; K=\"./laganctl --connect ipc://$D/rt/ctl.sock\"; other $K drain "
      "w0",
      77, "rt/ctl.sock; members of the group lagan-admin may" },
    { "18 a model that lagand's user may not read",
      "as_other; copy m; chmod 600 $D/m/config.json; mkdir -m 777 $D/rt; run() { other timeout "
      "30 $R "
      "\"$@\"; }\nrun --model $D/m --check && exit 1; run --model $D/m",
      77,
      "--model m: load \nm/config.json: Permission denied\nno worker could be started; exiting "
      "with 77" },
    { "18 a model in a directory that the unit hides",
      "export INVOCATION_ID=1; run --model /home/none/m", 78,
      "model m: /home/none/m: No such file or directory; lagand.service hides /home\n"
      "move the model, for example to /var/lib/lagan/models" },
    { "19 lagan-worker is missing",
      "mkdir $D/bin; cp lagand $D/bin/; $D/bin/lagand --runtime-dir $D/rt --device cpu --model $M",
      1, "the program lagan-worker is neither in\n/bin nor in /" },
    { "19 lagan-worker may not be executed",
      "mkdir $D/bin; cp lagand lagan-worker $D/bin/; chmod 644 $D/bin/lagan-worker; "
      "$D/bin/lagand --runtime-dir $D/rt --device cpu --model $M",
      77, "/lagan-worker may not be executed: Permission denied; run chmod 755 on it" },
    { "20 a worker is killed",
      "up --model $M; $K generate --text k3 $LONG --json >$D/want\n"
      "$K generate --text k3 $LONG --json >$D/got & j=$!; sleep 0.1; kill -9 $(worker); wait $j\n"
      "for f in want got; do sed 's/.*\"ids\":\\[\\([0-9,]*\\)\\].*/\\1/' $D/$f >$D/$f.ids; done\n"
      "cmp $D/want.ids $D/got.ids && $K panic",
      0, "killed: signal 9 (Killed)" },
    { "20 a worker is ended by SIGSEGV",
      "up --model $M; kill -SEGV $(worker); sleep 0.2; $K status --wait=30 >/dev/null; $K panic", 0,
      "signal: signal 11 (Segmentation fault)\nframes: " },
    { "22 standard output is full", "up --model $M; $K status >/dev/full", 1,
      "standard output could not be written completely; the disk may be full" },
    { "22 the log is on a full disk",
      "$R --set kv.memory=16MiB --model $M 2>/dev/full & pid=$!\n"
      "$K status --wait=30 >/dev/null && $K generate --text 'k3=blue;k3?'",
      0, "blue" },
    { "22 the vocabulary cache is on a full disk",
      "full 9 sh -c \"$R --model $M --set kv.memory=16MiB --set tokenizer.cache_dir=$D/full & "
      "$K status --wait=30 >/dev/null && $K generate --text 'k3=blue;k3?'; kill \\$!\"",
      0, "cannot cache the vocabulary: \n.vocab: No space left on device\nblue" },
    { "22 the runtime directory is on a full disk",
      "full 2 ./lagand --runtime-dir $D/full/rt --device cpu --model $M", 1,
      "cannot create runtime directory \nfull/rt: No space left on device" },
    { "25 reexec with a wrong file",
      "printf \"models:\\n  - path: $M\\n\" >$D/c.yaml; up --config $D/c.yaml; echo x: 1 "
      ">$D/c.yaml; $K daemon reexec",
      78, "unknown key \"x\"\nthe running lagand continues" },
    { "26 reexec with a model that cannot be opened",
      "copy m; printf \"models:\\n  - path: $M\\n\" >$D/c.yaml; up --config $D/c.yaml; rm "
      "$D/m/config.json\n"
      "printf \"models:\\n  - path: $D/m\\n\" >$D/c.yaml; $K daemon reexec; r=$?; $K status && "
      "exit $r",
      78, "has no config.json\nthe running lagand continues\n1 of 1 workers ready" },
    { "27 a changed configuration is taken by reload",
      "printf \"models:\\n  - path: $M\\n\" >$D/c.yaml; up --config $D/c.yaml\n"
      "printf \"api: { max_inflight: 2 }\\nmodels:\\n  - path: $M\\n    max_num_seqs: 4\\n\" "
      ">$D/c.yaml; $K reload",
      0, "taken: api.max_inflight\nmax_num_seqs\nreplaced: w0" },
    { "28 a wrong configuration is refused by reload",
      "printf \"models:\\n  - path: $M\\n\" >$D/c.yaml; up --config $D/c.yaml; echo x: 1 "
      ">>$D/c.yaml; $K reload",
      78, "c.yaml:3:4: unknown key \"x\"; the running lagand continues" },
    { "29 a request while all workers drain",
      "up --model $M; for i in 1 2 3 4 5 6; do $K generate --text k3 $LONG >/dev/null 2>&1 & done\n"
      "sleep 0.2; $K drain all; $K generate --text k3",
      69, "w0  draining\ndraining: \n`laganctl restart` starts a worker" },
    { "29 status while workers are drained", "up --model $M; $K drain all --wait=30; $K status", 7,
      "w0  is stopped\n`laganctl restart w0` starts it" },
    { "30 tcp without keys", "run --model $M --api.tcp $TCP", 78,
      "api.tcp is set but api.keys is not\nlaganctl keygen --help" },
    { "30 a file of keys that others can read",
      "keys; chmod 644 $D/server; run --model $M --api.tcp $TCP --api.keys $D/server", 77,
      "contains a secret and has mode 0644; run chmod 600" },
    { "30 a client's file without the key of lagand",
      "keys; sed -i /server/d $D/client; $TK status", 78,
      "needs the lines `secret KEY` and `server KEY`" },
    { "31 a file of keys that lagand's user may not read",
      "as_other; keys; mkdir -m 777 $D/rt; other timeout 30 $R --model $M --api.tcp $TCP "
      "--api.keys $D/server",
      77, "api.keys: cannot open \nPermission denied; lagand runs as user \n: chown " },
    { "31 the help of keygen names the owner of the file", "./laganctl keygen --help", 0,
      "must belong to the user of the service: chown lagan FILE" },
    { "32 the key of the client is unknown",
      "keys; sed -i /client/d $D/server; up --model $M --api.tcp $TCP --api.keys $D/server; $TK "
      "status",
      77, "does not accept the public key\nis refused: its key is not in api.keys" },
    { "33 the key of lagand is wrong",
      "keys; x=$(public $D/other); sed -i /server/d $D/client; echo \"server $x\" >>$D/client; "
      "up --model $M --api.tcp $TCP --api.keys $D/server; $TK status; r=$?; i=0\n"
      "until grep -q handshake: $D/log || test $i -ge 100; do i=$((i + 1)); sleep 0.1; done; exit "
      "$r",
      77,
      "the CURVE handshake with tcp://127.0.0.1:\nfailed: `server` of the key file is not the key "
      "of that lagand\n"
      "1 tcp connections failed the CURVE handshake" },
    { "33 no host has that name",
      "keys; ./laganctl --keys $D/client --connect tcp://no.such.host.invalid:7770 status", 3,
      "the host name no.such.host.invalid cannot be resolved" },
    { "33 no lagand listens there", "keys; $TK status", 3,
      "cannot connect to tcp://127.0.0.1:\nConnection refused" },
    { "35 a client is killed: its request ends",
      "up --model $M --api.max-inflight 4\n"
      "./laganctl --connect ipc://$D/rt/api.sock generate --text k3 --max-tokens 1000 --ignore-eos "
      ">/dev/null 2>&1 & "
      "j=$!\nsleep 0.1; kill -9 $j; i=0\n"
      "while test $i -lt 150 && $K requests list | grep -q uid:; do i=$((i + 1)); sleep 0.1; done\n"
      "$K requests list",
      0, "ID  NAME  USER  CLIENT" },
    { "36 the prompt is longer than the model's context",
      "up --model $M; $K generate --text $(head -c 3000 /dev/zero | tr '\\0' a)", 1,
      "too_long: \n1024" },
    { "37 a text of over 1 MiB ends its own request only",
      "up --model $M; { echo '{\"text\":\"k3=blue;k3?\"}'; printf '{\"text\":\"'; head -c 1048577 "
      "/dev/zero | "
      "tr '\\0' a; echo '\"}'; echo '{\"text\":\"k3=blue;k3?\"}'; } | $K generate --requests - "
      "--concurrency 3",
      1, "[0] blue\ntoo_long: text has 1048577 bytes\n[2] blue\n3 requests · 1 failed" },
    { "38 text that is not UTF-8", "up --model $M; $K generate --text $(printf 'caf\\351')", 2,
      "text is not UTF-8" },
    { "39 lines of --requests that are not UTF-8 or no JSON",
      "up --model $M; printf '{\"text\":\"a\\351\"}\\n{x\\n{\"text\":\"k3=b;k3?\"}\\n' | $K "
      "generate --requests -",
      1, "-: line 1: column \n-: line 2: column \n[2] b" },
    { "40 an unknown key as an option", "up --model $M; $K generate --text k3 --max-token 4", 2,
      "did you mean max_tokens?" },
    { "40 an unknown key in a line of --requests",
      "up --model $M; echo '{\"text\":\"k3\",\"temprature\":1}' | $K generate --requests -", 1,
      "-: line 1: unknown request key \"temprature\"; did you mean temperature?" },
    { "41 a conversation without a template", "up --model $M; echo hi | $K chat", 5,
      "the checkpoint has no chat template; set the option chat_template" },
    { "41 text without a tokenizer",
      "copy m; rm $D/m/tokenizer.json; up --model $D/m; $K generate --text k3", 5,
      "unsupported: \ntokenizer" },
    { "42 the queue is full", /* a worker gets 256 sequences beyond its slots */
      "up --model $M --set max_num_seqs=1 --scheduler.max-num-queued-reqs 1 --api.max-inflight "
      "400; "
      "for i in $(seq 400); do echo '{\"text\":\"k3\",\"max_tokens\":32,\"ignore_eos\":true}'; "
      "done | "
      "$K generate --requests - --concurrency 400",
      75, "queue_full: 1 requests are queued; scheduler.max_num_queued_reqs is 1" },
    { "42 a key's limit of open requests",
      "keys; up --model $M --api.tcp $TCP --api.keys $D/server\n"
      "$TK generate --text k3 $LONG --n 8 --temperature 1 >/dev/null 2>&1 & i=0\n"
      "until $K requests list | grep -q key:alice || test $i -ge 100; do i=$((i + 1)); done; $TK "
      "generate --text k3",
      75, "queue_full: user key:alice has 1 open requests, which is its limit" },
    { "42 a deadline", "up --model $M; $K generate --text k3 $LONG --deadline-ms 1", 6,
      "deadline: the deadline of the request passed" },
    { "43 an endpoint is a path", "./laganctl --connect /run/lagan/api.sock status", 2,
      "\"/run/lagan/api.sock\" is a path; the endpoint of that socket is "
      "ipc:///run/lagan/api.sock" },
    { "43 an endpoint without tcp", "./laganctl --connect 127.0.0.1:7770 status", 2,
      "\"127.0.0.1:7770\" is not an endpoint; expected tcp://127.0.0.1:7770" },
    { "43 an endpoint of HTTP", "./laganctl --connect http://127.0.0.1:8000 status", 2,
      "lagand does not speak HTTP" },
    { "44 the folder of the model is away when its worker is replaced",
      "copy m; up --model $D/m; mv $D/m $D/away; kill -9 $(worker); i=0\n"
      "until $K status | grep 'will be started' || test $i -ge 50; do i=$((i + 1)); sleep 0.1; "
      "done\n"
      "$K status; r=$?\n"
      "mv $D/away $D/m; $K status --wait=30 && exit $r",
      7, "config.json\nw0 will be started again\n1 of 1 workers ready" },
};

/* Rows that need a cgroup, a lagand below systemd or a wrong client: the test that provokes it. */
static const struct {
    const char *what, *file, *test;
} elsewhere[] = {
    { "21 a prompt that kills its workers", "tests/daemon/test_deaths.c",
      "request_that_crashes_workers_is_poisoned_and_others_finish" },
    { "18 lagand --check as root, for the user of the unit", "tests/daemon/check.sh",
      "config.json: Permission denied" },
    { "23 another version of the protocol", "tests/daemon/test_lagand.c",
      "hello_of_other_versions_is_refused_with_both_ranges" },
    { "22 the log is not read", "tests/base/test_log.c",
      "unread_pipe_drops_lines_and_reports_their_number" },
    { "24 kill -9 of lagand", "tests/daemon/test_reexec.c",
      "requests_of_a_killed_lagand_continue_without_resubmission" },
    { "34 tcp on an address", "tests/daemon/test_tcp_server.c",
      "tcp_on_an_address_needs_no_netlink_socket" },
    { "10 several OOM kills", "tests/daemon/test_supervisor.c",
      "oom_kills_back_off_and_fail_after_ten" },
    { "11 OOM kills while a worker loads", "tests/daemon/test_deaths.c",
      "oom_kills_while_loading_end_requests_with_out_of_memory" },
};

static void
failure_is_reported(void **state)
{
    static char out[1 << 16];
    const struct failure *f = *state;
    char dir[] = "/tmp/lagan-failure-XXXXXX", *command = NULL;
    int status, n;
    FILE *p;

    assert_non_null(mkdtemp(dir));
    n = asprintf(&command, "SRC=%s; D=%s; { %s%s\n} </dev/null >%s/out 2>&1", source_path("."), dir,
                 prelude, f->script, dir);
    assert_true(n > 0);
    status = system(command);
    free(command);
    n = asprintf(&command, "cat %s/out %s/log 2>/dev/null; rm -rf %s", dir, dir, dir);
    assert_true(n > 0);
    p = popen(command, "r");
    assert_non_null(p);
    out[fread(out, 1, sizeof out - 1, p)] = 0;
    pclose(p);
    free(command);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) skip();
    if (!WIFEXITED(status) || WEXITSTATUS(status) != f->code)
        fail_msg("status 0x%x instead of exit code %d: %s", status, f->code, out);
    for (const char *w = f->words; *w;) {
        char words[200];
        size_t len = strcspn(w, "\n");

        snprintf(words, sizeof words, "%.*s", (int)len, w);
        if (!strstr(out, words)) fail_msg("no '%s' in %s", words, out);
        w += len + (w[len] == '\n');
    }
}

static void
other_failures_have_a_test_of_that_name(void **state)
{
    static char text[1 << 18];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(elsewhere); i++) {
        FILE *f = fopen(source_path(elsewhere[i].file), "re");

        assert_non_null(f);
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        fclose(f);
        if (!strstr(text, elsewhere[i].test))
            fail_msg("%s: %s has no test %s", elsewhere[i].what, elsewhere[i].file,
                     elsewhere[i].test);
    }
}

int
main(int argc, char **argv)
{
    static struct CMUnitTest tests[MAX_ROWS] = {
        cmocka_unit_test(other_failures_have_a_test_of_that_name),
    };
    size_t n = 1;

    serve_args(argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        tests[n++] = (struct CMUnitTest){ .name = rows[i].what,
                                          .test_func = failure_is_reported,
                                          .initial_state = (void *)(uintptr_t)&rows[i] };
    return _cmocka_run_group_tests("failures", tests, n, NULL, NULL);
}

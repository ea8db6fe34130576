/* workers.c - laganctl workers list, status, drain and restart: prints the states of workers, stops
 * or restarts a worker, and waits for that (--wait). */
#include "ctl/ctl.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define ASK_EVERY (100 * NSEC_MS)
/* limit of --wait alone for the socket of a lagand that starts; its models are loaded later */
#define SOCKET_WITHIN (10 * NSEC_S)

struct wait_opts {
    uint32_t wait; /* seconds; 0: no limit */
};

/* clang-format off */
const struct opt status_wait_opts[] = { /* the first row sets ctl->first_given */
    { "wait", OPT_U32, OPT_AT(wait_opts, wait), "0", .max = 86400, .flags = OPT_BARE,
      .arg = "SECONDS",
      .sentence = "first wait until every worker is ready, at most this many seconds; 0 or --wait "
      "alone: no limit. A worker that has failed or is stopped ends the wait. lagand itself may "
      "also be starting: --wait alone waits 10 s for its socket" },
    { 0 }
};
const struct opt order_wait_opts[] = {
    { "wait", OPT_U32, OPT_AT(wait_opts, wait), "0", .max = 86400, .flags = OPT_BARE,
      .arg = "SECONDS",
      .sentence = "wait until the workers are stopped (drain) or ready again (restart), at most "
      "this many seconds; 0 or --wait alone: no limit; exit code 6 if the time is over" },
    { 0 }
};
/* clang-format on */

/* ---- tables */

/* Adds a cell with the used share of each pool, as "62% / 48%". */
static void
cell_kv(struct table *t, const json_t *worker, const char *key)
{
    json_t *pools = json_object_get(worker, key), *p;
    char buf[64] = "-";
    size_t i, at = 0;

    json_array_foreach(pools, i, p)
    {
        long long blocks = json_number(p, "blocks");

        at += (size_t)snprintf(buf + at, sizeof buf - at, "%s%lld%%", i ? " / " : "",
                               blocks ? 100 * json_number(p, "used") / blocks : 0);
        if (at + 16 > sizeof buf) break;
    }
    table_cell(t, true, "%s", buf);
}

/* Adds a cell with the state of a worker and of its standby process, as "ready, standby", or
 * "loading 37%" once the number of bytes to load is known. */
static void
cell_state(struct table *t, const json_t *worker, const char *key)
{
    const json_t *load = json_object_get(worker, "load");
    const char *state = json_word(worker, key);
    const char *standby = json_string_of(worker, "standby");
    long long total = json_number(load, "total");

    if (!strcmp(state, "loading") && total > 0)
        table_cell(t, false, "loading %lld%%", 100 * json_number(load, "done") / total);
    else
        table_cell(t, false, "%s%s%s", state, *standby ? ", " : "", standby);
}

static void
cell_arenas(struct table *t, const json_t *worker, const char *key)
{
    json_t *a;
    long long sum = 0;
    char buf[32];
    size_t i;

    json_array_foreach(json_object_get(worker, key), i, a) sum += json_number(a, "bytes");
    table_cell(t, true, "%s", text_bytes(buf, sizeof buf, (double)sum));
}

/* Adds "-", not 0, if the worker has no process: kill 0 signals one's own process group. */
static void
cell_pid(struct table *t, const json_t *o, const char *key)
{
    if (json_number(o, key))
        cell_number(t, o, key);
    else
        table_cell(t, true, "-");
}

/* Adds the other ranks of a rank group below rank 0. */
static void
add_ranks(struct table *t, const json_t *worker)
{
    json_t *r;
    size_t i;

    json_array_foreach(json_object_get(worker, "ranks"), i, r)
    {
        cell_word(t, r, "name");
        cell_pid(t, r, "pid");
        table_cell(t, false, "rank %zu", i + 1);
        for (int k = 0; k < 2; k++) table_cell(t, false, "%s", "");
        for (int k = 0; k < 3; k++) table_cell(t, true, "%s", "");
        cell_bytes(t, r, "bytes");
        table_cell(t, true, "%s", "");
    }
}

static void
print_workers(const json_t *workers)
{
    static const struct column columns[] = {
        { "WORKER", "name", cell_word },
        { "PID", "pid", cell_pid },
        { "MODEL", "model", cell_word },
        { "DEVICE", "device", cell_word },
        { "STATE", "state", cell_state },
        { "RUNNING", "running", cell_number },
        { "WAITING", "waiting", cell_number },
        { "KV USED", "kv", cell_kv },
        { "ARENAS", "arenas", cell_arenas },
        { "RESTARTS", "restarts", cell_number },
        { 0 },
    };
    struct table *t = table_new(columns);
    json_t *w;
    size_t i;

    json_array_foreach(workers, i, w)
    {
        table_row(t, w);
        add_ranks(t, w);
    }
    table_print(t);
    json_array_foreach(workers, i, w)
    {
        const char *why = json_string_of(w, "why");
        const char *name = json_word(w, "name"), *state = json_word(w, "state");

        if (*why) printf("%s: %s\n", name, why);
        if (!strcmp(json_word(w, "text"), "fault"))
            printf("%s: ids only, no text: the tokenizer of model %s could not be loaded; "
                   "`laganctl model verify DIR` prints why\n",
                   name, json_word(w, "model"));
        if (!strcmp(state, "failed"))
            printf("%s is not started again automatically; `laganctl restart %s` starts it\n", name,
                   name);
        else if (!strcmp(state, "down"))
            printf("%s stays stopped; `laganctl restart %s` starts it\n", name, name);
        else if (!strcmp(state, "backoff"))
            printf("%s will be started again; `laganctl restart %s` starts it now; `laganctl "
                   "panic` has its panic message\n",
                   name, name);
    }
}

/* ---- waiting */

/* Returns when the wait of this command ends: NSEC_NEVER without a limit, 0 without --wait. */
static nsec
wait_until(const struct ctl *ctl)
{
    const struct wait_opts *o = ctl->opts;

    if (!ctl->first_given) return 0;
    return o->wait ? clock_after(clock_now(), o->wait * NSEC_S) : NSEC_NEVER;
}

/* Sleeps for ASK_EVERY. Returns 0, or an exit code: the time is over, or a signal has arrived. */
static int
sleep_once(nsec until, const char *what)
{
    nanosleep(&(struct timespec){ 0, ASK_EVERY }, NULL);
    if (!ctl_signal && clock_now() < until) return 0;
    progress_line(NULL);
    return ctl_signal ? 128 + ctl_signal
                      : ctl_fail(CTL_TIMEOUT, "%s within the time of --wait", what);
}

static bool
is_final(const json_t *worker) /* no process comes without an operator */
{
    const char *state = json_word(worker, "state");

    return !strcmp(state, "down") || !strcmp(state, "failed") || !strcmp(state, "lost");
}

/* Shows the first worker of the array that is neither ready nor final. Returns false: there is
 * none. */
static bool
show_pending(const json_t *workers)
{
    json_t *w;
    size_t i;

    json_array_foreach(workers, i, w)
    {
        const json_t *load = json_object_get(w, "load");
        long long total = json_number(load, "total");
        const char *state = json_word(w, "state");

        if (!strcmp(state, "ready") || is_final(w)) continue;
        if (!strcmp(state, "loading") && total)
            progress_line("%s loading, %lld%%", json_word(w, "name"),
                          100 * json_number(load, "done") / total);
        else
            progress_line("%s %s, %lld requests", json_word(w, "name"), state,
                          json_number(w, "running") + json_number(w, "waiting"));
        return true;
    }
    return false;
}

/* ---- workers list, status */

int
cmd_workers(struct ctl *ctl)
{
    json_t *workers;
    int r = ctl_ask(ctl, "workers list", NULL, ctl->json, &workers);

    if (workers) print_workers(workers);
    json_decref(workers);
    return r;
}

static void
print_status(const json_t *s)
{
    json_t *workers = json_object_get(s, "workers"), *w;
    size_t i, n_ready = 0;
    char up[32];

    json_array_foreach(workers, i, w) n_ready += !strcmp(json_word(w, "state"), "ready");
    printf("lagand %s  pid %lld  up %s  %s  %zu of %zu workers ready\n", json_word(s, "version"),
           json_number(s, "pid"), text_duration(up, sizeof up, json_real_number(s, "uptime_s")),
           json_word(s, "state"), n_ready, json_array_size(workers));
    printf("requests %lld of %lld\n\n", json_number(s, "requests"), json_number(s, "max_requests"));
    print_workers(workers);
}

static int
exit_of_state(const char *state)
{
    static const struct {
        const char *state;
        int code;
    } codes[] = { { "ready", CTL_OK },
                  { "degraded", CTL_DEGRADED },
                  { "starting", CTL_UNAVAILABLE },
                  { "draining", CTL_UNAVAILABLE } };
    size_t i = 0;

    while (i < ARRAY_LEN(codes) && strcmp(state, codes[i].state)) i++;
    return i < ARRAY_LEN(codes) ? codes[i].code : CTL_FAILED;
}

/* Connects; with --wait again and again, until lagand listens or the wait ends. */
static int
connect_until(struct ctl *ctl, nsec until)
{
    nsec end = until == NSEC_NEVER ? clock_after(clock_now(), SOCKET_WITHIN) : until;

    while (clock_now() < end && !ctl_signal && !ctl_may_listen(ctl)) {
        progress_line("waiting for lagand at %s", ctl->endpoint);
        nanosleep(&(struct timespec){ 0, ASK_EVERY }, NULL);
    }
    progress_line(NULL);
    return ctl_signal ? 128 + ctl_signal : ctl_connect(ctl, &ctl->api, /* privileged= */ false);
}

int
cmd_status(struct ctl *ctl)
{
    nsec until = wait_until(ctl);
    char *reply;
    json_t *s = NULL;
    int r = ctl->api ? 0 : connect_until(ctl, until);

    while (r == 0) {
        const char *state;

        json_decref(s);
        r = ctl_call(ctl, "status", NULL, &reply);
        if (r) return r;
        s = json_loads(reply, 0, NULL); /* for the exit code, also with --json */
        if (!s)
            return free(reply), ctl_fail(CTL_FAILED, "the reply of lagand to status is not JSON");
        state = json_word(s, "state");
        if (!until || !show_pending(json_object_get(s, "workers")) || !strcmp(state, "draining")) {
            progress_line(NULL);
            if (ctl->json)
                puts(reply);
            else
                print_status(s);
            free(reply);
            r = exit_of_state(state);
            break;
        }
        free(reply);
        r = sleep_once(until, "not every worker was ready");
    }
    json_decref(s);
    return r;
}

/* ---- drain, restart */

struct order {
    struct ctl *ctl;
    const char *verb;
    json_t *before; /* the workers as they were before the order */
    bool silent;    /* with --wait and --json only the last state is printed */
};

static int
order(struct order *o, const char *worker)
{
    json_t *done, *args = json_pack("{s:o}", "worker", json_stringn(worker, strlen(worker)));
    int r = ctl_ask(o->ctl, o->verb, args, o->ctl->json && !o->silent, &done);

    if (done && !o->silent) {
        if (!strcmp(json_word(done, "state"), "down"))
            printf("%s  is stopped\n", worker);
        else if (!strcmp(json_word(done, "state"), "loading"))
            printf("%s  starting\n", worker);
        else
            printf("%s  %sing, %lld requests to finish\n", worker, o->verb,
                   json_number(done, "requests"));
    }
    json_decref(done);
    return r;
}

static json_t *
worker_of(const json_t *workers, const char *name)
{
    json_t *w;
    size_t i;

    json_array_foreach(workers, i, w) if (!strcmp(json_word(w, "name"), name)) return w;
    return NULL;
}

/* Returns true if the order has taken effect on worker w, or cannot any more. */
static bool
is_done(const struct order *o, const json_t *w)
{
    bool replaced = json_number(w, "epoch") >
                    json_number(worker_of(o->before, json_word(w, "name")), "epoch");

    if (!strcmp(o->verb, "drain")) return is_final(w);
    return is_final(w) || (replaced && !strcmp(json_word(w, "state"), "ready"));
}

static int
print_order(const struct order *o, const json_t *w)
{
    const char *name = json_word(w, "name"), *state = json_word(w, "state");
    const char *why = json_string_of(w, "why");
    bool drained = !strcmp(o->verb, "drain") && !strcmp(state, "down");

    if (o->ctl->json)
        print_json(w);
    else if (drained || !is_final(w))
        printf("%s  %s\n", name, drained ? "is stopped" : "is ready");
    if (drained || !is_final(w)) return 0;
    return ctl_fail(CTL_FAILED, "worker %s is %s: %s", name, state,
                    *why ? why : "`laganctl panic` may have the reason");
}

/* Waits until the order has taken effect on the named worker, or on all. */
static int
wait_done(struct order *o, const char *name, nsec until)
{
    bool all = !strcmp(name, "all");
    int r = 0;

    while (r == 0) {
        json_t *now, *left = json_array(), *w;
        size_t i;

        r = ctl_ask(o->ctl, "workers list", NULL, /* json= */ false, &now);
        json_array_foreach(now, i, w) if ((all || !strcmp(json_word(w, "name"), name)) &&
                                          !is_done(o, w)) json_array_append(left, w);
        if (r == 0 && !json_array_size(left)) {
            progress_line(NULL);
            json_array_foreach(now, i, w) if (all || !strcmp(json_word(w, "name"), name))
                r = ctl_worst(r, print_order(o, w));
            json_decref(left);
            json_decref(now);
            return r;
        }
        show_pending(left);
        json_decref(left);
        json_decref(now);
        if (r == 0) r = sleep_once(until, "not every worker was done");
    }
    progress_line(NULL);
    return r;
}

/* Runs drain or restart, for one worker or for all. */
int
cmd_order(struct ctl *ctl)
{
    struct order o = { .ctl = ctl, .verb = ctl->command->words };
    const char *name = *ctl->argv;
    nsec until = wait_until(ctl);
    json_t *w;
    size_t i;
    int r = 0;

    o.silent = until && ctl->json;
    if (until || !strcmp(name, "all"))
        r = ctl_ask(ctl, "workers list", NULL, /* json= */ false, &o.before);
    if (strcmp(name, "all") && r == 0) r = order(&o, name);
    if (!strcmp(name, "all"))
        json_array_foreach(o.before, i, w) r = ctl_worst(r, order(&o, json_word(w, "name")));
    if (until && r == 0) r = wait_done(&o, name, until);
    json_decref(o.before);
    return r;
}

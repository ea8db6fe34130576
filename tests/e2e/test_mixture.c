/* test_mixture.c - with any settings and under any disturbance an output is the same as alone.
 *
 * Each draw is a model, the settings that the results depend on, and requests with random keys.
 * First the requests run one after the other on a worker with enough memory, no cache and one lane.
 * Then they run all at once on workers with random settings: little memory, any policy, lanes, a
 * cache, a host tier, blocks of any size. Meanwhile the test cancels requests, stops reading,
 * closes connections, flushes the cache, changes the partition, replaces workers, and stops or
 * kills processes, also lagand. Some rounds run again with the cache of the first. Outputs and
 * finish reasons must be equal to the bit; an interrupted output is a prefix. At the end no block
 * is used and no worker has died by itself.
 *
 * --draws N runs more than `make check` has time for; --first K starts with another draw;
 * --model NAME selects one model; --device as in every test of this folder.
 */
#include "base/clock.h"
#include "tests/e2e/random_mix.h"
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIXTURES = 3 /* workers with random settings for one draw */, READERS = 3, BLOCK = 64 };

static uint32_t n_draws = 2, first_draw;
static const char *only_model;
static struct ask ask[REQUESTS];
static uint64_t longest; /* bytes of KV blocks that one request may take, about */

/* Counts of what happened. */
static struct counted {
    unsigned long long asked, cut, lost, refused, cached, adopted, preemptions, moved, kills,
        lagand_kills, reloads, flushes, impossible;
} counted;

/* ---- what is served */

struct served {
    struct serve s;
    struct lagan *c[READERS], *ctl;
    char ctl_endpoint[112];
    const struct model *m;
    const struct settings *set;
    struct systemd systemd;
    uint32_t kills, changes; /* processes that were killed, programs that were replaced */
};

static char *
call(struct served *v, const char *verb, const char *args)
{
    char *reply = NULL;
    uint32_t code;

    if (lagan_call(v->ctl, verb, args, &reply, &code, 500) == 0) return reply;
    free(reply);
    return NULL;
}

/* Returns true if lagand has ended by itself, because no worker of these settings can start. */
static bool
lagand_ended(struct served *v)
{
    int status;

    if (!v->s.pid || waitpid(v->s.pid, &status, WNOHANG) != v->s.pid) return !v->s.pid;
    assert_true(WIFEXITED(status));
    v->s.pid = 0;
    return true;
}

/* 1: ready; -1: lagand has ended, or will. */
static int
look(struct served *v)
{
    char *reply;
    int r = 0;

    if (lagand_ended(v)) return -1;
    if (!v->ctl && lagan_open(&v->ctl, v->ctl_endpoint, 200) < 0) return 0;
    reply = call(v, "workers list", NULL);

    if (reply && strstr(reply, "\"ready\"")) r = 1;
    if (reply && strstr(reply, "\"failed\"")) r = -1;
    free(reply);
    return r;
}

/* Returns false if no worker can start with these settings. */
static bool
serve_drawn(struct served *v, const struct model *m, const struct settings *s)
{
    int r = 0;

    memset(v, 0, sizeof *v);
    v->m = m;
    v->set = s;
    serve_folder(&v->s);
    systemd_open(&v->systemd, v->s.dir);
    serve_lagand(&v->s, m->path, s->set, &v->systemd);
    snprintf(v->ctl_endpoint, sizeof v->ctl_endpoint, "ipc://%s/ctl.sock", v->s.dir);
    for (int i = 0; i < 6000 && !(r = look(v)); i++) usleep(5000);
    if (r == 0) fail_msg("%s is neither ready nor refused", m->path);
    for (int i = 0; i < 2000 && r < 0 && !lagand_ended(v); i++) usleep(5000);
    assert_true(r > 0 || !v->s.pid);
    for (uint32_t i = 0; i < READERS && r > 0; i++)
        assert_int_equal(lagan_open(&v->c[i], v->s.endpoint, 20000), 0);
    return r > 0;
}

static void
serve_end(struct served *v)
{
    char command[300];

    for (uint32_t i = 0; i < READERS; i++) lagan_close(v->c[i]);
    lagan_close(v->ctl);
    systemd_close(&v->systemd);
    if (v->s.pid) {
        serve_stop(&v->s);
        return;
    }
    snprintf(command, sizeof command, "tail -n 2 '%s' >&2; rm -rf '%s' '%s'", v->s.log, v->s.dir,
             v->s.log);
    assert_int_equal(system(command), 0);
}

static void
print_failure(struct served *v, const struct settings *s, const struct ask *a)
{
    char line[400], *panic = call(v, "panic", NULL);
    FILE *f = fopen(v->s.log, "re");

    for (uint32_t i = 0; i < s->n; i++) print_message(" %s", s->text[i]);
    print_message("\n%s\n", panic ? panic : "");
    while (f && fgets(line, sizeof line, f))
        if (!strstr(line, "by an operator") && !strstr(line, "serving ids only"))
            print_message("  %s", line);
    if (f) fclose(f);
    if (a) print_message("request %td:%s\n", a - ask, a->line);
    free(panic);
}

/* ---- asked alone, and in the mixture */

static struct ask *
next(struct served *v, uint32_t reader, int ms)
{
    struct lagan_event ev = { .size = sizeof ev };
    int r = lagan_next(v->c[reader], &ev, ms);

    assert_true(r >= 0);
    if (r == 0) return NULL;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        if (ask[i].id != ev.id || ask[i].reader != reader || ask[i].got.over) continue;
        mix_take(&ask[i], &ev);
        return &ask[i];
    }
    print_failure(v, v->set, NULL);
    fail_msg("reader %u: event %u of %llu, which is not under way: %s", reader, ev.kind,
             (unsigned long long)ev.id, ev.message ? ev.message : "");
    return NULL;
}

/* Returns the bytes of all groups' blocks for n_tokens; recurrent state counts as eight blocks. */
static uint64_t
bytes_of(struct served *v, uint32_t n_tokens)
{
    char *reply = call(v, "kv pools", NULL);
    json_t *list = reply ? json_loads(reply, 0, NULL) : NULL, *group;
    uint64_t bytes = 0;
    size_t k;

    json_array_foreach(list, k, group)
    {
        uint64_t block = (uint64_t)json_integer_value(json_object_get(group, "bytes"));
        bool state = !strcmp(json_string_value(json_object_get(group, "kind")), "state");

        bytes += state ? 8 * block : block * n_tokens / BLOCK;
    }
    json_decref(list);
    free(reply);
    assert_true(bytes > 0);
    return bytes;
}

static void
ask_alone(const struct model *m, const struct settings *numbers)
{
    struct settings s;
    uint32_t most = 0;
    struct served v;

    mix_copy(&s, numbers);
    mix_set(&s, "kv.memory=64MiB");
    mix_set(&s, "kv.tokens_per_block=%u", BLOCK);
    mix_set(&s, "max_num_seqs=8");
    mix_set(&s, "threads=1");
    if (!serve_drawn(&v, m, &s)) {
        print_failure(&v, &s, NULL);
        fail_msg("%s cannot be served", m->path);
    }
    for (uint32_t i = 0; i < REQUESTS; i++) most = MAX(most, ask[i].n_prompt + ask[i].max_tokens);
    longest = bytes_of(&v, most);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        memset(&ask[i].got, 0, sizeof ask[i].got);
        ask[i].reader = 0;
        if (ask[i].after) mix_continue(&ask[i], &ask[ask[i].after - 1]);
        assert_int_equal(lagan_submit(v.c[0], ask[i].r, &ask[i].id), 0);
        while (!ask[i].got.over) {
            if (next(&v, 0, 60000)) continue;
            print_failure(&v, &s, &ask[i]);
            fail_msg("nothing for a minute");
        }
        ask[i].alone = ask[i].got;
    }
    serve_end(&v);
}

/* Returns the sum of a statistic of the running workers. */
static uint64_t
number_of(struct served *v, const char *key)
{
    char *reply = call(v, "workers list", NULL);
    json_t *list = reply ? json_loads(reply, 0, NULL) : NULL, *of;
    uint64_t n = 0;
    size_t k;

    json_array_foreach(list, k, of)
    {
        if (!json_object_get(of, key)) of = json_object_get(of, "stats");
        n += (uint64_t)json_integer_value(json_object_get(of, key));
    }
    json_decref(list);
    free(reply);
    return n;
}

/* Draws a child of lagand: a worker, a rank or a standby. 0: there is none. */
static pid_t
draw_process(const struct served *v)
{
    uint32_t n = 0;
    pid_t pid[64];
    char path[64];
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)v->s.pid, (int)v->s.pid);
    f = fopen(path, "re");
    while (f && n < ARRAY_LEN(pid) && fscanf(f, "%d", &pid[n]) == 1) n++;
    if (f) fclose(f);
    return n ? pid[test_below(n)] : 0;
}

static void
kill_one(struct served *v)
{
    pid_t pid = draw_process(v);

    if (v->kills >= 3 || pid <= 1) return;
    if (mix_one_in(3)) { /* stops it for less than the heartbeat timeout */
        kill(pid, SIGSTOP);
        usleep(1000 * (1 + test_below(300)));
        kill(pid, SIGCONT);
    } else if (kill(pid, SIGKILL) == 0) {
        v->kills++;
        counted.kills++;
    }
}

/* Kills lagand and starts another one, like systemd. */
static void
replace_lagand(struct served *v)
{
    if (v->kills >= 3) return;
    v->kills++;
    counted.lagand_kills++;
    kill(v->s.pid, SIGKILL);
    waitpid(v->s.pid, NULL, 0);
    serve_lagand(&v->s, v->m->path, v->set->set, &v->systemd);
}

/* Replaces a connection; its requests end. Returns their number. */
static uint32_t
leave(struct served *v)
{
    uint32_t reader = test_below(READERS), n = 0;

    lagan_close(v->c[reader]);
    assert_int_equal(lagan_open(&v->c[reader], v->s.endpoint, 20000), 0);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        if (!ask[i].id || ask[i].reader != reader || ask[i].got.over) continue;
        ask[i].cancelled = ask[i].got.over = true;
        ask[i].got.error = LAGAN_E_CANCELLED;
        n++;
    }
    return n;
}

/* Replaces a worker, all workers or lagand. */
static void
change(struct served *v)
{
    static const char *const verb[] = { "restart", "reload", "daemon reexec" };
    uint32_t k = test_below(v->set->lagand_restarts ? 3 : 2);

    free(call(v, verb[k], k ? NULL : "{\"worker\":\"w0\"}"));
    counted.reloads++;
    v->changes++;
}

/* Disturbs the service in one random way. Returns the number of requests that it ended at once. */
static uint32_t
disturb(struct served *v)
{
    char args[80];

    switch (test_below(10)) {
    case 0: {
        struct ask *a = &ask[test_below(REQUESTS)];

        if (!a->id || a->got.over || !mix_one_in(3)) break;
        a->cancelled = true;
        lagan_cancel(v->c[a->reader], a->id);
        break;
    }
    case 1:
    case 2:
        free(call(v, "kv flush", NULL));
        counted.flushes++;
        break;
    case 3:
        free(call(v, "split off", NULL));
        break;
    case 4:
        free(call(v, "split auto", NULL));
        break;
    case 5:
        snprintf(args, sizeof args, "{\"prefill_units\":%u,\"decode_units\":%u}", mix_share(),
                 mix_share());
        free(call(v, "split set", args));
        break;
    case 6:
        if (mix_one_in(2)) kill_one(v);
        break;
    case 7:
        if (mix_one_in(6)) return leave(v);
        break;
    case 8:
        if (v->set->lagand_restarts && mix_one_in(12)) replace_lagand(v);
        break;
    default:
        if (mix_one_in(6)) change(v);
    }
    return 0;
}

/* Returns true if no block is used within 10 s. */
static bool
all_blocks_are_free(struct served *v)
{
    for (int i = 0; i < 200; i++) {
        char *reply = call(v, "kv stats", NULL);
        json_t *list = reply ? json_loads(reply, 0, NULL) : NULL, *pool;
        json_int_t used = json_array_size(list) ? 0 : 1;
        size_t k;

        json_array_foreach(list, k, pool) used += json_integer_value(json_object_get(pool, "used"));
        json_decref(list);
        free(reply);
        if (used == 0) return true;
        usleep(50000);
    }
    return false;
}

/* Returns the number of workers that died by themselves. A worker that a busy machine delayed
 * too long counts as silent. */
static uint32_t
died(struct served *v)
{
    char *reply = call(v, "panic", NULL);
    json_t *list = reply ? json_loads(reply, 0, NULL) : NULL, *one;
    uint32_t n = 0;
    size_t k;

    json_array_foreach(list, k, one)
    {
        const char *cause = json_string_value(json_object_get(one, "cause"));

        n += !cause || (strcmp(cause, "killed") && strcmp(cause, "silent"));
    }
    json_decref(list);
    free(reply);
    return n;
}

/* Returns true if a worker rejected a manifest. */
static bool
manifest_was_rejected(const struct served *v)
{
    FILE *f = fopen(v->s.log, "re");
    bool rejected = false;
    char line[400];

    while (f && fgets(line, sizeof line, f))
        rejected = rejected || strstr(line, "the manifest has ");
    if (f) fclose(f);
    return rejected;
}

/* Draws the order of the requests. */
static void
draw_order(uint32_t order[REQUESTS])
{
    for (uint32_t i = 0; i < REQUESTS; i++) order[i] = i;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        uint32_t k = i + test_below(REQUESTS - i), o = order[i];

        order[i] = order[k];
        order[k] = o;
    }
}

/* Reads one event of each reader that is not suspended. Returns true if there was one; adds the
 * ended requests to n_over. */
static bool
read_some(struct served *v, uint32_t still[READERS], uint32_t *n_over)
{
    bool came = false;

    for (uint32_t r = 0; r < READERS; r++) {
        struct ask *a = NULL;

        if (still[r]) {
            still[r]--;
            continue;
        }
        if (mix_one_in(150)) still[r] = test_below(mix_one_in(8) ? 1000 : 200);
        a = next(v, r, 1);
        came = came || a;
        *n_over += a && a->got.over;
    }
    return came;
}

static void
fail_drawn(struct served *v, const struct model *m, const struct settings *s, const struct ask *a,
           const char *why)
{
    print_failure(v, s, a);
    fail_msg("%s: %s", m->path, why);
}

static void
check_results(struct served *v, const struct model *m, const struct settings *s, bool undisturbed)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        const struct result *g = &ask[i].got;
        const char *why;

        ask[i].resubmitted = ask[i].may_be_lost && (v->kills || v->changes);
        why = mix_difference(&ask[i]);
        counted.asked++;
        counted.cached += g->cached;
        counted.adopted += g->adopted;
        counted.cut += g->error == LAGAN_E_CANCELLED || g->error == LAGAN_E_DEADLINE;
        if (!why) continue;
        if (ask[i].resubmitted && g->error == LAGAN_E_WORKER_LOST) {
            counted.lost++;
            continue;
        }
        /* A prompt that fits one worker may not fit another. */
        if ((g->error != LAGAN_E_TOO_LONG && g->error != LAGAN_E_INVALID_REQUEST) ||
            g->output[0].n != ask[i].n_done)
            fail_drawn(v, m, s, &ask[i], why);
        counted.refused++;
    }
    /* Adopted blocks of a dead worker stay until their memory is needed. */
    if (undisturbed && !all_blocks_are_free(v))
        fail_drawn(v, m, s, NULL, "blocks are used without a request");
    if (died(v)) fail_drawn(v, m, s, NULL, "a worker died by itself");
    if (manifest_was_rejected(v)) fail_drawn(v, m, s, NULL, "a worker rejected a manifest");
}

/* Runs all requests at once and checks the results. */
static void
ask_at_once(struct served *v, const struct model *m, const struct settings *s)
{
    uint32_t asked = 0, over = 0, still[READERS] = { 0 }, order[REQUESTS];
    uint32_t gap = mix_one_in(2) ? 1 : 1 + test_below(8),
             harm = mix_one_in(3) ? 0 : 5u << test_below(6);
    nsec last_event = clock_now();

    mix_ask_again(ask);
    draw_order(order);
    while (over < REQUESTS) {
        while (asked < REQUESTS && mix_one_in(gap)) {
            struct ask *a = &ask[order[asked++]];

            if (!a->key || mix_one_in(2)) a->reader = test_below(READERS);
            assert_int_equal(lagan_submit(v->c[a->reader], a->r, &a->id), 0);
        }
        if (read_some(v, still, &over) || asked < REQUESTS) last_event = clock_now();
        if (harm && mix_one_in(harm)) over += disturb(v);
        if (clock_now() - last_event > 60 * NSEC_S) {
            for (uint32_t i = 0; i < REQUESTS; i++)
                if (!ask[i].got.over) print_message("open %u:%s\n", i, ask[i].line);
            fail_drawn(v, m, s, NULL, "nothing for a minute");
        }
    }
    check_results(v, m, s, !v->kills && !v->changes && !number_of(v, "restarts"));
}

static void
ask_mixed(const struct model *m, const struct settings *s)
{
    uint32_t rounds = 1 + mix_one_in(3);
    struct served v;

    if (!serve_drawn(&v, m, s)) {
        counted.impossible++;
        serve_end(&v);
        return;
    }
    while (rounds--) ask_at_once(&v, m, s);
    counted.preemptions += number_of(&v, "preemptions");
    counted.moved += number_of(&v, "blocks_offloaded") + number_of(&v, "blocks_onboarded");
    serve_end(&v);
}

static void
draw(uint32_t number)
{
    const struct model *m = &mix_models[number % mix_n_models];
    struct settings numbers = { .n = 0 }, s[MIXTURES];

    while (only_model && !strstr(m->path, only_model))
        m = &mix_models[++number % mix_n_models]; /* main() knows that there is one */
    mix_draw(&numbers, m, ask);
    ask_alone(m, &numbers);
    for (uint32_t k = 0; k < MIXTURES;
         k++) { /* drawn before the timing, so that a seed repeats them */
        mix_copy(&s[k], &numbers);
        mix_draw_worker(&s[k], m, longest);
    }
    for (uint32_t k = 0; k < MIXTURES; k++) ask_mixed(m, &s[k]);
    for (uint32_t i = 0; i < REQUESTS; i++) lagan_request_free(ask[i].r);
}

static void
output_is_the_same_as_alone(void **state)
{
    const char *seed = getenv("LAGAN_TEST_SEED");
    uint64_t base = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);

    (void)state;

    for (uint32_t i = first_draw; i < first_draw + n_draws; i++) {
        char text[32];

        snprintf(text, sizeof text, "%llu", (unsigned long long)(base + i * 1000003ull));
        setenv("LAGAN_TEST_SEED", text, 1);
        test_seed();
        draw(i + (uint32_t)(base % mix_n_models));
    }
    print_message(
        "%llu requests, %llu interrupted, %llu lost, %llu refused; %llu tokens cached, %llu "
        "adopted, %llu preemptions, %llu blocks moved; %llu kills, %llu of lagand, %llu reloads, "
        "%llu flushes; %llu workers that could not start\n",
        counted.asked, counted.cut, counted.lost, counted.refused, counted.cached, counted.adopted,
        counted.preemptions, counted.moved, counted.kills, counted.lagand_kills, counted.reloads,
        counted.flushes, counted.impossible);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(output_is_the_same_as_alone) };

    int n = 1;

    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";

        if (!strcmp(argv[i], "--draws")) {
            n_draws = (uint32_t)strtoul(value, NULL, 10);
        } else if (!strcmp(argv[i], "--first")) {
            first_draw = (uint32_t)strtoul(value, NULL, 10);
        } else if (!strcmp(argv[i], "--model")) {
            only_model = value;
            for (uint32_t k = 0; !strstr(mix_models[k].path, value); k++)
                assert_true(k + 1 < mix_n_models);
        } else {
            memmove(argv + n, argv + i, (size_t)MIN(2, argc - i) * sizeof *argv);
            n += MIN(2, argc - i);
        }
    }
    serve_args(n, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

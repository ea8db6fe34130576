/* test_event_log.c - the event log, and what operators get of it from the real lagand. */
#include "daemon/persist/event_log.h"
#include "tests/daemon/lagand_fixture.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct lagand_fixture r;

static void
events_are_numbered_and_the_oldest_are_overwritten(void **state)
{
    struct daemon d = { .event_log = event_log_new(-1) };
    const struct event *e;

    (void)state;
    assert_null(event_log_event(d.event_log, 1));
    event_log_add(&d, "worker", "w0", "first");
    e = event_log_event(d.event_log, 0);
    assert_int_equal(e->number, 1);
    assert_string_equal(e->text, "first");
    assert_null(event_log_event(d.event_log, 2));
    for (uint32_t i = 2; i <= EVENT_LOG_EVENTS + 10; i++) event_log_add(&d, "worker", "", "%u", i);
    assert_int_equal(event_log_event(d.event_log, 1)->number, 11);
    assert_string_equal(event_log_event(d.event_log, 500)->text, "500");
    assert_int_equal(event_log_event(d.event_log, EVENT_LOG_EVENTS + 10)->number,
                     EVENT_LOG_EVENTS + 10);
    assert_null(event_log_event(d.event_log, EVENT_LOG_EVENTS + 11));
    event_log_add(&d, "", "", "ends \xe2\x82"); /* incomplete entries are dropped */
    assert_string_equal(event_log_event(d.event_log, EVENT_LOG_EVENTS + 11)->text, "ends ");
    d.event_log = event_log_free(d.event_log);
}

/* Opens the event log of this lagand as the next one. */
static struct event_log *
follow(struct event_log *h)
{
    int fd = dup(event_log_fd(h));

    event_log_free(h);
    return event_log_new(fd);
}

static void
next_lagand_continues_the_event_log(void **state)
{
    struct daemon d = { .event_log = event_log_new(-1) };
    const struct death_entry death = {
        .pid = 77, .panic = "panic text", .n_lines = 1, .line = { "a last line" }
    };

    (void)state;
    assert_int_equal(event_log_previous_pid(d.event_log), 0);
    for (uint32_t i = 1; i <= EVENT_LOG_EVENTS + 5; i++) event_log_add(&d, "worker", "", "%u", i);
    assert_int_equal(event_log_restarts(&d, 1, "m"), 0);
    event_log_set_restarts(&d, 1, 4);
    event_log_death(&d, &death);

    d.event_log = follow(d.event_log);
    assert_int_equal(event_log_previous_pid(d.event_log), getpid());
    assert_string_equal(event_log_event(d.event_log, 1)->text, "6");
    assert_int_equal(event_log_next(d.event_log), EVENT_LOG_EVENTS + 6);
    event_log_add(&d, "lagand", "", "again");
    assert_int_equal(event_log_event(d.event_log, EVENT_LOG_EVENTS + 6)->number,
                     EVENT_LOG_EVENTS + 6);
    assert_int_equal(event_log_event(d.event_log, 1)->number, 7);
    assert_string_equal(event_log_dead(d.event_log, 0)->panic, "panic text");
    assert_string_equal(event_log_dead(d.event_log, 0)->line[0], "a last line");
    assert_null(event_log_dead(d.event_log, 1));
    assert_int_equal(event_log_restarts(&d, 1, "m"), 4);
    assert_int_equal(event_log_restarts(&d, 1, "a model that has not been started"), 0);
    d.event_log = event_log_free(d.event_log);
}

/* Offset behind the fields number, kind and subject. */
static struct event *
event_in(uint8_t *base, size_t n, const char *text)
{
    uint8_t *p = memmem(base, n, text, strlen(text));

    assert_non_null(p);
    return (struct event *)(void *)(p - offsetof(struct event, text));
}

static void
incomplete_entries_are_dropped(void **state)
{
    struct daemon d = { .event_log = event_log_new(-1) };
    const struct event *e;
    struct stat st;
    uint8_t *base;

    (void)state;
    for (uint32_t i = 1; i <= 9; i++) event_log_add(&d, "worker", "w0", "event %u of nine", i);
    assert_int_equal(fstat(event_log_fd(d.event_log), &st), 0);
    base = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED,
                event_log_fd(d.event_log), 0);
    assert_true(base != MAP_FAILED);
    event_in(base, (size_t)st.st_size, "event 3 of nine")->number = 0;
    memset(event_in(base, (size_t)st.st_size, "event 5 of nine")->text, 'x', sizeof e->text);
    event_in(base, (size_t)st.st_size, "event 7 of nine")->number = 8;
    d.event_log = follow(d.event_log);
    for (uint64_t at = 1, n = 0; (e = event_log_event(d.event_log, at)); at = e->number + 1) {
        static const uint64_t left[] = { 1, 2, 4, 6, 8, 9 };

        assert_int_equal(e->number, left[n++]);
    }
    event_log_add(&d, "worker", "w0", "ten");
    assert_string_equal(event_log_event(d.event_log, 10)->text, "ten");

    /* Another layout, or no event log. */
    base[7]++;
    d.event_log = follow(d.event_log);
    assert_int_equal(event_log_previous_pid(d.event_log), 0);
    assert_null(event_log_event(d.event_log, 1));
    munmap(base, (size_t)st.st_size);
    event_log_free(d.event_log);
    d.event_log = event_log_new(memfd_create("empty", MFD_CLOEXEC));
    assert_non_null(d.event_log);
    assert_int_equal(event_log_previous_pid(d.event_log), 0);
    d.event_log = event_log_free(d.event_log);
}

static size_t
length(const char *s, size_t n)
{
    assert_non_null(memchr(s, 0, n));
    return strlen(s);
}

static void
texts_of_a_previous_lagand_are_terminated(void **state)
{
    struct daemon d = { .event_log = event_log_new(-1) };
    const struct death_entry death = {
        .worker = "w0", .how = "how", .panic = "words", .n_lines = LOG_LINES
    };

    (void)state;
    test_seed();
    for (uint32_t round = 0; round < 200; round++) {
        const struct event *e;
        const struct death_entry *x;
        struct stat st;
        uint8_t *base;
        size_t sum = 0;

        for (uint32_t i = 0; i < 40; i++) {
            event_log_add(&d, "worker", "w0", "%*u", 239, i);
            event_log_death(&d, &death);
        }
        assert_int_equal(fstat(event_log_fd(d.event_log), &st), 0);
        base = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED,
                    event_log_fd(d.event_log), 0);
        assert_true(base != MAP_FAILED);
        for (uint32_t i = 0; i < 4000; i++)
            base[8 + test_below((uint32_t)st.st_size - 8)] = (uint8_t)test_below(256);
        munmap(base, (size_t)st.st_size);
        d.event_log = follow(d.event_log);
        for (uint64_t at = 1; (e = event_log_event(d.event_log, at)); at = e->number + 1)
            sum += length(e->kind, sizeof e->kind) + length(e->subject, sizeof e->subject) +
                   length(e->text, sizeof e->text);
        for (uint32_t i = 0; (x = event_log_dead(d.event_log, i)); i++) {
            sum += length(x->worker, sizeof x->worker) + length(x->cause, sizeof x->cause) +
                   length(x->how, sizeof x->how) + length(x->panic, sizeof x->panic);
            assert_true(x->n_lines <= LOG_LINES);
            for (uint32_t k = 0; k < x->n_lines; k++) sum += length(x->line[k], LOG_LINE);
        }
        assert_true(sum > 0 || round > 0);
    }
    d.event_log = event_log_free(d.event_log);
}

static const msgpack_object *
result(struct dealer *c, uint64_t rid, const char *verb)
{
    call(c, rid, verb, NULL, NULL);
    return msg_get(&receive_type(c, LAGAN_MSG_REPLY, 30000)->map, "result");
}

/* Checks that `steps` has the steps of the failed process and of its replacement. */
static void
assert_steps_of_both(struct dealer *c)
{
    const msgpack_object *reply = result(c, 9, "steps"), *list = msg_get(reply, "steps");
    uint32_t n = list->via.array.size, n_first = 0;

    for (uint32_t i = 0; i < n; i++) {
        const msgpack_object *o = &list->via.array.ptr[i];

        assert_int_equal(number(o, "number"), i + 1);
        n_first += number(o, "step") == 1;
        assert_true(number(o, "at_ms") > 0);
    }
    assert_int_equal(n_first, 2);
    assert_true(n >= 10);
    assert_int_equal(number(reply, "next"), n + 1);
    assert_int_equal(number(reply, "end"), n + 1);
    assert_int_equal(number(reply, "lost"), 0);
}

/* Checks the text of `metrics` with metrics_rules.awk. */
static void
assert_rules(const char *text)
{
    char command[512];
    FILE *awk;

    snprintf(command, sizeof command, "awk -f %s/tests/daemon/metrics_rules.awk",
             getenv("srcdir") ? getenv("srcdir") : "..");
    awk = popen(command, "w");
    assert_non_null(awk);
    fputs(text, awk);
    assert_int_equal(pclose(awk), 0);
}

static void
death_adds_an_event_a_panic_and_a_restart(void **state)
{
    const msgpack_object *list;
    struct dealer *api, *ctl;
    char *text, *taken;
    bool has_death = false;
    struct msg_span s;

    (void)state;
    lagand_start(&r, "check", NULL); /* its worker fails a check at the fourth token */
    lagand_ready(&r);
    api = dealer_open(&r, "api.sock");
    ctl = dealer_open(&r, "ctl.sock");
    SEND(api, LAGAN_MSG_SUBMIT, 1, { "ids", 3 }, { "max_tokens", 10 });
    for (;;) {
        if (receive(api, 30000)->type == LAGAN_MSG_DONE) break; /* of the next worker */
    }
    list = result(ctl, 1, "panic");
    assert_int_equal(list->via.array.size, 1);
    assert_string_equal(text_of(list->via.array.ptr, "worker"), "w0");
    assert_non_null(strstr(text_of(list->via.array.ptr, "words"), "sky is blue"));
    assert_non_null(strstr(text_of(list->via.array.ptr, "how"), "signal 6"));
    assert_int_equal(number(list->via.array.ptr, "requests"), 1);
    assert_true(msg_get(list->via.array.ptr, "log")->via.array.size > 0);

    list = msg_get(result(ctl, 2, "events"), "events");
    for (uint32_t i = 0; i < list->via.array.size; i++) {
        assert_int_equal(number(&list->via.array.ptr[i], "number"), i + 1);
        has_death |= !strcmp(text_of(&list->via.array.ptr[i], "kind"), "death");
    }
    assert_true(has_death);
    assert_int_equal(msg_str(result(api, 3, "metrics"), "text", &s), 0);
    text = strndup(s.p, s.n);
    assert_non_null(strstr(text, "lagan_requests_ended_total{reason=\"length\"} 1\n"));
    assert_non_null(strstr(text, "lagan_worker_restarts_total{worker=\"w0\",model=\"check\"} 1\n"));
    assert_non_null(strstr(text, "# TYPE lagan_worker_step_seconds gauge\n"));
    assert_non_null(strstr(text, "lagan_e2e_request_latency_seconds_count{model=\"check\"} 1\n"));
    assert_non_null(strstr(text, "lagan_build_info{version=\""));
    assert_rules(text);
    /* The sum of both incarnations: a counter never decreases. */
    assert_non_null(taken = strstr(text, "\nlagan_kv_allocated_total{worker=\"w0\","));
    assert_in_range(strtoull(strstr(taken, "} ") + 2, NULL, 10), 8, 10);
    free(text);
    assert_steps_of_both(ctl);
    call(api, 4, "panic", NULL, NULL);
    receive_error(api, 4, LAGAN_E_UNAUTHORIZED, "ctl.sock", 30000);
    assert_int_equal(lagand_stop(&r), 0);
}

/* Finds an event with that text and returns its number. */
static uint64_t
event_of(struct dealer *ctl, uint64_t rid, const char *words)
{
    const msgpack_object *list = msg_get(result(ctl, rid, "events"), "events");

    for (uint32_t i = 0; i < list->via.array.size; i++)
        if (strstr(text_of(&list->via.array.ptr[i], "text"), words))
            return number(&list->via.array.ptr[i], "number");
    fail_msg("no event has the text: %s", words);
    return 0;
}

static void
events_survive_every_kind_of_restart(void **state)
{
    uint64_t started, died, begun, after;
    struct dealer *api, *ctl;
    char words[40];

    (void)state;
    lagand_start(&r, "die-once", NULL);
    lagand_ready(&r);
    ctl = dealer_open(&r, "ctl.sock");
    started = event_of(ctl, 1, "started, version");
    assert_int_equal(started, 1);
    systemd_clear_notices(&r.systemd);
    call(ctl, 2, "daemon reexec", NULL, NULL);
    assert_int_equal(receive_type(ctl, LAGAN_MSG_REPLY, 2000)->rid, 2);
    lagand_ready(&r);
    dealer_close(ctl);
    snprintf(words, sizeof words, ", after pid %d", (int)r.pid);
    lagand_crash(&r, "die-once", ARGS("--remove-runtime-dir"));
    lagand_ready(&r);
    ctl = dealer_open(&r, "ctl.sock");
    api = dealer_open(&r, "api.sock");
    assert_int_equal(event_of(ctl, 3, "started, version"), started);
    died = event_of(ctl, 4, "exit status 70");
    begun = event_of(ctl, 5, "re-executed, version");
    assert_int_equal(event_of(ctl, 6, "daemon reexec") + 1, begun);
    after = event_of(ctl, 7, words);
    assert_true(started < died && died < begun && begun < after);
    assert_true(result(ctl, 8, "panic")->via.array.size > 0);
    assert_true(number(result(api, 9, "workers list")->via.array.ptr, "restarts") > 0);
    assert_int_equal(lagand_stop(&r), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_numbered_and_the_oldest_are_overwritten),
        cmocka_unit_test(next_lagand_continues_the_event_log),
        cmocka_unit_test(incomplete_entries_are_dropped),
        cmocka_unit_test(texts_of_a_previous_lagand_are_terminated),
        lagand_test(death_adds_an_event_a_panic_and_a_restart),
        lagand_test(events_survive_every_kind_of_restart),
    };

    return cmocka_run_group_tests_name("event_log", tests, NULL, NULL);
}

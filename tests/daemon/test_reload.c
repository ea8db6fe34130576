/* test_reload.c - `laganctl reload` with a changed configuration file. */
#include "tests/daemon/fake.h"
#include "tests/daemon/lagand_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static struct lagand_fixture r;
static struct dealer *ctl;
static char dir[64], file[96];
static uint64_t rid;

/* Writes the configuration file; @ stands for the directory of the models. */
static void
write_file(const char *text)
{
    FILE *f = fopen(file, "w");

    assert_non_null(f);
    for (; *text; text++)
        if (*text == '@')
            fputs(dir, f);
        else
            fputc(*text, f);
    fclose(f);
}

/* Starts lagand with that file. Models may be good and slow. */
static void
begin(const char *text)
{
    static const char *const models[] = { "good", "slow" };
    char path[96];

    strcpy(dir, "/tmp/lagan-reload-XXXXXX");
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, models[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    snprintf(file, sizeof file, "%s/lagan.yaml", dir);
    write_file(text);
    lagand_begin(&r, "good", ARGS("--config", file));
    ctl = dealer_open(&r, "ctl.sock");
    rid = 1;
}

static int
tear_down(void **state)
{
    char command[96];

    lagand_tear_down(state);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

/* Returns the texts of a list in the last reply, joined by ", ". */
static const char *
list_of(const msgpack_object *result, const char *key)
{
    static char text[4][2000];
    static unsigned n;
    const msgpack_object *list = NULL;
    char *to = text[n++ % 4];

    *to = 0;
    for (uint32_t i = 0; i < result->via.map.size; i++) {
        const msgpack_object_kv *kv = &result->via.map.ptr[i];

        if (kv->key.via.str.size == strlen(key) && !memcmp(kv->key.via.str.ptr, key, strlen(key)))
            list = &kv->val;
    }
    assert_non_null(list);
    for (uint32_t i = 0; i < list->via.array.size; i++) {
        const msgpack_object_str *s = &list->via.array.ptr[i].via.str;

        sprintf(to + strlen(to), "%s%.*s", i ? ", " : "", (int)s->size, s->ptr);
    }
    return to;
}

static void
reload(const char *taken, const char *replaced, const char *kept)
{
    const msgpack_object *result;

    call(ctl, ++rid, "reload", NULL, NULL);
    result = msg_get(&receive_type(ctl, LAGAN_MSG_REPLY, 5000)->map, "result");
    assert_string_equal(list_of(result, "taken"), taken);
    assert_string_equal(list_of(result, "replaced"), replaced);
    assert_string_equal(list_of(result, "kept"), kept);
}

/* Waits until `workers list` has n workers, all ready. */
static void
await_ready(uint32_t n)
{
    uint32_t is = 0, n_ready = 0;

    for (int i = 0; i < 300 && (is != n || n_ready != n); i++) {
        const msgpack_object *list;

        usleep(ASK_MS * 1000);
        call(ctl, ++rid, "workers list", NULL, NULL);
        list = msg_get(&receive_type(ctl, LAGAN_MSG_REPLY, 5000)->map, "result");
        is = list->via.array.size;
        n_ready = 0;
        for (uint32_t k = 0; k < is; k++)
            n_ready += !strcmp(text_of(&list->via.array.ptr[k], "state"), "ready");
    }
    assert_int_equal(is, n);
    assert_int_equal(n_ready, n);
}

static void
reload_takes_options_and_names_what_needs_a_reexec(void **state)
{
    (void)state;
    begin("models:\n  - path: @/slow\n    device: cpu\n");
    write_file("api:\n  max_inflight: 1\n  max_connections: 7\nlog.level: debug\n"
               "models:\n  - path: @/slow\n    device: cpu\n");
    reload("api.max_inflight, log.level", "",
           "api.max_connections keeps its value until `laganctl daemon reexec`, "
           "log.level of running workers stays until `laganctl loglevel` or a restart");
    assert_false(lagand_logged(&r, "epoch 2", 0));
    submit(ctl, 100, 3, 1000, 1);
    SEND(ctl, LAGAN_MSG_SUBMIT, 101, { "ids", 3 }, { "max_tokens", 3 });
    for (const struct msg *m; (m = receive(ctl, 5000))->rid != 101;)
        assert_int_not_equal(m->type, LAGAN_MSG_DONE);
    dealer_close(ctl);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
only_workers_with_changed_settings_are_replaced(void **state)
{
    struct dealer *c;

    (void)state;
    begin("models:\n  - path: @/good\n    device: cpu\n  - path: @/slow\n    device: cpu\n");
    c = dealer_open(&r, "api.sock");
    await_ready(2);
    write_file("models:\n  - path: @/good\n    device: cpu\n"
               "  - path: @/slow\n    device: cpu\n    kv.shares: full=0.5\n"
               "    fairness_quantum: 64\n");
    reload("model slow: fairness_quantum, model slow: kv.shares", "w1", "");
    assert_true(lagand_logged(&r, "fake: mode slow, epoch 2", 5000));
    assert_false(lagand_logged(&r, "fake: mode good, epoch 2", 0));
    await_ready(2);
    dealer_close(c);
    dealer_close(ctl);
    assert_int_equal(lagand_stop(&r), 0);
}

/* WELCOME has as many models as text limits. */
static void
expect_models_of_welcome(uint32_t n)
{
    struct dealer *c = dealer_open(&r, "api.sock");
    const struct msg *m;

    SEND(c, LAGAN_MSG_HELLO, 1, { "min", 1 }, { "max", 1 });
    m = receive_type(c, LAGAN_MSG_WELCOME, 2000);
    assert_int_equal(msg_get(&m->map, "models")->via.array.size, n);
    assert_int_equal(msg_get(msg_get(&m->map, "limits"), "text_bytes")->via.array.size, n);
    dealer_close(c);
}

static void
reload_adds_and_removes_models_and_workers(void **state)
{
    (void)state;
    begin("models:\n  - path: @/good\n    device: cpu\n");
    write_file("models:\n  - path: @/slow\n    device: cpu\n"
               "  - path: @/good\n    device: cpu\n    workers: 2\n");
    reload("model good: workers, model slow: added", "w1, w2", "");
    await_ready(3);
    write_file("models:\n  - path: @/slow\n    device: cpu\n");
    reload("model good: removed", "w0, w1", "");
    await_ready(1);
    expect_models_of_welcome(1);
    /* the request needs no name of a model now */
    submit(ctl, 100, 3, 5, 1);
    take_all(ctl, 100, 5, 1);
    write_file("models:\n  - path: @/slow\n    device: cpu\n  - path: @/good\n    device: cpu\n");
    reload("model good: added, model good: workers", "w0", "");
    await_ready(2);
    dealer_close(ctl);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
refused_file_changes_nothing(void **state)
{
    char path[100];

    (void)state;
    begin("models:\n  - path: @/good\n    device: cpu\n");
    write_file("api.max_inflight: 1\nmodels:\n  - path: @/good\n    device: cpu\n    odd: 1\n");
    call(ctl, ++rid, "reload", NULL, NULL);
    receive_error(ctl, rid, LAGAN_E_CONFIGURATION, "odd", 5000);
    write_file("api.max_inflight: 1\nmodels:\n  - path: @/good\n    device: cpu\n");
    snprintf(path, sizeof path, "%s/good/bad", dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    call(ctl, ++rid, "reload", NULL, NULL);
    receive_error(ctl, rid, LAGAN_E_CONFIGURATION, "the weights are cut short", 5000);
    assert_false(lagand_logged(&r, "reload: took", 0));
    unlink(path);
    reload("api.max_inflight", "", "");
    dealer_close(ctl);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
reload_without_a_change_replaces_all_workers(void **state)
{
    (void)state;
    begin("models:\n  - path: @/good\n    device: cpu\n    workers: 2\n");
    await_ready(2);
    reload("", "w0, w1", "");
    assert_true(lagand_logged(&r, "worker w1: started, pid", 5000));
    await_ready(2);
    dealer_close(ctl);
    assert_int_equal(lagand_stop(&r), 0);
}

int
main(void)
{
#define T(f) cmocka_unit_test_teardown(f, tear_down)
    const struct CMUnitTest tests[] = {
        T(reload_takes_options_and_names_what_needs_a_reexec),
        T(only_workers_with_changed_settings_are_replaced),
        T(reload_adds_and_removes_models_and_workers),
        T(refused_file_changes_nothing),
        T(reload_without_a_change_replaces_all_workers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_host_memory.c - lagan-worker on the CPU below memory limits. The files of a temporary
 * directory, in place of /sys/fs/cgroup, state the limits. */
#include "tests/test.h"
#include "tests/worker/harness.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[64];

static void
put(const char *name, unsigned long long value)
{
    char path[160];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", root, name);
    f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%llu\n", value);
    fclose(f);
}

/* Sets the limit of the cgroup and its use, in MiB. */
static void
limit(unsigned long long most, unsigned long long used)
{
    put("memory.max", most << 20);
    put("memory.current", used << 20);
}

static int
set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/lagan-memory-XXXXXX");
    if (!mkdtemp(root)) return -1;
    put("cgroup.controllers", 0);
    limit(1000, 0);
    return 0;
}

static int
tear_down(void **state)
{
    char command[96];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

/* Runs lagan-worker --inspect with one more option. Returns the exit code and its output. */
static int
inspect(const char *option, char *out, size_t n)
{
    const char *top = getenv("srcdir");
    char exe[256], command[1024];
    size_t got;
    FILE *f;

    test_program(exe, sizeof exe, "lagan-worker");
    snprintf(
        command, sizeof command,
        "%s --inspect --device=cpu --path=%s/tests/data/golden/llama2 --cgroup_root=%s %s 2>&1",
        exe, top ? top : ".", root, option);
    f = popen(command, "r");
    assert_non_null(f);
    got = fread(out, 1, n - 1, f);
    out[got] = 0;
    return WEXITSTATUS(pclose(f));
}

static void
model_above_the_limit_is_refused_with_its_parts(void **state)
{
    char out[2000];

    (void)state;
    assert_int_equal(inspect("--kv.memory=2GiB", out, sizeof out), 78);
    assert_non_null(strstr(out, "KV 2.0 GiB"));
    assert_non_null(strstr(out, "do not fit: cgroup / has 1000.0 MiB; lower kv.memory"));
    assert_int_equal(inspect("--kv.memory=300MiB --workers=4", out, sizeof out), 78);
    assert_non_null(strstr(out, "4 processes of "));
    limit(10, 0);
    assert_int_equal(inspect("", out, sizeof out), 78);
    assert_non_null(strstr(out, "cgroup / has 10.0 MiB"));
}

static void
kv_memory_below_two_blocks_is_refused(void **state)
{
    char out[2000];

    (void)state;
    assert_int_equal(inspect("--kv.memory=64KiB", out, sizeof out), 78);
    assert_non_null(strstr(out, "kv.memory is 65536 bytes, too small"));
    assert_non_null(strstr(out, "raise kv.memory"));
}

static void
inspection_counts_memory_of_other_programs_and_frees_what_is_held(void **state)
{
    char out[4000];

    (void)state;
    assert_int_equal(inspect("--kv.memory=100MiB", out, sizeof out), 0);
    assert_non_null(strstr(out, "\"limiter\":\"cgroup /\""));
    limit(1000, 980);
    assert_int_equal(inspect("--kv.memory=100MiB", out, sizeof out), 78);
    assert_non_null(strstr(out, "cgroup / has 20.0 MiB free; lower kv.memory"));
    assert_int_equal(inspect("--kv.memory=100MiB --held=200MiB", out, sizeof out), 0);
}

/* Starts a worker and returns the KV bytes of READY; 0: it has exited with *code. */
static uint64_t
kv_bytes_of(const char *option, const char *more, int *code)
{
    char where[100];
    const char *const options[] = {
        "--max_num_seqs=256", "--threads=1", where, option, more, NULL
    };
    const struct ring_record *rec;
    struct rec_ready ready = { 0 };
    struct harness_arenas left;
    struct harness p;

    snprintf(where, sizeof where, "--cgroup_root=%s", root);
    harness_start(&p, "tests/data/golden/llama2", options, NULL);
    while ((rec = harness_next(&p)) && rec->type != REC_READY) {
    }
    if (rec) memcpy(&ready, rec->data, sizeof ready);
    if (!rec) {
        *code = WEXITSTATUS(harness_wait_exit(&p));
    } else {
        harness_kill(&p, &left);
        harness_close_left(&left);
    }
    harness_close(&p);
    return ready.kv_bytes;
}

static void
worker_above_the_limit_exits_with_78_and_one_above_free_memory_with_71(void **state)
{
    int code = 0;

    (void)state;
    assert_int_equal(kv_bytes_of("--kv.memory=2GiB", NULL, &code), 0);
    assert_int_equal(code, 78);
    assert_int_equal(kv_bytes_of("--kv.memory=64KiB", NULL, &code), 0);
    assert_int_equal(code, 78);
    limit(1000, 980);
    assert_int_equal(kv_bytes_of("--kv.memory=100MiB", NULL, &code), 0);
    assert_int_equal(code, 71); /* memory may become free: lagand tries again */
}

static void
automatic_kv_memory_is_a_share_of_the_limit(void **state)
{
    uint64_t large, small;
    int code = 0;

    (void)state;
    limit(200, 40);
    large = kv_bytes_of("--kv.memory=auto", NULL, &code);
    assert_in_range(large, 1 << 20, 80 << 20);
    limit(200, 120);
    small = kv_bytes_of("--kv.memory=auto", NULL, &code);
    assert_in_range(small, 1 << 18, large - (30 << 20));
}

static void
kv_memory_after_oom_kills_is_limited(void **state)
{
    int code = 0;

    (void)state;
    assert_int_equal(kv_bytes_of("--kv.memory=64MiB", "--kv_max=32MiB", &code), 32 << 20);
    assert_int_equal(kv_bytes_of("--kv.memory=16MiB", "--kv_max=32MiB", &code), 16 << 20);
    assert_in_range(kv_bytes_of("--kv.memory=auto", "--kv_max=8MiB", &code), 1 << 20, 8 << 20);
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        T(model_above_the_limit_is_refused_with_its_parts),
        T(kv_memory_below_two_blocks_is_refused),
        T(inspection_counts_memory_of_other_programs_and_frees_what_is_held),
        T(worker_above_the_limit_exits_with_78_and_one_above_free_memory_with_71),
        T(automatic_kv_memory_is_a_share_of_the_limit),
        T(kv_memory_after_oom_kills_is_limited),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

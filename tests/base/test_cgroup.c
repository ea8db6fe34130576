/* test_cgroup.c - memory limits and OOM kills of cgroups, from files in a temporary directory. */
#include "tests/test.h"

#include "base/cgroup.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

static int
set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/lagan-cgroup-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int
tear_down(void **state)
{
    char command[96];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

/* Writes a file below root and makes its directories. */
static void
put(const char *name, const char *text)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *p = strchr(path + strlen(root) + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        mkdir(path, 0700);
        *p = '/';
    }
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static struct memory_free
memory(const char *membership)
{
    struct cgroup c;
    struct memory_free m;
    struct err e;

    cgroup_find_in(&c, root, membership);
    if (cgroup_memory(&c, &m, &e) < 0) fail_msg("%s", e.text);
    return m;
}

static void
limit_of_version_2_leaves_out_file_cache(void **state)
{
    struct memory_free m;

    (void)state;
    put("cgroup.controllers", "memory\n");
    put("a.slice/lagand.service/memory.max", "1000000\n");
    put("a.slice/lagand.service/memory.current", "700000\n");
    put("a.slice/lagand.service/memory.stat",
        "anon 200000\nfile 500000\nshmem 100000\ninactive_file 300000\nactive_file 100000\n");
    put("a.slice/memory.max", "max\n");
    m = memory("0::/a.slice/lagand.service\n");
    assert_int_equal(m.free, 700000); /* anon and shmem are in use */
    assert_int_equal(m.limit, 1000000);
    assert_string_equal(m.owner, "cgroup /a.slice/lagand.service");
    assert_string_equal(m.limiter, "cgroup /a.slice/lagand.service");
}

static void
limit_of_an_ancestor_counts(void **state)
{
    struct memory_free m;

    (void)state;
    put("cgroup.controllers", "memory\n");
    put("a/b/memory.max", "1000000\n");
    put("a/b/memory.current", "0\n");
    put("a/memory.max", "2000000\n");
    put("a/memory.current", "1900000\n"); /* other children use it */
    m = memory("0::/a/b\n");
    assert_int_equal(m.free, 100000);
    assert_string_equal(m.owner, "cgroup /a");
    assert_int_equal(m.limit, 1000000);
    assert_string_equal(m.limiter, "cgroup /a/b");
}

static void
limit_of_version_1_is_read_from_the_memory_controller(void **state)
{
    struct memory_free m;

    (void)state;
    put("memory/lagan/memory.limit_in_bytes", "115343360\n");
    put("memory/lagan/memory.usage_in_bytes", "15343360\n");
    put("memory/lagan/memory.stat", "inactive_file 1\ntotal_inactive_file 343360\n"
                                    "total_active_file 5000000\n");
    put("memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("memory/memory.usage_in_bytes", "9999\n");
    m = memory("9:name=systemd:/x\n4:cpu,memory:/lagan\n3:cpuset:/y\n0::/z\n");
    assert_int_equal(m.free, 115343360 - 10000000);
    assert_string_equal(m.owner, "cgroup /lagan");
    /* in another order; and a controller whose name only begins alike */
    m = memory("7:memory,cpu:/lagan\n");
    assert_int_equal(m.limit, 115343360);
    m = memory("7:memory2:/lagan\n");
    assert_string_equal(m.owner, "the host");
}

static void
use_above_the_limit_leaves_nothing(void **state)
{
    (void)state;
    put("cgroup.controllers", "");
    put("a/memory.max", "1000\n");
    put("a/memory.current", "5000\n");
    assert_int_equal(memory("0::/a\n").free, 0);
}

static void
container_that_sees_only_its_own_part_finds_its_limit(void **state)
{
    (void)state;
    put("memory/memory.limit_in_bytes", "4096000\n");
    put("memory/memory.usage_in_bytes", "0\n");
    put("memory/sub/memory.limit_in_bytes", "2048000\n");
    put("memory/sub/memory.usage_in_bytes", "0\n");
    assert_int_equal(memory("4:memory:/docker/0123abc\n").limit, 4096000);
    assert_string_equal(memory("4:memory:/docker/0123abc\n").limiter, "cgroup /");
    assert_int_equal(memory("4:memory:/docker/0123abc/sub\n").limit, 2048000);
    assert_int_equal(memory("4:memory:/../other\n").limit, 4096000);
}

static void
without_a_cgroup_the_host_is_the_limit(void **state)
{
    uint64_t available, total;
    struct memory_free m;
    struct cgroup c;
    struct err e;

    (void)state;
    assert_int_equal(cgroup_host_memory(&available, &total, &e), 0);
    assert_in_range(available, 1 << 20, total);
    m = memory("");
    assert_string_equal(m.owner, "the host");
    assert_int_equal(m.limit, total);
    assert_string_equal(memory("nonsense").owner, "the host");
    assert_string_equal(memory("4:memory").owner, "the host");
    put("cgroup.controllers", "cpu\n"); /* version 2 without the memory controller */
    assert_string_equal(memory("0::/\n").owner, "the host");
    cgroup_find_in(&c, root, "");
    assert_int_equal(cgroup_oom_kills(&c), 0);
}

static void
malformed_limit_is_an_error_that_names_the_file(void **state)
{
    static const char *const wrong[] = { "", "many\n", "-5\n", "12x\n",
                                         "99999999999999999999999\n" };
    struct memory_free m;
    struct cgroup c;
    struct err e;

    (void)state;
    put("cgroup.controllers", "");
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        put("a/memory.max", wrong[i]);
        cgroup_find_in(&c, root, "0::/a\n");
        assert_int_equal(cgroup_memory(&c, &m, &e), -EBADMSG);
        assert_non_null(strstr(e.text, "/a/memory.max"));
    }
}

static void
oom_kills_are_counted_in_both_versions(void **state)
{
    struct cgroup c;

    (void)state;
    put("memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
    cgroup_find_in(&c, root, "4:memory:/a\n");
    assert_int_equal(cgroup_oom_kills(&c), 3);
    put("cgroup.controllers", "");
    put("a/memory.events", "low 0\nhigh 0\nmax 9\noom 8\noom_kill 7\noom_group_kill 0\n");
    cgroup_find_in(&c, root, "0::/a\n");
    assert_int_equal(cgroup_oom_kills(&c), 7);
    put("a/memory.events", "low 0\n");
    assert_int_equal(cgroup_oom_kills(&c), 0);
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int
main(void)
{
    static const struct CMUnitTest tests[] = {
        T(limit_of_version_2_leaves_out_file_cache),
        T(limit_of_an_ancestor_counts),
        T(limit_of_version_1_is_read_from_the_memory_controller),
        T(use_above_the_limit_leaves_nothing),
        T(container_that_sees_only_its_own_part_finds_its_limit),
        T(without_a_cgroup_the_host_is_the_limit),
        T(malformed_limit_is_an_error_that_names_the_file),
        T(oom_kills_are_counted_in_both_versions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

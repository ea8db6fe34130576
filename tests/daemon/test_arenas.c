/* test_arenas.c - arenas between a worker and its replacement. */
#include "daemon/supervise/arenas.h"

#include "base/clock.h"
#include "tests/test.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct death killed = { .cause = DEATH_KILLED, .adopt_kv = true };
static const struct death silent = { .cause = DEATH_SILENT, .adopt_kv = true, .counts = true };
static const struct death fault = { .cause = DEATH_SIGNAL, .fault = true, .counts = true };

static void
send_arena(int sock, const char *name, uint64_t says, uint64_t is, uint32_t flags)
{
    struct fd_channel_note note = { .bytes = says, .flags = flags };
    int fd = memfd_create(name, MFD_CLOEXEC);

    strcpy(note.name, name);
    assert_int_equal(ftruncate(fd, (off_t)is), 0);
    assert_int_equal(fd_channel_give(sock, &note, fd, NULL), 0);
    close(fd);
}

static void
pair(int s[2])
{
    assert_int_equal(fd_channel_pair(s, NULL), 0);
}

static void
replacement_gets_the_arenas_of_the_previous_worker(void **state)
{
    struct arenas a = { 0 };
    struct fd_channel_note note;
    int up[2], down[2], fd;
    struct stat first, second;

    (void)state;
    pair(up);
    pair(down);
    send_arena(up[1], "weights", 4096, 4096, FD_CHANNEL_COMPLETE);
    send_arena(up[1], "kv", 8192, 8192, 0); /* incomplete: kept, and not sent */
    assert_int_equal(arenas_take(&a, up[0], NULL), 0);
    assert_int_equal(a.n, 2);
    assert_int_equal(fstat(a.at[0].fd, &first), 0);
    assert_int_equal(arenas_give(&a, down[0], 0, NULL), 1);
    assert_int_equal(fd_channel_take(down[1], &note, &fd, NULL), 1);
    assert_string_equal(note.name, "weights");
    assert_int_equal(fstat(fd, &second), 0);
    assert_int_equal(first.st_ino, second.st_ino);
    close(fd);
    assert_int_equal(fd_channel_take(down[1], &note, &fd, NULL), 0);
    arenas_drop(&a, NULL);
    assert_int_equal(a.n, 0);
    close(up[0]), close(up[1]), close(down[0]), close(down[1]);
}

static void
arena_with_the_same_name_replaces_the_old_one(void **state)
{
    struct arenas a = { 0 };
    int up[2];

    (void)state;
    pair(up);
    send_arena(up[1], "kv", 4096, 4096, FD_CHANNEL_COMPLETE);
    send_arena(up[1], "kv", 8192, 8192, FD_CHANNEL_COMPLETE);
    assert_int_equal(arenas_take(&a, up[0], NULL), 0);
    assert_int_equal(a.n, 1);
    assert_int_equal(a.at[0].note.bytes, 8192);
    arenas_drop(&a, NULL);
    close(up[0]), close(up[1]);
}

static void
arena_smaller_than_its_note_is_refused(void **state)
{
    struct arenas a = { 0 };
    int up[2];

    (void)state;
    pair(up);
    send_arena(up[1], "kv", 8192, 4096, FD_CHANNEL_COMPLETE);
    assert_int_equal(arenas_take(&a, up[0], NULL), -EBADMSG);
    assert_int_equal(a.n, 0);
    close(up[0]), close(up[1]);
}

static void
too_many_arena_names_are_refused(void **state)
{
    struct arenas a = { 0 };
    int up[2], r = 0;

    (void)state;
    pair(up);
    for (int i = 0; i <= MAX_ARENAS && r == 0; i++) {
        send_arena(up[1], (char[]){ 'a', (char)('a' + i), 0 }, 4096, 4096, 0);
        r = arenas_take(&a, up[0], NULL);
    }
    assert_int_equal(r, -EBADMSG);
    assert_int_equal(a.n, MAX_ARENAS);
    arenas_drop(&a, NULL);
    close(up[0]), close(up[1]);
}

static void
worker_that_sends_arenas_without_end_is_refused(void **state)
{
    struct arenas a = { 0 };
    int up[2], down[2], n = 0;

    (void)state;
    pair(up);
    pair(down);
    do send_arena(up[1], "kv", 4096, 4096, FD_CHANNEL_COMPLETE);
    while (arenas_take(&a, up[0], NULL) == 0 && n++ < 1000);
    assert_int_equal(n, MAX_HANDED);
    assert_int_equal(arenas_give(&a, down[0], 0, NULL), 1); /* the replacement starts from zero */
    send_arena(up[1], "kv", 4096, 4096, FD_CHANNEL_COMPLETE);
    assert_int_equal(arenas_take(&a, up[0], NULL), 0);
    arenas_drop(&a, NULL);
    close(up[0]), close(up[1]), close(down[0]), close(down[1]);
}

static void
faults_drop_manifest_then_kv_then_all_arenas(void **state)
{
    struct arenas a = { 0 };
    struct fd_channel_note note;
    int up[2], down[2], fd;

    (void)state;
    pair(up);
    pair(down);
    send_arena(up[1], "weights", 4096, 4096, FD_CHANNEL_COMPLETE);
    send_arena(up[1], "kv", 4096, 4096, FD_CHANNEL_COMPLETE);
    send_arena(up[1], "host0", 4096, 4096, FD_CHANNEL_COMPLETE);
    send_arena(up[1], "manifest", 4096, 4096, FD_CHANNEL_COMPLETE);
    assert_int_equal(arenas_take(&a, up[0], NULL), 0);

    arenas_after_death(&a, &killed, 0);
    arenas_after_death(&a, &silent, 0);
    assert_int_equal(a.n, 4);
    assert_false(a.verify_contents);
    arenas_after_death(&a, &fault, 0);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t n_left = i == 0 ? 3 : 1;

        assert_int_equal(a.n, n_left);
        assert_string_equal(a.at[0].note.name, "weights");
        if (i == 0) assert_string_equal(a.at[1].note.name, "kv");
        if (i == 0) assert_string_equal(a.at[2].note.name, "host0");
        assert_int_equal(arenas_give(&a, down[0], i * NSEC_S, NULL), n_left);
        for (uint32_t k = 0; k < n_left; k++) {
            assert_int_equal(fd_channel_take(down[1], &note, &fd, NULL), 1);
            assert_int_equal(note.flags, FD_CHANNEL_COMPLETE | FD_CHANNEL_VERIFY);
            close(fd);
        }
        arenas_after_death(&a, &fault, i * NSEC_S + NSEC_MS);
    }
    assert_int_equal(a.n, 0);
    close(up[0]), close(up[1]), close(down[0]), close(down[1]);
}

static void
kv_is_dropped_after_two_faults_soon_after_adoption(void **state)
{
    /* No real cause is a fault that keeps KV; the test makes one. */
    static const struct death mild = { .fault = true, .adopt_kv = true };

    (void)state;
    for (int late = 0; late < 2; late++) {
        struct arenas a = { 0 };
        int up[2], down[2];

        pair(up);
        pair(down);
        send_arena(up[1], "weights", 4096, 4096, FD_CHANNEL_COMPLETE);
        send_arena(up[1], "kv", 4096, 4096, FD_CHANNEL_COMPLETE);
        assert_int_equal(arenas_take(&a, up[0], NULL), 0);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(arenas_give(&a, down[0], 0, NULL), 2);
            arenas_after_death(&a, &mild, late ? 61 * NSEC_S : NSEC_S);
        }
        assert_int_equal(a.n, late ? 2 : 1);
        arenas_drop(&a, NULL);
        close(up[0]), close(up[1]), close(down[0]), close(down[1]);
    }
}

static void
oom_kills_drop_kv_at_the_second_and_never_the_weights(void **state)
{
    static const struct death oom = { .cause = DEATH_OOM, .adopt_kv = true, .counts = true };
    struct arenas a = { 0 };
    int up[2], down[2];

    (void)state;
    pair(up);
    pair(down);
    send_arena(up[1], "weights", 4096, 4096, FD_CHANNEL_COMPLETE);
    send_arena(up[1], "kv", 8192, 8192, FD_CHANNEL_COMPLETE);
    assert_int_equal(arenas_take(&a, up[0], NULL), 0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(arenas_give(&a, down[0], i * NSEC_S, NULL), i < 2 ? 2 : 1);
        arenas_after_death(&a, &oom, i * NSEC_S + NSEC_MS);
        assert_int_equal(arenas_bytes(&a, "kv"), i < 1 ? 8192 : 0);
        assert_int_equal(arenas_bytes(&a, "weights"), 4096);
        assert_false(a.verify_contents);
    }
    arenas_drop(&a, NULL);
    close(up[0]), close(up[1]), close(down[0]), close(down[1]);
}

static void
arenas_of_a_lost_device_are_dropped(void **state)
{
    static const struct death lost = { .cause = DEATH_LOST, .counts = true };
    struct arenas a = { 0 };
    int up[2];

    (void)state;
    pair(up);
    send_arena(up[1], "weights", 4096, 4096, FD_CHANNEL_COMPLETE);
    assert_int_equal(arenas_take(&a, up[0], NULL), 0);
    arenas_after_death(&a, &lost, 0);
    assert_int_equal(a.n, 0);
    close(up[0]), close(up[1]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replacement_gets_the_arenas_of_the_previous_worker),
        cmocka_unit_test(arena_with_the_same_name_replaces_the_old_one),
        cmocka_unit_test(arena_smaller_than_its_note_is_refused),
        cmocka_unit_test(worker_that_sends_arenas_without_end_is_refused),
        cmocka_unit_test(too_many_arena_names_are_refused),
        cmocka_unit_test(faults_drop_manifest_then_kv_then_all_arenas),
        cmocka_unit_test(kv_is_dropped_after_two_faults_soon_after_adoption),
        cmocka_unit_test(oom_kills_drop_kv_at_the_second_and_never_the_weights),
        cmocka_unit_test(arenas_of_a_lost_device_are_dropped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

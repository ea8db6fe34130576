/* test_log_file.c - the promises of log_file.h: what was whole is read, whenever its writer died. */
#include "daemon/persist/log_file.h"

#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HALF = 64 << 10 };

static struct log_file m;

static int
set_up(void **state)
{
    (void)state;
    return log_file_create(&m, HALF, NULL);
}

static int
tear_down(void **state)
{
    (void)state;
    log_file_close(&m);
    return 0;
}

static bool
put(uint16_t type, const char *words)
{
    void *p = log_file_reserve(&m, type, (uint32_t)strlen(words));

    if (!p) return false;
    memcpy(p, words, strlen(words));
    log_file_commit(&m);
    return true;
}

struct heard {
    char text[4096];
    int stop_at;
};

static int
hear(void *arg, uint16_t type, const void *data, uint32_t n)
{
    struct heard *h = arg;
    size_t used = strlen(h->text);

    assert_int_equal((uintptr_t)data % LOG_FILE_ALIGN, 0);
    snprintf(h->text + used, sizeof h->text - used, "%u:%.*s ", type, (int)n, (const char *)data);
    return h->stop_at && --h->stop_at == 0 ? -ECANCELED : 0;
}

static void
reads(const char *want)
{
    struct heard h = { 0 };
    struct err e;

    assert_true(log_file_read(m.base, LOG_FILE_PAGE + 2 * m.half, hear, &h, &e) >= 0);
    assert_string_equal(h.text, want);
}

static void
records_are_read_in_order_and_the_reader_may_stop(void **state)
{
    struct heard h = { .stop_at = 2 };

    (void)state;
    reads("");
    assert_true(put(1, "one") && put(2, "") && put(3, "three and more"));
    reads("1:one 2: 3:three and more ");
    assert_int_equal(log_file_read(m.base, LOG_FILE_PAGE + 2 * m.half, hear, &h, NULL), -ECANCELED);
    assert_string_equal(h.text, "1:one 2: ");
}

static void
a_record_that_was_being_written_is_dropped(void **state)
{
    char *p;

    (void)state;
    assert_true(put(1, "one"));
    p = log_file_reserve(&m, 2, 8);
    memcpy(p, "two", 3); /* no commit: killed here */
    reads("1:one ");
    assert_true(put(2, "two"));
    reads("1:one 2:two ");
    p = (char *)log_file_reserve(&m, 3, 5);
    memcpy(p, "three", 5);
    log_file_commit(&m);
    p[2] ^= 1;
    reads("1:one 2:two ");
}

static void
a_half_counts_from_the_end_of_its_turn_and_old_records_never_again(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        assert_true(put(1, "first") && put(1, "second"));
        log_file_switch(&m);
        assert_true(put(2, "anew"));
        reads(i ? "2:anew 1:first 1:second " : "1:first 1:second ");
        log_file_switched(&m);
        reads("2:anew ");
    }
}

static void
a_full_half_says_so_and_memory_stays_bounded(void **state)
{
    struct stat st;
    uint32_t n = 0;

    (void)state;
    for (int i = 0; i < 10; i++) {
        while (put(1, "a record of some length, to fill the half with something")) n++;
        assert_null(log_file_reserve(&m, 1, 100));
        assert_true(log_file_bytes(&m) <= HALF && log_file_bytes(&m) > HALF - 200);
        log_file_switch(&m);
        log_file_switched(&m);
    }
    assert_true(n > 10 * HALF / 100);
    assert_null(log_file_reserve(&m, 1, HALF));
    assert_null(log_file_reserve(&m, 1, UINT32_MAX));
    assert_int_equal(fstat(m.fd, &st), 0);
    assert_true((uint64_t)st.st_blocks * 512 <= LOG_FILE_PAGE + HALF); /* one half has memory */
}

static void
a_successor_reads_it_and_goes_on_in_the_other_half(void **state)
{
    struct log_file heir;

    (void)state;
    assert_true(put(1, "one"));
    assert_int_equal(log_file_open(&heir, dup(m.fd), NULL), 0);
    log_file_close(&m);
    m = heir;
    reads("1:one ");
    assert_null(log_file_reserve(&m, 1, 1)); /* the old half takes no more */
    log_file_switch(&m);
    assert_true(put(2, "one again"));
    reads("1:one ");
    log_file_switched(&m);
    assert_true(put(3, "two"));
    reads("2:one again 3:two ");
}

static void
a_turn_that_was_cut_short_leaves_nothing_to_the_next_one(void **state)
{
    struct log_file heir;

    (void)state;
    assert_true(put(1, "old"));
    log_file_switch(&m);
    assert_true(put(2, "first") && put(3, "left behind")); /* killed here */
    assert_int_equal(log_file_open(&heir, dup(m.fd), NULL), 0);
    log_file_close(&m);
    m = heir;
    reads("1:old ");
    log_file_switch(&m);
    assert_true(put(2, "again"));
    log_file_switched(&m);
    reads("2:again ");
}

static void
a_void_mirror_has_nothing_to_say_until_it_is_written_anew(void **state)
{
    (void)state;
    assert_true(put(1, "one"));
    log_file_void(&m);
    reads("");
    assert_null(log_file_reserve(&m, 1, 1));
    log_file_switch(&m);
    assert_true(put(1, "new"));
    log_file_switched(&m);
    reads("1:new ");
}

static void
what_is_no_mirror_is_refused(void **state)
{
    struct log_file other;
    struct err e;
    int fd = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    (void)state;
    assert_int_equal(log_file_open(&other, fd, &e), -EBADMSG);
    assert_int_equal(ftruncate(fd, LOG_FILE_PAGE + 2 * HALF), 0);
    assert_int_equal(log_file_open(&other, fd, &e), -EBADMSG); /* could be cut under our feet */
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    assert_int_equal(log_file_open(&other, fd, &e), -EBADMSG);
    assert_non_null(strstr(e.text, "magic"));
    close(fd);
    ((struct log_file_hdr *)m.base)->half *= 2;
    assert_int_equal(log_file_open(&other, m.fd, &e), -EBADMSG);
    ((struct log_file_hdr *)m.base)->half /= 4;
    assert_int_equal(log_file_open(&other, m.fd, &e), -EBADMSG);
}

/* ---- kill -9 of the writer */

struct seen {
    uint32_t next, anew;
};

static int
count(void *arg, uint16_t type, const void *data, uint32_t n)
{
    struct seen *s = arg;
    uint32_t v;

    assert_true(n >= 4);
    memcpy(&v, data, 4);
    if (type == 2) {
        s->next = v; /* written anew: all before it in one */
        s->anew++;
    } else {
        assert_int_equal(v, s->next);
        s->next++;
        for (uint32_t i = 4; i < n; i++) assert_int_equal(((const uint8_t *)data)[i], (uint8_t)v);
    }
    return 0;
}

/* Numbers upwards, in records of many lengths; `said` follows each. */
static void
write_for_ever(_Atomic uint32_t *said)
{
    for (uint32_t v = atomic_load(said);; v++) {
        uint32_t n = 4 + v * 37 % 300;
        uint8_t *p = log_file_reserve(&m, 1, n);

        if (!p) {
            log_file_switch(&m);
            p = log_file_reserve(&m, 2, 4);
            memcpy(p, &v, 4);
            log_file_commit(&m);
            log_file_switched(&m);
            p = log_file_reserve(&m, 1, n);
        }
        memset(p, (int)v, n);
        memcpy(p, &v, 4);
        log_file_commit(&m);
        atomic_store(said, v + 1);
    }
}

static void
whatever_instant_its_writer_is_killed_at_nothing_that_was_said_is_missing(void **state)
{
    _Atomic uint32_t *said = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                                  -1, 0);
    struct seen s = { 0 };

    (void)state;
    test_seed();
    /* On a busy machine some have no processor before they die. */
    for (int i = 0; i < 300 || s.next <= 1000; i++) {
        pid_t pid = fork();
        struct timespec t = { .tv_nsec = test_below(1500000) };
        struct log_file heir;

        assert_true(pid >= 0);
        if (pid == 0) write_for_ever(said);
        nanosleep(&t, NULL);
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        assert_int_equal(log_file_open(&heir, dup(m.fd), NULL), 0);
        log_file_close(&m);
        m = heir;
        s = (struct seen){ 0 };
        assert_true(log_file_read(m.base, LOG_FILE_PAGE + 2 * m.half, count, &s, NULL) >= 0);
        /* The last may have been written and not said. */
        assert_in_range(s.next, atomic_load(said), atomic_load(said) + 1);
        atomic_store(said, s.next);
    }
}

int
main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(records_are_read_in_order_and_the_reader_may_stop),
        T(a_record_that_was_being_written_is_dropped),
        T(a_half_counts_from_the_end_of_its_turn_and_old_records_never_again),
        T(a_full_half_says_so_and_memory_stays_bounded),
        T(a_successor_reads_it_and_goes_on_in_the_other_half),
        T(a_turn_that_was_cut_short_leaves_nothing_to_the_next_one),
        T(a_void_mirror_has_nothing_to_say_until_it_is_written_anew),
        T(what_is_no_mirror_is_refused),
        T(whatever_instant_its_writer_is_killed_at_nothing_that_was_said_is_missing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

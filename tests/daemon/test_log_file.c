/* test_log_file.c - complete records are read, whenever the writer is killed. */
#include "daemon/persist/log_file.h"

#include "tests/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
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

struct collected {
    char text[4096];
    int stop_at;
};

static int
collect(void *arg, uint16_t type, const void *data, uint32_t n)
{
    struct collected *h = arg;
    size_t used = strlen(h->text);

    assert_int_equal((uintptr_t)data % LOG_FILE_ALIGN, 0);
    snprintf(h->text + used, sizeof h->text - used, "%u:%.*s ", type, (int)n, (const char *)data);
    return h->stop_at && --h->stop_at == 0 ? -ECANCELED : 0;
}

static void
reads(const char *want)
{
    struct collected h = { 0 };
    struct err e;

    assert_true(log_file_read(m.base, LOG_FILE_PAGE + 2 * m.half, collect, &h, &e) >= 0);
    assert_string_equal(h.text, want);
}

static void
records_are_read_in_order_and_reading_can_stop(void **state)
{
    struct collected h = { .stop_at = 2 };

    (void)state;
    reads("");
    assert_true(put(1, "one") && put(2, "") && put(3, "three and more"));
    reads("1:one 2: 3:three and more ");
    assert_int_equal(log_file_read(m.base, LOG_FILE_PAGE + 2 * m.half, collect, &h, NULL),
                     -ECANCELED);
    assert_string_equal(h.text, "1:one 2: ");
}

static void
incomplete_record_is_dropped(void **state)
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
half_is_valid_after_its_switch_and_old_records_never(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        assert_true(put(1, "first") && put(1, "second"));
        log_file_switch(&m);
        assert_true(put(2, "third"));
        reads(i ? "2:third 1:first 1:second " : "1:first 1:second ");
        log_file_switched(&m);
        reads("2:third ");
    }
}

static void
full_half_returns_null_and_memory_is_bounded(void **state)
{
    struct stat st;
    uint32_t n = 0;

    (void)state;
    for (int i = 0; i < 10; i++) {
        while (put(1, "a record of some length, to fill the half with something")) n++;
        assert_null(log_file_reserve(&m, 1, 100));
        assert_true(m.at <= HALF && m.at > HALF - 200);
        log_file_switch(&m);
        log_file_switched(&m);
    }
    assert_true(n > 10 * HALF / 100);
    assert_null(log_file_reserve(&m, 1, HALF));
    assert_null(log_file_reserve(&m, 1, UINT32_MAX));
    assert_int_equal(fstat(m.fd, &st), 0);
    assert_true((uint64_t)st.st_blocks * 512 <=
                LOG_FILE_PAGE + HALF); /* only one half has memory */
}

static void
next_lagand_reads_and_continues_in_the_other_half(void **state)
{
    struct log_file next;

    (void)state;
    assert_true(put(1, "one"));
    assert_int_equal(log_file_open(&next, dup(m.fd), NULL), 0);
    log_file_close(&m);
    m = next;
    reads("1:one ");
    assert_null(log_file_reserve(&m, 1, 1)); /* the old half takes no more records */
    log_file_switch(&m);
    assert_true(put(2, "one again"));
    reads("1:one ");
    log_file_switched(&m);
    assert_true(put(3, "two"));
    reads("2:one again 3:two ");
}

static void
interrupted_switch_leaves_no_records(void **state)
{
    struct log_file next;

    (void)state;
    assert_true(put(1, "old"));
    log_file_switch(&m);
    assert_true(put(2, "first") && put(3, "left behind")); /* killed here */
    assert_int_equal(log_file_open(&next, dup(m.fd), NULL), 0);
    log_file_close(&m);
    m = next;
    reads("1:old ");
    log_file_switch(&m);
    assert_true(put(2, "again"));
    log_file_switched(&m);
    reads("2:again ");
}

static void
void_log_has_no_records_until_it_is_rewritten(void **state)
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
invalid_files_are_refused(void **state)
{
    struct log_file other;
    struct err e;
    int fd = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    (void)state;
    assert_int_equal(log_file_open(&other, fd, &e), -EBADMSG);
    assert_int_equal(ftruncate(fd, LOG_FILE_PAGE + 2 * HALF), 0);
    assert_int_equal(log_file_open(&other, fd, &e), -EBADMSG); /* a file that could shrink */
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
    uint32_t next, third;
};

static int
count(void *arg, uint16_t type, const void *data, uint32_t n)
{
    struct seen *s = arg;
    uint32_t v;

    assert_true(n >= 4);
    memcpy(&v, data, 4);
    if (type == 2) {
        s->next = v; /* rewritten: all earlier records as one */
        s->third++;
    } else {
        assert_int_equal(v, s->next);
        s->next++;
        for (uint32_t i = 4; i < n; i++) assert_int_equal(((const uint8_t *)data)[i], (uint8_t)v);
    }
    return 0;
}

/* Writes increasing numbers in records of many lengths; reports each in `n_reported`. */
static void
write_until_killed(_Atomic uint32_t *n_reported)
{
    for (uint32_t v = atomic_load(n_reported);; v++) {
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
        atomic_store(n_reported, v + 1);
    }
}

static void
kill_at_any_instruction_loses_no_committed_record(void **state)
{
    _Atomic uint32_t *n_reported = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct seen s = { 0 };

    (void)state;
    test_seed();
    /* On a busy machine some children are killed before they run. */
    for (int i = 0; i < 300 || s.next <= 1000; i++) {
        pid_t pid = fork();
        struct timespec t = { .tv_nsec = test_below(1500000) };
        struct log_file next;

        assert_true(pid >= 0);
        if (pid == 0) write_until_killed(n_reported);
        nanosleep(&t, NULL);
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        assert_int_equal(log_file_open(&next, dup(m.fd), NULL), 0);
        log_file_close(&m);
        m = next;
        s = (struct seen){ 0 };
        assert_true(log_file_read(m.base, LOG_FILE_PAGE + 2 * m.half, count, &s, NULL) >= 0);
        /* The last record may be written and not reported. */
        assert_in_range(s.next, atomic_load(n_reported), atomic_load(n_reported) + 1);
        atomic_store(n_reported, s.next);
    }
}

int
main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(records_are_read_in_order_and_reading_can_stop),
        T(incomplete_record_is_dropped),
        T(half_is_valid_after_its_switch_and_old_records_never),
        T(full_half_returns_null_and_memory_is_bounded),
        T(next_lagand_reads_and_continues_in_the_other_half),
        T(interrupted_switch_leaves_no_records),
        T(void_log_has_no_records_until_it_is_rewritten),
        T(invalid_files_are_refused),
        T(kill_at_any_instruction_loses_no_committed_record),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_kill.c - SIGKILL at any instant leaves complete records.
 *
 * A forked writer publishes records whose bytes follow from their number, until it is killed. The
 * reader then reads the rest. Every record must be complete and in order, the end must be an empty
 * ring and not corruption, and this process must keep no descriptor or mapping. */
#include "tests/test.h"

#include "base/clock.h"
#include "ipc/channel.h"
#include "ipc/records.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOG2 = 14, ENOUGH_KILLS = 20, ENOUGH_RECORDS = 1000 };
static const nsec WHILE = 2 * NSEC_S, LIMIT = 300 * NSEC_S;
static const uint8_t id[16] = { 1 };

/* Length and bytes of a record follow from its number. */
static uint32_t
length_of(uint32_t n)
{
    return (n * 2654435761u) >> 22; /* 0 .. 1023 */
}

static uint64_t
word_of(uint32_t n, uint32_t i)
{
    return (n * UINT64_C(0x9e3779b97f4a7c15)) ^ i;
}

static void
write_for_ever(struct channel *made, int doorbell, uint64_t epoch)
{
    struct channel l;

    if (channel_attach(&l, dup(made->d.fd), dup(made->w.fd), doorbell, epoch, NULL) < 0) _exit(1);
    for (uint32_t n = 0;;) {
        uint32_t len = length_of(n);
        void *p;
        int r = ring_reserve(&l.out, REC_STEP, 0, len, 0, &p);

        if (r == -EAGAIN) {
            channel_publish(&l);
            sched_yield();
            continue;
        }
        if (r < 0) _exit(1);
        for (uint32_t i = 0; i < len / 8; i++) {
            uint64_t v = word_of(n, i);

            memcpy((uint8_t *)p + 8 * i, &v, 8);
        }
        memset((uint8_t *)p + len / 8 * 8, (int)n & 0xff, len % 8);
        n++;
        if (n % 5 == 0) {
            channel_publish(&l);
        }
    }
}

/* Reads all records; returns their number. */
static uint32_t
take_all(struct channel *l, uint32_t next)
{
    struct ring_record rec;
    uint32_t first = next;
    int r;

    while ((r = ring_peek(&l->in, &rec)) == 1) {
        const uint8_t *bytes = rec.data;

        if (rec.type != REC_STEP || rec.len != length_of(next)) fail();
        for (uint32_t i = 0; i < rec.len / 8; i++) {
            uint64_t v;

            memcpy(&v, bytes + 8 * i, 8);
            if (v != word_of(next, i)) fail();
        }
        for (uint32_t i = rec.len / 8 * 8; i < rec.len; i++) {
            if (bytes[i] != (uint8_t)next) fail();
        }
        next++;
    }
    if (r < 0) print_error("%s\n", ring_why(&l->in));
    assert_int_equal(r, 0);
    channel_release(l);
    return next - first;
}

static uint32_t
entries(const char *dir)
{
    DIR *d = opendir(dir);
    uint32_t n = 0;

    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static uint32_t
mappings(void)
{
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    uint32_t n = 0;

    while (fgets(line, sizeof line, f)) n += strstr(line, "lagand:") != NULL;
    fclose(f);
    return n;
}

static void
published_records_survive_sigkill_complete(void **state)
{
    nsec began = clock_now();
    uint32_t kills = 0, fds = entries("/proc/self/fd");
    uint64_t records = 0;

    (void)state;
    test_seed();
    /* 2 s; on a busy machine until enough kills and records have happened. */
    while (clock_now() - began < WHILE || kills < ENOUGH_KILLS || records < ENOUGH_RECORDS) {
        struct channel l;
        struct err e;
        int doorbell, status;
        uint32_t next = 0, from_doorbell = 0;
        nsec until;
        pid_t pid;

        if (clock_now() - began > LIMIT)
            fail_msg("%u kills, %llu records and no more", kills, (unsigned long long)records);
        kills++;
        assert_int_equal(channel_make(&l, 0, kills, id, LOG2, LOG2, &doorbell, &e), 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            write_for_ever(&l, doorbell, kills);
        }
        close(doorbell);
        until = clock_now() + test_below(3000) * NSEC_US;
        do {
            uint32_t n = take_all(&l, next);

            next += n;
            if (!n) sched_yield(); /* lets the writer run if both share a processor */
        } while (clock_now() < until);
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        next += take_all(&l, next);
        while (doorbell_drain(&l.doorbell) >= 0)
            from_doorbell++; /* ends: the peer's end is closed */
        assert_int_equal(take_all(&l, next), 0);
        records += next;
        channel_close(&l);
        assert_int_equal(mappings(), 0);
    }
    assert_int_equal(entries("/proc/self/fd"), fds);
    print_message("%u kills, %llu records\n", kills, (unsigned long long)records);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_records_survive_sigkill_complete),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

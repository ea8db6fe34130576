/* bench_ring.c - records a second from one process to another: the ring and its bell against a pipe.
 *
 *     bench_ring [RUNS] [RECORDS]
 *
 * A forked writer sends records of one size; the time runs until the reader has the last one. Ring: one
 * publish for a batch of 32 records, or one for each; who has nothing to do looks for 50 us and then
 * sleeps on the bell. (A reader that sleeps at once is woken for nearly every single record, and then
 * what is measured is the wake-up: 5 to 20 us.) Pipe: a write() and a read() a record. The cases are
 * taken in turn, RUNS times, so that whatever else the machine does falls on all of them.
 */
#include "base/clock.h"
#include "ipc/link.h"
#include "ipc/records.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_RUNS = 101, MAX_LEN = 1024 };
#define SPIN (50 * NSEC_US) /* about ten times what waking a sleeper costs */

static void
die(const char *what)
{
    perror(what);
    exit(1);
}

/* Wait until the peer publishes or gives room back: a moment awake, then asleep. */
static void
wait_for_peer(struct link *l)
{
    nsec until = clock_now() + SPIN;

    do {
        for (int i = 0; i < 64; i++) {
            if (link_ready(l)) return;
        }
    } while (clock_now() < until);
    if (bell_sleep(&l->bell, link_ready, l)) {
        struct pollfd p = { .fd = l->bell.fd, .events = POLLIN };

        if (poll(&p, 1, -1) < 0 && errno != EINTR) die("poll");
    }
    bell_wake(&l->bell);
    if (bell_drain(&l->bell) == -EPIPE && !link_ready(l)) exit(0);
}

static void
write_ring(struct link *l, uint32_t n, uint32_t len, uint32_t batch)
{
    for (uint32_t i = 0; i < n;) {
        void *p;
        int r = ring_reserve(&l->out, REC_STEP, 0, len, 0, &p);

        if (r == 0) {
            memset(p, (int)i, len);
            i++;
        }
        if (r < 0 || i % batch == 0 || i == n) {
            ring_publish(&l->out);
            bell_ring(&l->bell);
        }
        if (r == -EAGAIN) wait_for_peer(l);
    }
}

static double
run_ring(uint32_t n, uint32_t len, uint32_t batch)
{
    static const uint8_t id[16] = { 1 };
    struct link l, w;
    struct err e;
    uint32_t got = 0;
    pid_t pid;
    nsec t0;
    int bell;

    if (link_make(&l, 0, 1, id, 0, 0, &bell, &e) < 0) die(e.text);
    pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) {
        int d = dup(l.d.fd), fd = dup(l.w.fd);

        close(l.bell.fd);
        if (link_attach(&w, d, fd, bell, 1, &e) < 0) die(e.text);
        while (!link_ready(&w)) wait_for_peer(&w); /* the reader's word to start */
        write_ring(&w, n, len, batch);
        _exit(0);
    }
    close(bell);
    t0 = clock_now();
    if (ring_reserve(&l.out, REC_DRAIN, 0, 0, 0, &(void *){ NULL }) < 0) die("start");
    ring_publish(&l.out);
    bell_ring(&l.bell);
    while (got < n) {
        struct ring_record rec;
        int r;

        while ((r = ring_peek(&l.in, &rec)) == 1) got++;
        if (r < 0) die(ring_why(&l.in));
        ring_release(&l.in);
        bell_ring(&l.bell);
        if (got < n) wait_for_peer(&l);
    }
    t0 = clock_now() - t0;
    waitpid(pid, NULL, 0);
    link_close(&l);
    return (double)t0 / n;
}

static double
run_pipe(uint32_t n, uint32_t len)
{
    static char bytes[MAX_LEN];
    int p[2];
    pid_t pid;
    nsec t0;

    if (pipe(p) < 0) die("pipe");
    pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) {
        for (uint32_t i = 0; i < n; i++) {
            memset(bytes, (int)i, len);
            if (write(p[1], bytes, len) != (ssize_t)len) _exit(1);
        }
        _exit(0);
    }
    close(p[1]);
    t0 = clock_now();
    for (uint64_t got = 0; got < (uint64_t)n * len;) {
        ssize_t r = read(p[0], bytes, len);

        if (r <= 0) die("read");
        got += (uint64_t)r;
    }
    t0 = clock_now() - t0;
    waitpid(pid, NULL, 0);
    close(p[0]);
    return (double)t0 / n;
}

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double
report(const char *name, double *v, int n, const char *unit)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    printf(
        "{\"bench\":\"ring\",\"case\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"n\":%d,\"min\":%.4g,"
        "\"median\":%.4g,\"max\":%.4g}\n",
        name, v[n / 2], unit, n, v[0], v[n / 2], v[n - 1]);
    return v[n / 2];
}

int
main(int argc, char **argv)
{
    static const struct {
        const char *name;
        uint32_t len, batch; /* batch 0: the pipe */
    } cases[] = {
        { "batched_64", 64, 32 },     { "single_64", 64, 1 },     { "pipe_64", 64, 0 },
        { "batched_1024", 1024, 32 }, { "single_1024", 1024, 1 }, { "pipe_1024", 1024, 0 },
    };
    static double v[ARRAY_LEN(cases)][MAX_RUNS], ratio[MAX_RUNS];
    int runs = argc > 1 ? atoi(argv[1]) : 9;
    int n = argc > 2 ? atoi(argv[2]) : 200000;

    if (runs < 1 || runs > MAX_RUNS || n < 1) {
        fprintf(stderr, "usage: bench_ring [RUNS, at most %d] [RECORDS]\n", MAX_RUNS);
        return 2;
    }
    for (int i = 0; i < runs; i++) {
        for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
            v[c][i] = cases[c].batch ? run_ring((uint32_t)n, cases[c].len, cases[c].batch)
                                     : run_pipe((uint32_t)n, cases[c].len);
        }
    }
    for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
        size_t peer = c / 3 * 3 + 2;
        char name[64];

        if (c == peer) continue;
        for (int i = 0; i < runs; i++) ratio[i] = v[peer][i] / v[c][i];
        snprintf(name, sizeof name, "%s_vs_pipe", cases[c].name);
        report(name, ratio, runs, "x");
    }
    for (size_t c = 0; c < ARRAY_LEN(cases); c++) report(cases[c].name, v[c], runs, "ns/record");
    return 0;
}

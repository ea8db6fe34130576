/* bench_ring.c - records a second from one process to another: the ring and its bell against a pipe.
 *
 *     bench_ring [RUNS] [RECORDS]
 *
 * A forked writer sends records of one size; the time runs until the reader has the last one. Ring: one
 * publish for a batch of 32 records, or one for each; who has nothing to do sleeps on the bell at once, as
 * lagand does on few cores. (A reader faster than the writer is then woken for nearly every publish: that
 * is what "single" costs.) Pipe: a write() and a read() a record. Beside the time there is the processor
 * time of both processes, which says more on a machine that others use too. The cases are taken in turn,
 * RUNS times, so that whatever else the machine does falls on all of them.
 */
#include "base/clock.h"
#include "ipc/link.h"
#include "ipc/records.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_RUNS = 101, MAX_LEN = 1024 };

static void
die(const char *what)
{
    perror(what);
    exit(1);
}

/* Sleep until the peer publishes or gives room back. */
static void
wait_for_peer(struct link *l)
{
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

/* Processor time of this process and of those it has waited for, in ns. */
static double
cpu_time(void)
{
    struct rusage u;
    double us = 0;

    for (int who = 0; who < 2; who++) {
        getrusage(who ? RUSAGE_CHILDREN : RUSAGE_SELF, &u);
        us += 1e6 * (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec);
        us += (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
    }
    return us * 1e3;
}

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void
report(const char *name, const char *what, double *v, int n, const char *unit)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    printf("{\"bench\":\"ring\",\"case\":\"%s%s\",\"value\":%.4g,\"unit\":\"%s\",\"n\":%d,"
           "\"min\":%.4g,\"median\":%.4g,\"max\":%.4g}\n",
           name, what, v[n / 2], unit, n, v[0], v[n / 2], v[n - 1]);
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
    static double v[2][ARRAY_LEN(cases)][MAX_RUNS], ratio[MAX_RUNS];
    static const char *const what[] = { "", "_cpu" };
    int runs = argc > 1 ? atoi(argv[1]) : 9;
    int n = argc > 2 ? atoi(argv[2]) : 200000;

    if (runs < 1 || runs > MAX_RUNS || n < 1) {
        fprintf(stderr, "usage: bench_ring [RUNS, at most %d] [RECORDS]\n", MAX_RUNS);
        return 2;
    }
    for (int i = 0; i < runs; i++) {
        for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
            double cpu = cpu_time();

            v[0][c][i] = cases[c].batch ? run_ring((uint32_t)n, cases[c].len, cases[c].batch)
                                        : run_pipe((uint32_t)n, cases[c].len);
            v[1][c][i] = (cpu_time() - cpu) / n;
        }
    }
    for (int k = 0; k < 2; k++) {
        for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
            size_t peer = c / 3 * 3 + 2;

            if (c == peer) continue;
            for (int i = 0; i < runs; i++) ratio[i] = v[k][peer][i] / v[k][c][i];
            report(cases[c].name, k ? "_vs_pipe_cpu" : "_vs_pipe", ratio, runs, "x");
        }
    }
    for (int k = 0; k < 2; k++) {
        for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
            report(cases[c].name, what[k], v[k][c], runs, "ns/record");
        }
    }
    return 0;
}

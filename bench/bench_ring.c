/* bench_ring.c - messages between two processes: ring and doorbell beside pipe, socketpair, ZeroMQ
 * and other rings.
 *
 *     bench_ring [RUNS [WORD]]         WORD: only cases whose name contains it, no gates
 *
 * Two processes on the first two processors do the same work with every way (bench/transports.h).
 * Latency: half a round trip without the first 10 %, median of a run. Throughput: time of 16,384
 * messages at the reader, median of a run. Step: the writer wakes every 0.5 ms and sends 64
 * messages of 32 bytes to a sleeping reader; the time of the writer. The cases alternate, RUNS
 * times.
 *
 * A probe before and after each measurement passes a cache line between the processors, because a
 * hypervisor may move both to one core. A measurement is repeated if a probe differs by more than
 * 30 % from the median at the start, in all at most 4 times as often as requested. The gates are
 * from a host with probes of 80 to 200 ns.
 *
 * All ways but ZeroMQ run as SCHED_FIFO if permitted, at most 0.1 s at a time. *Because* two
 * spinning processes measure nothing on a machine that runs them alternately.
 *
 * The gates G1 to G7 compare medians over the rounds. A peer that was missing at configure is left
 * out.
 */
#include "base/clock.h"
#include "bench/transports.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_RUNS = 99, SEGMENT = 16384, MAX_TRIPS = 20000, STEP_TOKENS = 64, STEP_BYTES = 32 };
enum { MAX_SEGMENTS = 24, N_STEPS = 400, PROBES = 15, MOST_SECONDS = 60 };

static int cpu[2];
static bool fifo = true;

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double
median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static void
place(pid_t pid, int side, bool before_others)
{
    struct sched_param p = { .sched_priority = before_others };
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(cpu[side], &one);
    if (sched_setaffinity(pid, sizeof one, &one) < 0) way_die("sched_setaffinity");
    if (sched_setscheduler(pid, before_others ? SCHED_FIFO : SCHED_OTHER, &p) < 0) fifo = false;
}

static void
find_processors(void)
{
    cpu_set_t all;
    int n = 0;

    if (sched_getaffinity(0, sizeof all, &all) < 0) way_die("sched_getaffinity");
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET(i, &all)) cpu[n++] = i;
    if (n == 2) return;
    fprintf(stderr, "bench_ring: needs two processors\n");
    exit(2);
}

/* Forks; the child runs on the other processor and ends with _exit(). w may be NULL. */
static pid_t
split(const struct way *w)
{
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid < 0) way_die("fork");
    /* In each process: a peer that spins for an exited process would block the processor. */
    alarm(MOST_SECONDS);
    if (pid) { /* the child first: it may need this processor */
        place(pid, 1, w != &way_zmq);
        place(0, 0, w != &way_zmq);
    }
    return pid;
}

static void
reap(pid_t pid)
{
    int status;

    alarm(0);
    place(0, 0, false);
    if (waitpid(pid, &status, 0) != pid || status) {
        fprintf(stderr, "bench_ring: the other process failed\n");
        exit(1);
    }
}

/* Returns the ns to pass a cache line to the other processor. */
static double
probe(void)
{
    enum { ROUNDS = 9, TRIPS = 1000 };
    _Atomic uint32_t *line = way_shared(4096);
    double v[ROUNDS];
    pid_t pid = split(NULL);

    if (pid == 0) {
        for (uint32_t i = 1; i < 2 * ROUNDS * TRIPS; i += 2) {
            while (atomic_load_explicit(line, memory_order_acquire) != i) {
            }
            atomic_store_explicit(line, i + 1, memory_order_release);
        }
        _exit(0);
    }
    for (uint32_t k = 0, i = 0; k < ROUNDS; k++) {
        nsec t0 = clock_now();

        for (uint32_t n = 0; n < TRIPS; n++, i += 2) {
            atomic_store_explicit(line, i + 1, memory_order_release);
            while (atomic_load_explicit(line, memory_order_acquire) != i + 2) {
            }
        }
        v[k] = (double)(clock_now() - t0) / (2 * TRIPS);
    }
    reap(pid);
    return median(v, ROUNDS);
}

/* Returns the median of half a round trip in ns. */
static double
latency(const struct way *w, uint32_t len)
{
    static double v[MAX_TRIPS];
    int trips = w == &way_ring || w == &way_unchecked || w == &way_ck || w == &way_rte ? MAX_TRIPS
                                                                                       : 2000;
    void *t = w->make(len);
    pid_t pid = split(w);

    w->join(t, pid == 0);
    for (int i = 0; i < trips; i++) {
        nsec t0 = clock_now();

        if (pid) w->send(t, (uint64_t)i, 1);
        w->take(t, (uint64_t)i);
        if (!pid) w->send(t, (uint64_t)i, 1);
        v[i] = (double)(clock_now() - t0) / 2;
    }
    if (!pid) {
        w->leave(t);
        _exit(0);
    }
    reap(pid);
    w->leave(t);
    return median(v + trips / 10, trips - trips / 10);
}

/* Returns the ns per message, batch messages at a time. */
static double
throughput(const struct way *w, uint32_t len, uint32_t batch)
{
    double v[MAX_SEGMENTS];
    uint64_t seq = 0,
             n = SEGMENT *
                 (w == &way_pipe || w == &way_socketpair || w == &way_zmq ? 6 : MAX_SEGMENTS);
    int n_v = 0;
    void *t = w->make(len);
    pid_t pid = split(w);
    nsec since;

    w->join(t, pid == 0);
    if (!pid) {
        for (; seq < n; seq += batch) w->send(t, seq, batch);
        w->take(t, 0); /* the reader has received all */
        w->leave(t);
        _exit(0);
    }
    since = clock_now();
    for (uint64_t mark = SEGMENT, last = 0; seq < n;) {
        seq += w->take(t, seq);
        if (seq < mark) continue;
        v[n_v++] = (double)(clock_now() - since) / (double)(seq - last);
        since = clock_now();
        last = seq;
        mark = seq / SEGMENT * SEGMENT + SEGMENT;
    }
    w->send(t, 0, 1);
    reap(pid);
    w->leave(t);
    return median(v, n_v);
}

struct steps {
    double ns[N_STEPS]; /* of the writer, per step */
    uint64_t n_signals;
};

/* Returns the ns of the writer for a step of 64 tokens with a sleeping reader; *calls: its system
 * calls. */
static double
step(const struct way *w, double *calls)
{
    struct steps *s = way_shared(sizeof *s);
    const uint64_t n = (uint64_t)N_STEPS * STEP_TOKENS;
    void *t = w->make(STEP_BYTES);
    pid_t pid = split(w);

    w->join(t, pid == 0);
    if (!pid) {
        for (int i = 0; i < N_STEPS; i++) {
            nsec t0;

            usleep(500);
            t0 = clock_now();
            w->send(t, (uint64_t)i * STEP_TOKENS, STEP_TOKENS);
            s->ns[i] = (double)(clock_now() - t0);
        }
        if (w == &way_doorbell) s->n_signals = way_doorbell_signals(t);
        w->take(t, 0);
        w->leave(t);
        _exit(0);
    }
    for (uint64_t seq = 0; seq < n;) seq += w->take(t, seq);
    w->send(t, 0, 1);
    reap(pid);
    w->leave(t);
    *calls = w == &way_doorbell ? (double)s->n_signals / N_STEPS : STEP_TOKENS;
    return median(s->ns, N_STEPS);
}

/* ---- measurements and gates */

enum kind { LATENCY, BATCHED, SINGLE, STEP, CALLS };

static const struct measure {
    enum kind kind;
    const struct way *way;
    uint32_t len;
} measures[] = {
    { LATENCY, &way_ring, 64 },        { LATENCY, &way_unchecked, 64 },
    { LATENCY, &way_ck, 64 },          { LATENCY, &way_rte, 64 },
    { LATENCY, &way_doorbell, 64 },    { LATENCY, &way_pipe, 64 },
    { LATENCY, &way_socketpair, 64 },  { LATENCY, &way_zmq, 64 },
    { BATCHED, &way_ring, 64 },        { BATCHED, &way_unchecked, 64 },
    { BATCHED, &way_ck, 64 },          { BATCHED, &way_rte_burst, 64 },
    { SINGLE, &way_ring, 64 },         { SINGLE, &way_ck, 64 },
    { SINGLE, &way_rte, 64 },          { SINGLE, &way_doorbell, 64 },
    { SINGLE, &way_pipe, 64 },         { SINGLE, &way_socketpair, 64 },
    { SINGLE, &way_zmq, 64 },          { BATCHED, &way_ring, 1024 },
    { BATCHED, &way_unchecked, 1024 }, { BATCHED, &way_ck, 1024 },
    { BATCHED, &way_rte_burst, 1024 }, { STEP, &way_doorbell, STEP_BYTES },
    { STEP, &way_pipe, STEP_BYTES },   { CALLS, &way_doorbell, STEP_BYTES },
};
static const char *const kinds[] = { "latency", "batched", "single", "step64", "step64_calls" };
static const char *const units[] = { "ns", "ns/message", "ns/message", "ns/step", "calls/step" };

/* a / b, or a alone if b has no way. */
static const struct gate {
    const char *name;
    struct measure a, b;
    double limit;
    bool at_least; /* otherwise at most */
} gates[] = {
    { "G1", { BATCHED, &way_ck, 64 }, { BATCHED, &way_ring, 64 }, 5, true },
    { "G1", { BATCHED, &way_rte_burst, 64 }, { BATCHED, &way_ring, 64 }, 0.9, true },
    { "G2", { BATCHED, &way_ck, 1024 }, { BATCHED, &way_ring, 1024 }, 1.5, true },
    { "G2", { BATCHED, &way_rte_burst, 1024 }, { BATCHED, &way_ring, 1024 }, 1.2, true },
    { "G3", { SINGLE, &way_ck, 64 }, { SINGLE, &way_ring, 64 }, 1, true },
    { "G4", { LATENCY, &way_ring, 64 }, { LATENCY, &way_ck, 64 }, 1, false },
    { "G4", { LATENCY, &way_zmq, 64 }, { LATENCY, &way_ring, 64 }, 80, true },
    { "G5", { LATENCY, &way_doorbell, 64 }, { LATENCY, &way_pipe, 64 }, 1.15, false },
    { "G5", { LATENCY, &way_doorbell, 64 }, { LATENCY, &way_zmq, 64 }, 0.75, false },
    { "G6", { STEP, &way_doorbell, STEP_BYTES }, { STEP, &way_pipe, STEP_BYTES }, 0.6, false },
    { "G6", { CALLS, &way_doorbell, STEP_BYTES }, { CALLS, NULL, 0 }, 1, false },
    { "G7", { BATCHED, &way_ring, 64 }, { BATCHED, &way_unchecked, 64 }, 1.05, false },
    { "G7", { BATCHED, &way_ring, 1024 }, { BATCHED, &way_unchecked, 1024 }, 1.05, false },
    { "G7", { LATENCY, &way_ring, 64 }, { LATENCY, &way_unchecked, 64 }, 1.05, false },
};

static double results[ARRAY_LEN(measures)][MAX_RUNS];
static double usual; /* ns of the probe at the start */
static int n_again, most_again;

static double
measure(const struct measure *m)
{
    double calls, ns;

    switch (m->kind) {
    case LATENCY:
        return latency(m->way, m->len);
    case BATCHED:
        return throughput(m->way, m->len, 32);
    case SINGLE:
        return throughput(m->way, m->len, 1);
    default:
        break;
    }
    ns = step(m->way, &calls);
    return m->kind == STEP ? ns : calls;
}

static bool
as_usual(void)
{
    double ns = probe();

    return ns >= usual / 1.3 && ns <= usual * 1.3;
}

/* Returns false after too many repetitions. */
static bool
measure_between_probes(const struct measure *m, double *ret)
{
    for (;; n_again++) {
        bool before = as_usual();

        *ret = measure(m);
        if (before && as_usual()) return true;
        if (n_again == most_again) return false;
    }
}

static int
measure_index(const struct measure *m)
{
    for (size_t i = 0; i < ARRAY_LEN(measures); i++)
        if (measures[i].kind == m->kind && measures[i].way == m->way && measures[i].len == m->len)
            return m->way->name ? (int)i : -1;
    return -1;
}

static void
print_line(const char *name, double value, const char *unit, double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    printf("{\"bench\":\"ring\",\"case\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"n\":%d,"
           "\"min\":%.4g,\"median\":%.4g,\"max\":%.4g",
           name, value, unit, n, v[0], v[n / 2], v[n - 1]);
}

static const char *
name_of(const struct measure *m)
{
    static char name[64];

    snprintf(name, sizeof name, "%s_%s_%u", kinds[m->kind], m->way->name, m->len);
    return name;
}

static void
print_measure(const struct measure *m, const double *runs, int n)
{
    double v[MAX_RUNS];

    memcpy(v, runs, (size_t)n * sizeof *v);
    print_line(name_of(m), median(v, n), units[m->kind], v, n);
    printf("}\n");
}

static void
print_gate(const struct gate *g, int n)
{
    int a = measure_index(&g->a), b = g->b.way ? measure_index(&g->b) : -1;
    double v[MAX_RUNS], x[MAX_RUNS], y[MAX_RUNS], value;
    char name[96];

    if (a < 0 || (g->b.way && b < 0)) return;
    for (int i = 0; i < n; i++) {
        x[i] = results[a][i];
        y[i] = b < 0 ? 1 : results[b][i];
        v[i] = x[i] / y[i];
    }
    value = median(x, n) / median(y, n);
    snprintf(name, sizeof name, "%s %s_%u %s%s%s", g->name, kinds[g->a.kind], g->a.len,
             g->a.way->name, b < 0 ? "" : "/", b < 0 ? "" : g->b.way->name);
    print_line(name, value, b < 0 ? units[g->a.kind] : "x", v, n);
    printf(",\"%s\":%.3g,\"pass\":%s}\n", g->at_least ? "at_least" : "at_most", g->limit,
           (g->at_least ? value >= g->limit : value <= g->limit) ? "true" : "false");
}

int
main(int argc, char **argv)
{
    int runs = argc > 1 ? atoi(argv[1]) : 9, n = 0;
    double probes[PROBES];
    bool valid = true, chosen[ARRAY_LEN(measures)];

    if (argc > 3 || runs < 1 || runs > MAX_RUNS) {
        fprintf(stderr, "usage: bench_ring [RUNS, at most %d [WORD]]\n", MAX_RUNS);
        return 2;
    }
    find_processors();
    if (!way_ck.name) printf("ck_ring is left out: libck-dev was missing at configure\n");
    if (!way_rte.name) printf("rte_ring is left out: libdpdk-dev was missing at configure\n");
    for (int i = 0; i < PROBES; i++) probes[i] = probe();
    usual = median(probes, PROBES);
    for (size_t i = 0; i < ARRAY_LEN(measures); i++)
        chosen[i] = measures[i].way->name && (argc < 3 || strstr(name_of(&measures[i]), argv[2]));
    most_again = 3 * runs * (int)ARRAY_LEN(measures);
    for (; n < runs; n++)
        for (size_t i = 0; i < ARRAY_LEN(measures); i++)
            if (chosen[i]) valid &= measure_between_probes(&measures[i], &results[i][n]);
    printf("probe: %.0f ns, %s, %d measurements repeated%s\n", usual,
           fifo ? "SCHED_FIFO" : "SCHED_OTHER", n_again,
           valid ? "" : ": other load is too high for the gates");
    for (size_t i = 0; i < ARRAY_LEN(measures); i++)
        if (chosen[i]) print_measure(&measures[i], results[i], n);
    for (size_t i = 0; i < ARRAY_LEN(gates) && valid && argc < 3; i++) print_gate(&gates[i], n);
    return 0;
}

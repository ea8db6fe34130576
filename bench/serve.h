/* serve.h - a private lagand around a benchmark, and what its worker has done so far. */
#ifndef BENCH_SERVE_H
#define BENCH_SERVE_H

#include "base/base.h"
#include "include/lagan.h"

#include <sys/types.h>

enum { BENCH_SETS = 24, BENCH_KINDS = 3 };

struct bench_serve {
    const char *model, *device; /* device NULL: cpu */
    const char *programs; /* folder of lagand and lagan-worker built with failpoints; NULL: none */
    const char *set[BENCH_SETS];
    uint32_t n_set;
    /* made by bench_start() */
    const char *name; /* the model directory's */
    uint32_t vocab;
    pid_t pid, worker;
    char dir[64];
    nsec ready; /* from start to READY */
    struct lagan *client;
    struct fp_board *board; /* programs' */
};

struct bench_worker {
    nsec at, cpu; /* when this was read; processor time of all its threads */
    uint64_t steps, tokens, prompt_tokens;
    uint64_t gaps, idle_ns; /* between steps that were queued: how many, how long; 0: not known */
    uint64_t graphs;        /* captured steps that it has; 0: the device has none */
    struct {
        uint64_t n, ns;
    } kind[BENCH_KINDS]; /* steps of prompts alone, of answers alone, of both */
};

_Noreturn void bench_die(const char *format, ...) PRINTF_LIKE(1, 2); /* stops lagand too */
void bench_start(struct bench_serve *s);
void bench_stop(struct bench_serve *s);
bool bench_crash(struct bench_serve *s); /* the worker's next step writes where no memory is */
nsec bench_again(struct bench_serve *s); /* the worker dies: when another one is ready */
pid_t bench_rank(struct bench_serve *s); /* the process that is rank 1 now; 0: there is none */
void bench_worker(struct bench_serve *s, struct bench_worker *ret);
/* What only an operator may say: a verb of laganctl with its arguments, a JSON object. */
void bench_tell(const struct bench_serve *s, const char *verb, const char *args);

#endif

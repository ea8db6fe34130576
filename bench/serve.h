/* serve.h - a private lagand around a benchmark, and what its worker has done so far. */
#pragma once
#include "base/base.h"
#include "include/lagan.h"

#include <sys/types.h>

enum { BENCH_SETS = 24, BENCH_KINDS = 3 };

struct bench_serve {
    const char *model, *device; /* device NULL: cpu */
    const char *programs;       /* directory of programs with failpoints; NULL: none */
    const char *set[BENCH_SETS];
    uint32_t n_set;
    /* made by bench_start() */
    const char *name; /* name of the model directory */
    uint32_t vocab;
    pid_t pid, worker;
    char dir[64];
    nsec ready; /* from start to READY */
    struct lagan *client;
    struct fp_board *board; /* failpoints of programs */
};

struct bench_worker {
    nsec at, cpu; /* time of the reading; processor time of all threads */
    uint64_t steps, tokens, prompt_tokens;
    uint64_t gaps, idle; /* idle times of the device between queued steps: number, ns; 0: unknown */
    uint64_t graphs;     /* captured steps; 0: the device captures none */
    struct {
        uint64_t n, ns;
    } kind[BENCH_KINDS]; /* prefill, decode, mixed steps */
};

_Noreturn void bench_die(const char *format, ...) PRINTF_LIKE(1, 2); /* stops lagand, too */
void bench_start(struct bench_serve *s);
void bench_stop(struct bench_serve *s);
bool bench_crash(struct bench_serve *s); /* the next step writes to invalid memory */
nsec bench_wait_replacement(
    struct bench_serve *s);              /* after a death: time when a replacement is ready */
pid_t bench_rank(struct bench_serve *s); /* process of rank 1; 0: none */
void bench_worker(struct bench_serve *s, struct bench_worker *ret);
/* Sends an operator command: a verb of laganctl with its arguments, a JSON object. */
void bench_send_command(const struct bench_serve *s, const char *verb, const char *args);

/* repeat_load.h - requests to three real models, repeated: each result must have the bits of the
 * first.
 *
 * 32 requests at once through liblagan: greedy and sampled, beam searches, several samples of one
 * prompt, an encoder-decoder model, prompts of several chunks, and pools so small that blocks are
 * reused all the time.
 */
#pragma once
#include "include/lagan.h"
#include "tests/torture/service.h"

enum {
    LOAD_REQUESTS = 32,
    LOAD_TOKENS = 48,
    LOAD_TOPS = 2,
    LOAD_MODELS = 3,
    LOAD_PROMPT = 300,
    LOAD_OUTPUTS = 3,
    LOAD_T5 = 1, /* index of the worker with an encoder */
    LOAD_ALL = 1 << 16
};

struct load_output {
    uint32_t n, reason, adopted; /* adopted: positions that were not recomputed */
    int32_t id[LOAD_TOKENS];
    float logprob[LOAD_TOKENS];
    struct lagan_top_logprob top[LOAD_TOKENS][LOAD_TOPS];
    uint64_t other[LOAD_OUTPUTS]; /* hash of each further output */
    uint32_t n_other[LOAD_OUTPUTS];
};

struct repeated_request { /* one request that runs again and again */
    struct lagan_request *q;
    int32_t prompt[LOAD_PROMPT];
    uint32_t n_prompt;
    uint64_t id;  /* 0: not running */
    bool search;  /* beam search: no log-probabilities */
    bool differs; /* its last result differs from the first */
    struct load_output want, got;
};

struct repeat_load {
    struct service *v;
    struct lagan *c;
    bool
        /* set by the test: separate lanes for prefill and decode, in one worker also for the
         * encoder */
        lanes;
    uint32_t ranks; /* ranks of each model, set before the first start; 0: 1 */
    struct repeated_request request[LOAD_REQUESTS];
    uint64_t n_done, n_tokens, n_events, resumed, adopted, recomputed;
    uint64_t n_differ; /* results that differ; fails the test unless may_differ */
    bool may_differ;
    char config[3072]; /* configuration of lagand */
};

/* Starts lagand with one worker and `standby` standbys per model; the first start also runs the
 * undisturbed requests to compare with. args: more options of lagand, NULL-terminated. *a is zero
 * before the first start. */
void repeat_load_start(struct repeat_load *a, struct service *v, const char *dtype,
                       uint32_t standby, const char *const *args);
/* Standbys per worker: at least 1 on a GPU. */
uint32_t repeat_load_standbys(uint32_t standby);
/* Starts the next lagand after lagand was killed; the client does not know. */
void repeat_load_reattach(struct repeat_load *a);
void repeat_load_stop(struct repeat_load *a); /* SIGTERM, exit code 0 */
void repeat_load_close(struct repeat_load *a);

/* Returns a value of `workers list`: of worker 0, 1 or 2, or the sum of all, since each started. */
uint64_t repeat_load_counted(struct repeat_load *a, const char *what, uint32_t worker);
/* Returns lagan_worker_NAME_total of all workers, including exited ones. */
uint64_t repeat_load_total(struct repeat_load *a, const char *name);
/* Takes events for `ms`. more: first submits every finished request again. */
void repeat_load_run(struct repeat_load *a, int ms, bool more);
void repeat_load_settle(
    struct repeat_load
        *a); /* Waits until no request runs; fails the test after 60 s without an event. */

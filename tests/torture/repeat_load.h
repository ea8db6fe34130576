/* repeat_load.h - requests to three real models, asked again and again: each answer is to have the bits of
 * the first one.
 *
 * 32 of them under way at once: greedy and sampled, searches with beams and several samples of one prompt, an
 * encoder and a decoder, prompts of several chunks, pools so small that blocks are reused all the time. They speak
 * through liblagan.
 */
#ifndef TESTS_TORTURE_REPEAT_LOAD_H
#define TESTS_TORTURE_REPEAT_LOAD_H

#include "include/lagan.h"
#include "tests/torture/service.h"

enum {
    LOAD_REQUESTS = 32,
    LOAD_TOKENS = 48,
    LOAD_TOPS = 2,
    LOAD_MODELS = 3,
    LOAD_PROMPT = 300,
    LOAD_OUTPUTS = 3,
    LOAD_T5 = 1, /* of the workers, the one with an encoder */
    LOAD_ALL = 1 << 16
};

struct load_output {
    uint32_t n, reason, adopted; /* adopted: positions that were not computed again */
    int32_t id[LOAD_TOKENS];
    float logprob[LOAD_TOKENS];
    struct lagan_top_logprob top[LOAD_TOKENS][LOAD_TOPS];
    uint64_t other[LOAD_OUTPUTS]; /* outputs behind the first: a hash of all that came of each */
    uint32_t n_other[LOAD_OUTPUTS];
};

struct repeated_request { /* one request that runs again and again */
    struct lagan_request *q;
    int32_t prompt[LOAD_PROMPT];
    uint32_t n_prompt;
    uint64_t id;  /* 0: not under way */
    bool search;  /* with beams: it has no log-probabilities */
    bool differs; /* its last answer, from the first */
    struct load_output want, got;
};

struct repeat_load {
    struct service *v;
    struct lagan *c;
    bool
        lanes; /* the test's: workers have lanes for prompts and answers apart, one also for sources */
    uint32_t ranks; /* of each model's group; 0: 1. Set before the first start */
    struct repeated_request request[LOAD_REQUESTS];
    uint64_t n_done, n_tokens, n_events, resumed, adopted, recomputed;
    uint64_t n_differ; /* answers that were others; the test fails unless it said may_differ */
    bool may_differ;
    char config[3072]; /* lagand's */
};

/* A lagand with one worker a model and so many standbys each; the first time also undisturbed answers,
 * to compare with. args: more of lagand's, up to a NULL. *a is zero before the first. */
void repeat_load_start(struct repeat_load *a, struct service *v, const char *dtype, uint32_t standby,
                   const char *const *args);
/* Processes that wait beside a worker: on a GPU one in any case. */
uint32_t repeat_load_standbys(uint32_t standby);
/* lagand has been killed: the next one, of the same settings. The client has not heard of it. */
void repeat_load_reattach(struct repeat_load *a);
void repeat_load_stop(struct repeat_load *a); /* lagand, in good order */
void repeat_load_close(struct repeat_load *a);

/* A figure of `workers list`, of worker 0, 1, 2 or the sum of all, since each began. */
uint64_t repeat_load_counted(struct repeat_load *a, const char *what, uint32_t worker);
/* lagan_worker_NAME_total of all workers, those that have died included. */
uint64_t repeat_load_total(struct repeat_load *a, const char *name);
/* Take events for so long. more: ask again whatever has been answered, first. */
void repeat_load_run(struct repeat_load *a, int ms, bool more);
void repeat_load_settle(
    struct repeat_load
        *a); /* until nothing is under way; fails the test if nothing comes for a minute */

#endif

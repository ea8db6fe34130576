/* answers.h - requests to three real models, asked again and again: each answer is to have the bits of
 * the first one.
 *
 * 32 of them under way at once: greedy and sampled, searches with beams and several samples of one prompt, an
 * encoder and a decoder, prompts of several chunks, pools so small that blocks are reused all the time. They speak
 * through liblagan.
 */
#ifndef TESTS_TORTURE_ANSWERS_H
#define TESTS_TORTURE_ANSWERS_H

#include "include/lagan.h"
#include "tests/torture/service.h"

enum {
    ANSWERS = 32,
    ANSWER_TOKENS = 48,
    ANSWER_TOPS = 2,
    ANSWER_MODELS = 3,
    ANSWER_PROMPT = 300,
    ANSWER_OUTPUTS = 3,
    ANSWER_T5 = 1, /* of the workers, the one with an encoder */
    ANSWER_ALL = 1 << 16
};

struct answer {
    uint32_t n, reason, adopted; /* adopted: positions that were not computed again */
    int32_t id[ANSWER_TOKENS];
    float logprob[ANSWER_TOKENS];
    struct lagan_top_logprob top[ANSWER_TOKENS][ANSWER_TOPS];
    uint64_t other[ANSWER_OUTPUTS]; /* outputs behind the first: a hash of all that came of each */
    uint32_t n_other[ANSWER_OUTPUTS];
};

struct job { /* one request that runs again and again */
    struct lagan_request *q;
    int32_t prompt[ANSWER_PROMPT];
    uint32_t n_prompt;
    uint64_t id;  /* 0: not under way */
    bool search;  /* with beams: it has no log-probabilities */
    bool differs; /* its last answer, from the first */
    struct answer want, got;
};

struct answers {
    struct service *v;
    struct lagan *c;
    bool
        lanes; /* the test's: workers have lanes for prompts and answers apart, one also for sources */
    uint32_t ranks; /* of each model's group; 0: 1. Set before the first start */
    struct job job[ANSWERS];
    uint64_t n_done, n_tokens, n_events, resumed, adopted, recomputed;
    uint64_t n_differ; /* answers that were others; the test fails unless it said may_differ */
    bool may_differ;
    char config[3072]; /* lagand's */
};

/* A lagand with one worker a model and so many standbys each; the first time also undisturbed answers,
 * to compare with. args: more of lagand's, up to a NULL. *a is zero before the first. */
void answers_start(struct answers *a, struct service *v, const char *dtype, uint32_t standby,
                   const char *const *args);
/* Processes that wait beside a worker: on a GPU one in any case. */
uint32_t answers_beside(uint32_t standby);
/* lagand has been killed: the next one, of the same settings. The client has not heard of it. */
void answers_begin_again(struct answers *a);
void answers_stop(struct answers *a); /* lagand, in good order */
void answers_close(struct answers *a);

/* A figure of `workers list`, of worker 0, 1, 2 or the sum of all, since each began. */
uint64_t answers_counted(struct answers *a, const char *what, uint32_t worker);
/* lagan_worker_NAME_total of all workers, those that have died included. */
uint64_t answers_total(struct answers *a, const char *name);
/* Take events for so long. more: ask again whatever has been answered, first. */
void answers_turn(struct answers *a, int ms, bool more);
void answers_settle(
    struct answers
        *a); /* until nothing is under way; fails the test if nothing comes for a minute */

#endif

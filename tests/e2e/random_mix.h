/* random_mix.h - what tests/e2e/test_mixture draws, and what it holds an answer against. */
#pragma once

#include "include/lagan.h"
#include "include/lagan_wire.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    REQUESTS = 20,
    TEXTS = 3,
    MOST_PROMPT = 256,
    MOST_NEW = 160,
    OUTPUTS = 6,
    TOPS = 3,
    MOST_SET = 48
};

struct output {
    int32_t id[MOST_NEW];
    uint32_t logprob[MOST_NEW]; /* bits */
    struct lagan_top_logprob top[MOST_NEW][TOPS];
    uint32_t n, n_top, reason, score;
    uint64_t text; /* a hash */
    uint32_t n_text;
};

struct answer {
    struct output output[OUTPUTS];
    uint64_t prompt, prompt_top, tensor[LAGAN_N_TENSORS + 1]; /* hashes */
    uint64_t n_values[LAGAN_N_TENSORS + 1];
    uint32_t n_prompt, error; /* error: its code */
    uint32_t cached, adopted;
    char why[200];
    bool over;
};

struct ask {
    struct lagan_request *r;
    char line[600]; /* it, for people */
    uint32_t n_prompt, max_tokens, n;
    bool search, may_end; /* may_end: a deadline is near */
    bool may_go_on;       /* a part of its answer may be given with it */
    uint32_t n_done;      /* tokens of that */
    int32_t ids[MOST_PROMPT];
    bool in_words; /* they are no prompt */
    /* after > 0: its prompt is that of request after - 1, the answer to it, and `behind` of ids. */
    uint32_t after, behind;
    uint32_t key;     /* its idempotency key; 0: it has none */
    bool may_be_lost; /* with a worker; with lagand, which does not write it down */
    bool anew;        /* its client may have asked once more: the score is of what came then */
    uint64_t id;
    uint32_t reader;
    bool cancelled;
    struct answer alone, got;
};

struct settings {
    char text[MOST_SET][64];
    const char *set[MOST_SET + 1];
    uint32_t n;
    bool heirs; /* lagand may have a successor, which has no tensors: nobody asks for them */
};

struct model {
    const char *path;
    uint32_t vocab, most; /* most: positions */
    bool encoder, text;
    bool windows; /* and layers without */
    bool odd;     /* its heads are: two ranks cannot share them */
};

extern const struct model mix_models[];
extern const uint32_t mix_n_models;

bool mix_one_in(uint32_t n);
/* Of a device's processors what a lane may get: threads, or a GPU's SMs. */
uint32_t mix_share(void);
void mix_set(struct settings *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* One more list of the same words: settings point into themselves. */
void mix_copy(struct settings *to, const struct settings *from);

/* What the numbers depend on, and requests that are the same for all that are asked with it. */
void mix_draw(struct settings *numbers, const struct model *m, struct ask ask[REQUESTS]);
/* A prompt that goes on from another's answer, which has come. */
void mix_go_on(struct ask *a, const struct ask *before);
/* Of a worker that has them all at once. longest: bytes that one request may take. */
void mix_draw_worker(struct settings *s, const struct model *m, uint64_t longest);
/* They are asked again: nothing has come, some soon have no time left, and some are given the beginning of their
 * answers. */
void mix_ask_again(struct ask ask[REQUESTS]);

void mix_take(struct ask *a, const struct lagan_event *ev);
/* Why what came is not what came alone; NULL: it is. Static storage. */
const char *mix_difference(const struct ask *a);

/* random_mix.h - what tests/e2e/test_mixture draws, and what it compares an output with. */
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
    MOST_SET = 50
};

struct output {
    int32_t id[MOST_NEW];
    uint32_t logprob[MOST_NEW]; /* bits */
    struct lagan_top_logprob top[MOST_NEW][TOPS];
    uint32_t n, n_top, reason, score;
    uint64_t text; /* a hash */
    uint32_t n_text;
};

struct result {
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
    bool may_continue;    /* a part of its output may be sent as generated_ids */
    uint32_t n_done;      /* tokens of generated_ids */
    int32_t ids[MOST_PROMPT];
    bool in_words; /* the prompt is text */
    /* after > 0: the prompt is the prompt of request after - 1, its output and the first
     * `behind` tokens of ids. */
    uint32_t after, behind;
    uint32_t key;     /* idempotency key; 0: none */
    bool may_be_lost; /* ends when its worker or lagand dies: it is not resumed */
    bool resubmitted; /* maybe by its client: the score covers the new tokens only */
    uint64_t id;
    uint32_t reader;
    bool cancelled;
    struct result alone, got;
};

struct settings {
    char text[MOST_SET][64];
    const char *set[MOST_SET + 1];
    uint32_t n;
    bool
        lagand_restarts; /* lagand may be killed or re-executed; then no request asks for tensors */
};

struct model {
    const char *path;
    uint32_t vocab, most; /* most: positions */
    bool encoder, text;
    bool windows, only_windows; /* windows: and layers without */
    bool odd;                   /* an odd number of heads: two ranks cannot divide them */
};

extern const struct model mix_models[];
extern const uint32_t mix_n_models;

bool mix_one_in(uint32_t n);
/* Draws the device units of a lane: threads, or SMs of a GPU. */
uint32_t mix_share(void);
void mix_set(struct settings *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Copies settings, which contain pointers into themselves. */
void mix_copy(struct settings *to, const struct settings *from);

/* Draws the settings that the results depend on, and requests. */
void mix_draw(struct settings *numbers, const struct model *m, struct ask ask[REQUESTS]);
/* Makes the prompt of a from the prompt and the complete output of another request. */
void mix_continue(struct ask *a, const struct ask *before);
/* Draws the settings of a worker that gets all requests at once. longest: bytes of KV that one
 * request may take. */
void mix_draw_worker(struct settings *s, const struct model *m, uint64_t longest);
/* Prepares the requests to be submitted again: clears the results, draws short deadlines, and
 * gives some requests the beginning of their outputs. */
void mix_ask_again(struct ask ask[REQUESTS]);

void mix_take(struct ask *a, const struct lagan_event *ev);
/* Returns the difference between the result and the result alone, or NULL. Static storage. */
const char *mix_difference(const struct ask *a);

/* outputs.h - what workers generated for a request: tokens, text, log-probabilities and tensors.
 *
 * Tokens and text of a request are one stream each, in the order in which workers sent them. A
 * request with several outputs also has a list of spans, each with consecutive tokens of one
 * output, and the state of each output. A CHUNK has tokens of one span. The streams never change
 * their order, so that two numbers, tokens and bytes of text, say what the client has received.
 * With one output there are no spans, and outputs.each is NULL.
 *
 * Positions and counts are tokens; text is in bytes. -ENOMEM leaves the stored data unchanged.
 */
#pragma once

#include "base/base.h"
#include "daemon/ledger/ledger.h"
#include "ipc/records.h"

struct bytes { /* grows at the end, shrinks at the front */
    char *p;
    size_t n, cap;
};
int bytes_add(struct bytes *b, const void *from, size_t n) MUST_USE; /* -ENOMEM */
void bytes_drop(struct bytes *b, size_t n);                          /* the first n */
void bytes_done(struct bytes *b);

struct output_span {
    uint32_t output, n, n_text; /* tokens, bytes of text */
    float score;                /* of the output, with these */
};
/* A span as it is stored, with totals, so that bisection finds a position among 100,000 spans. */
struct stored_span {
    uint32_t output, first; /* tokens of the output before it */
    uint32_t end, end_text; /* of the request, with it */
};
struct request_output {
    uint32_t n_received, n_text_received; /* tokens and bytes of text that workers have sent */
    float score;
    uint16_t reason; /* of its end; 0: open at the present worker */
    uint32_t cached, adopted, recomputed;
};
struct output_tensor {
    struct bytes value;               /* f32, undelivered */
    uint64_t n_received, n_delivered; /* values */
    uint32_t cols;
    bool start_unknown; /* a worker will report the value at which it continues */
};

/* Tokens of one output that a worker has sent, with their text. */
struct output_tokens {
    uint32_t output, n, n_text, n_top;
    float score;
    const void *token, *logprob, *top; /* i32, f32, {i32, f32}[n_top]; logprob: NULL without */
    const char *text;
};
/* Log-probabilities of n positions of the prompt. */
struct output_prompt {
    uint32_t n, n_top;
    const void *id, *logprob, *top;
};

/* For a new request. -ENOMEM. */
int outputs_init(struct request *r) MUST_USE;
/* For a new request that continues after the client's generated_ids. Owns *ids, i32. */
void outputs_begin(struct request *r, struct bytes *ids);
void outputs_done(struct request *r);
size_t outputs_bytes(const struct request *r); /* memory retained after the end */

uint32_t outputs_n_tokens(const struct request *r); /* stored */
/* Tokens and bytes of text of one output that workers have sent, also after the end of the request.
 */
uint32_t outputs_n_received(const struct request *r, uint32_t output);
uint32_t outputs_n_text_received(const struct request *r, uint32_t output);
uint32_t outputs_longest(const struct request *r); /* tokens of the longest one */
/* Tokens that all sequences together may still generate. */
uint64_t outputs_n_unused(const struct request *r);

/* A worker has reported that the text of the client's generated_ids has n bytes. */
void outputs_set_text_start(struct request *r, uint32_t n);
/* outputs_add() counts and stores t; -ENOMEM: counted only. outputs_count() is for an ended
 * request. */
int outputs_add(struct request *r, const struct output_tokens *t) MUST_USE;
void outputs_count(struct request *r, const struct output_tokens *t);
int outputs_add_span(struct request *r,
                     const struct output_span *p) MUST_USE; /* to the list only */
void outputs_count_prompt(struct request *r, uint32_t n);
int outputs_add_prompt(struct request *r, const struct output_prompt *p) MUST_USE;
/* Counts values [first, first + n) of a tensor, kind of enum lagan_tensor. Returns the number of
 * values that were received before. */
uint32_t outputs_count_tensor(struct request *r, const struct rec_tensor *t);
int outputs_add_tensor(struct request *r, uint32_t kind, const void *values, uint32_t n) MUST_USE;

/* Output f->output has ended. Returns true if it was the last one. */
bool outputs_finish(struct request *r, const struct rec_finish *f);
/* The reason of a request whose outputs have all ended: the first error, else the reason of output
 * 0. */
uint16_t outputs_reason(const struct request *r, uint16_t last);
void outputs_set_score(struct request *r, float score); /* NaN counts as 0 */
bool outputs_all_ended(const struct request *r);
/* For a replacement worker, which reports again the ended outputs and, before the first token, the
 * prompt's log-probabilities. */
void outputs_restart(struct request *r);

/* Free what is not sent again: log-probabilities of tokens before `before`; the first n prompt
 * positions; the first n values of a tensor. */
void outputs_drop_logprobs(struct request *r, uint32_t before);
void outputs_drop_prompt(struct request *r, uint32_t n);
void outputs_drop_tensor(struct request *r, uint32_t kind, uint32_t n);

/* With several outputs: */
/* The undelivered part of the span at the client's position; n 0 and n_text 0: all is delivered. */
struct output_span outputs_next(const struct request *r);
/* Position of the first token of outputs_next() in its output. */
uint32_t outputs_next_first(const struct request *r);
void outputs_delivered(struct request *r, uint32_t n, uint32_t n_text);
/* Returns true if a chunk ended exactly there. */
bool outputs_can_resume(const struct request *r, uint32_t n, uint32_t n_text);
/* The client has that much: delivery continues there. */
void outputs_resume(struct request *r, uint32_t n, uint32_t n_text);
/* Indices of the outputs, best score first, equal scores by index. order: [submit->n]. */
void outputs_order(const struct request *r, uint32_t *order);
uint32_t outputs_n_spans(const struct request *r);
struct output_span outputs_span(const struct request *r, uint32_t i); /* score: the output's */
/* The tail of a continuing SUBMIT, with the output of each token and the scores of the outputs: its
 * size, and n bytes of it from i on. */
uint32_t outputs_record_bytes(const struct request *r);
void outputs_record(const struct request *r, uint32_t i, uint8_t *to, uint32_t n);

/* outputs.h - stores the generated tokens, text, log-probabilities and tensors of a request.
 *
 * The tokens and the text of a request are two streams, in the order of the workers' records. A
 * request with several outputs also has a list of spans and the state of each output. A span is a
 * part of the streams: consecutive tokens of one output, with their text. A CHUNK has tokens of one
 * span. The streams only grow, so that two numbers, tokens and bytes of text, describe what the
 * client has received. With one output there is no span, and outputs.each is NULL.
 *
 * generated_ids, a key of SUBMIT, are tokens from an earlier attempt, the first of the new request.
 * Positions and counts are tokens; text is in bytes. -ENOMEM leaves the stored data unchanged. */
#pragma once
#include "base/base.h"
#include "daemon/ledger/ledger.h"
#include "ipc/records.h"

struct bytes { /* n bytes of memory; functions add at the end and remove at the front */
    char *p;
    size_t n, cap;
};
int bytes_add(struct bytes *b, const void *from, size_t n) MUST_USE; /* -ENOMEM */
void bytes_drop(struct bytes *b, size_t n);                          /* removes the first n */
void bytes_done(struct bytes *b);

struct output_span {
    uint32_t output, n, n_text; /* tokens, bytes of text */
    float score;                /* of the output, after the tokens of the span */
};
/* A span as it is stored: with totals, so that bisection finds a position among 100,000 spans. */
struct stored_span {
    uint32_t output, first; /* first: tokens of the output before the span */
    uint32_t end, end_text; /* tokens and bytes of text of the request up to the end of the span */
};
struct request_output {
    uint32_t n_received, n_text_received; /* tokens and bytes of text that workers have sent */
    float score;
    uint16_t reason; /* why it ended; 0: the present worker has not sent FINISH for it */
    uint16_t stop;   /* reason stop: 1 + index of the stop string; 0: a stop id */
    uint32_t cached, adopted, recomputed;
    struct rec_kv_blocks kv_blocks;
    nsec token_at; /* when its last token came; changed by request/latency.c */
};
struct output_tensor {
    struct bytes value;               /* f32 values that are not delivered yet */
    uint64_t n_received, n_delivered; /* values */
    uint32_t cols;
    /* The request began with generated_ids. The first TENSOR record, which has not arrived, will
     * tell at which value the tensor continues. */
    bool start_unknown;
};

/* Tokens of one output that a worker has sent, with their text. */
struct output_tokens {
    uint32_t output, n, n_text, n_top;
    float score;
    const void *token, *logprob, *top; /* [n] i32, f32, {i32, f32}[n_top]; logprob NULL: none */
    const char *text;
};
/* Log-probabilities of n positions of the prompt; arrays as in output_tokens. */
struct output_prompt {
    uint32_t n, n_top;
    const void *id, *logprob, *top;
};

/* Allocates the state of each output of a new request that has several. -ENOMEM. */
int outputs_init(struct request *r) MUST_USE;
/* Makes the client's generated_ids, i32, the first tokens of a new request. Owns *ids. */
void outputs_begin(struct request *r, struct bytes *ids);
void outputs_done(struct request *r);
size_t outputs_bytes(const struct request *r); /* memory retained after the end */

/* Returns the state of one output. For the only output of a request, reason, cached, adopted and
 * recomputed are 0; they are in request_result. */
struct request_output outputs_at(const struct request *r, uint32_t output);
/* Returns the last token of an output that has tokens. */
token_id outputs_last_token(const struct request *r, uint32_t output);
uint32_t outputs_longest(const struct request *r); /* tokens of the longest output */
/* Returns how many tokens all sequences of r together may still generate. */
uint64_t outputs_n_unused(const struct request *r);

/* A worker has reported that the text of the generated_ids has n bytes: stores n unless known. */
void outputs_set_text_start(struct request *r, uint32_t n);
/* outputs_add() counts the tokens and the text of t as received and stores them; -ENOMEM: they are
 * counted, but not stored. outputs_count() only counts them; it is for a request that has ended. */
int outputs_add(struct request *r, const struct output_tokens *t) MUST_USE;
void outputs_count(struct request *r, const struct output_tokens *t);
/* Adds p to the spans and counts of its output; the caller stores tokens and text. -ENOMEM. */
int outputs_add_span(struct request *r, const struct output_span *p) MUST_USE;
void outputs_count_prompt(struct request *r, uint32_t n);
int outputs_add_prompt(struct request *r, const struct output_prompt *p) MUST_USE;
/* Counts t->n values from t->first on as received. Returns how many of these were not new. */
uint32_t outputs_count_tensor(struct request *r, const struct rec_tensor *t);
int outputs_add_tensor(struct request *r, uint32_t kind, const void *values, uint32_t n) MUST_USE;

/* Stores the end of output f->output. Returns true if all outputs have ended. */
bool outputs_finish(struct request *r, const struct rec_finish *f);
/* Returns the reason of a request whose outputs have all ended: the first error, else the reason of
 * output 0. last: the reason if there is only one output. */
uint16_t outputs_reason(const struct request *r, uint16_t last);
void outputs_set_score(struct request *r, float score); /* stores 0 for NaN */
/* Prepares r for a replacement worker, which sends again the end of each ended output and, if no
 * token was received, the log-probabilities of the prompt. */
void outputs_restart(struct request *r);

/* Free data that is not sent to the client again: the log-probabilities of tokens before `before`;
 * of the first n stored prompt positions; the first n stored values of a tensor. */
void outputs_drop_logprobs(struct request *r, uint32_t before);
void outputs_drop_prompt(struct request *r, uint32_t n);
void outputs_drop_tensor(struct request *r, uint32_t kind, uint32_t n);

/* The functions below are for requests with several outputs. */
/* Returns the undelivered rest of the span in delivery; n and n_text 0: all is delivered. */
struct output_span outputs_next(const struct request *r);
/* Returns the index, in its output, of the first token of outputs_next(). */
uint32_t outputs_next_first(const struct request *r);
/* Counts the first n tokens and n_text bytes of outputs_next() as delivered. */
void outputs_delivered(struct request *r, uint32_t n, uint32_t n_text);
/* Returns true if a chunk can end after n tokens and n_text bytes: both are in the same span. */
bool outputs_can_resume(const struct request *r, uint32_t n, uint32_t n_text);
/* Continues the delivery after the n tokens and n_text bytes that the client has received. */
void outputs_resume(struct request *r, uint32_t n, uint32_t n_text);
/* Writes the outputs' indices to order [submit->n]: best score first, equal scores by index. */
void outputs_order(const struct request *r, uint32_t *order);
uint32_t outputs_n_spans(const struct request *r);
struct output_span outputs_span(const struct request *r, uint32_t i); /* score: the output's now */
/* The last tail of the SUBMIT with which a worker continues r: the output index of each token and
 * the score of each output. The functions return its size, and n bytes of it. */
uint32_t outputs_record_bytes(const struct request *r);
void outputs_record(const struct request *r, uint32_t i, uint8_t *to, uint32_t n);

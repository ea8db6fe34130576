/* outputs.h - what workers generated for a request: tokens, text, log-probabilities and tensors.
 *
 * Tokens and text of a request are one stream each, in the order in which workers sent them. A
 * request with several outputs has beside them a list of pieces, which says whose the tokens are,
 * and how far each output has come. A client receives a chunk a piece. What it has received are two
 * numbers, tokens and bytes of text, because the order of the streams never changes. A request with
 * one output has no pieces: outputs.each is NULL.
 *
 * Positions and counts are of tokens, text is in bytes. -ENOMEM leaves what was stored unchanged.
 */
#ifndef DAEMON_LEDGER_OUTPUTS_H
#define DAEMON_LEDGER_OUTPUTS_H

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

struct output_piece {
    uint32_t output, n, n_text; /* tokens, bytes of text */
    float score;                /* of the output, with these */
};
/* A piece as it is stored, with totals, so that a position is found by bisection among 100,000
 * pieces. */
struct output_place {
    uint32_t output, first; /* tokens of the output before it */
    uint32_t end, end_text; /* of the request, with it */
};
struct request_output {
    uint32_t n_received, n_text_received; /* tokens and bytes of text that workers have sent */
    float score;
    uint16_t reason; /* how it ended; 0: it has not with its present worker */
    uint32_t cached, adopted, recomputed;
};
struct output_tensor {
    struct bytes value;               /* f32: not delivered yet */
    uint64_t n_received, n_delivered; /* values */
    uint32_t cols;
    bool start_unknown; /* a worker will report at which value it continues */
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

/* For a new request: as many outputs as its submit asks for. -ENOMEM. */
int outputs_init(struct request *r) MUST_USE;
/* For a new request: it continues after tokens that the client has. Owns *ids, i32. */
void outputs_begin(struct request *r, struct bytes *ids);
void outputs_done(struct request *r);
size_t outputs_bytes(const struct request *r); /* memory of what is retained after the end */

uint32_t outputs_n_tokens(const struct request *r); /* stored */
/* Tokens, and bytes of text, that workers have sent of an output; also after the request has ended.
 */
uint32_t outputs_n_received(const struct request *r, uint32_t output);
uint32_t outputs_n_text_received(const struct request *r, uint32_t output);
uint32_t outputs_longest(const struct request *r); /* the most tokens received of any output */
uint64_t outputs_n_unused(
    const struct request *r); /* tokens it may still generate, of all sequences */

/* Of a request that began with the client's tokens, whose text lagand does not know: it has n
 * bytes. */
void outputs_set_text_start(struct request *r, uint32_t n);
/* Count t; and store it. -ENOMEM: counted only. outputs_count() is for a request that has ended. */
int outputs_add(struct request *r, const struct output_tokens *t) MUST_USE;
void outputs_count(struct request *r, const struct output_tokens *t);
int outputs_add_piece(struct request *r, const struct output_piece *p) MUST_USE; /* the list only */
void outputs_count_prompt(struct request *r, uint32_t n);
int outputs_add_prompt(struct request *r, const struct output_prompt *p) MUST_USE;
/* Count values [first, first + n) of a tensor, kind of enum lagan_tensor. Returns how many of them
 * were received before. */
uint32_t outputs_count_tensor(struct request *r, const struct rec_tensor *t);
int outputs_add_tensor(struct request *r, uint32_t kind, const void *values, uint32_t n) MUST_USE;

/* An output has ended, f->output. Returns true if it was the last one. */
bool outputs_finish(struct request *r, const struct rec_finish *f);
/* The reason of a request whose outputs have all ended: the first error, else the first output's.
 */
uint16_t outputs_reason(const struct request *r, uint16_t last);
void outputs_set_score(struct request *r, float score); /* NaN counts as 0 */
bool outputs_all_ended(const struct request *r);
/* A replacement worker continues: it reports again which outputs have ended, and before the first
 * token also the prompt's log-probabilities. */
void outputs_restart(struct request *r);

/* Free what is not sent again: log-probabilities of tokens before `before`; the first n positions
 * of the prompt; the first n values of a tensor. */
void outputs_drop_logprobs(struct request *r, uint32_t before);
void outputs_drop_prompt(struct request *r, uint32_t n);
void outputs_drop_tensor(struct request *r, uint32_t kind, uint32_t n);

/* With several outputs: */
/* What is undelivered of the piece the client is in; n 0 and n_text 0: nothing. */
struct output_piece outputs_next(const struct request *r);
/* The position, among its output's tokens, of the first that outputs_next() names. */
uint32_t outputs_next_first(const struct request *r);
void outputs_delivered(struct request *r, uint32_t n, uint32_t n_text);
/* Returns true if a client can have received exactly that much: a chunk ended there. */
bool outputs_can_resume(const struct request *r, uint32_t n, uint32_t n_text);
/* It has, and receives what follows. */
void outputs_resume(struct request *r, uint32_t n, uint32_t n_text);
/* The outputs, best score first; equal scores by index. order: [submit->n]. */
void outputs_order(const struct request *r, uint32_t *order);
uint32_t outputs_n_pieces(const struct request *r);
struct output_piece outputs_piece(const struct request *r, uint32_t i); /* score: the output's */
/* The tail of a SUBMIT that continues: whose each token is, and the outputs' scores. The size, and
 * n bytes of it from i on. */
uint32_t outputs_record_bytes(const struct request *r);
void outputs_record(const struct request *r, uint32_t i, uint8_t *to, uint32_t n);

#endif

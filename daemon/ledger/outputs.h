/* outputs.h - requests with several outputs: whose the tokens of a row are.
 *
 * A row's tokens and text are one stream each, in the order in which a worker said them; with several outputs a list
 * of pieces says whose they are, and row.out how far each output has come. A client gets a chunk a piece; what it has
 * of a row is still two numbers, tokens and bytes of text, because the order never changes. A row with one output
 * has none of this: out is NULL.
 */
#ifndef DAEMON_LEDGER_OUTPUTS_H
#define DAEMON_LEDGER_OUTPUTS_H

#include "daemon/ledger/ledger.h"

struct output_piece {
    uint32_t output, n, n_text; /* tokens, bytes of text */
    float score;                /* of the output, with these */
};
/* As a row keeps it: with what comes before it, so that a place is found among a hundred thousand of them, of thousands
 * of requests, without a look at each. */
struct output_place {
    uint32_t output, first; /* tokens of the output before it */
    uint32_t end, end_text; /* of the row, with it */
};
struct request_output {
    uint32_t n_said, n_text_said; /* tokens and bytes of text the worker has sent */
    float score;
    uint16_t reason; /* it has ended; 0: not by the worker that has it now */
    uint32_t cached, adopted, recomputed;
};

/* For a row just taken: what its submit asks for. -ENOMEM. */
int outputs_init(struct request *r) MUST_USE;
void outputs_done(struct request *r);
size_t outputs_bytes(const struct request *r); /* of memory */

/* A worker has said so much more; the streams have it. -ENOMEM, nothing changed. */
int outputs_add(struct request *r, const struct output_piece *p) MUST_USE;
/* The same of a row that has ended: it counts, and nobody gets it. */
void outputs_count(struct request *r, uint32_t output, uint32_t n, uint32_t n_text);
/* What the client does not have of the piece it is in; n 0 and n_text 0: it has all. */
struct output_piece outputs_next(const struct request *r);
/* The position, among its output's tokens, of the first that outputs_next() names. */
uint32_t outputs_next_first(const struct request *r);
void outputs_delivered(struct request *r, uint32_t n, uint32_t n_text);
/* Can a client have just so much of the row? false: no chunk has ended there. */
bool outputs_can_resume(const struct request *r, uint32_t n, uint32_t n_text);
/* It has, and gets what follows. */
void outputs_resume(struct request *r, uint32_t n, uint32_t n_text);
/* Another worker goes on: it says again what has ended. */
void outputs_restart(struct request *r);
bool outputs_all_ended(const struct request *r); /* every output has ended */
/* The outputs, the best first; of equals the first. */
void outputs_order(const struct request *r, uint32_t *order);

uint32_t outputs_n_pieces(const struct request *r);
struct output_piece outputs_piece(const struct request *r,
                                  uint32_t i); /* score: of all of its output */
/* What stands behind a SUBMIT that goes on: whose the tokens are, and the outputs' scores. */
uint32_t outputs_record_bytes(const struct request *r);
void outputs_record(const struct request *r, uint32_t i, uint8_t *to,
                    uint32_t n); /* n bytes from i on */

#endif

/* pieces.h - requests with several outputs: whose the tokens of a row are.
 *
 * A row's tokens and text are one stream each, in the order in which a worker said them; with several outputs a list
 * of pieces says whose they are, and row.out how far each output has come. A client gets a chunk a piece; what it has
 * of a row is still two numbers, tokens and bytes of text, because the order never changes. A row with one output
 * has none of this: out is NULL.
 */
#ifndef DAEMON_PIECES_H
#define DAEMON_PIECES_H

#include "daemon/ledger.h"

struct row_piece {
    uint32_t output, n, n_text; /* tokens, bytes of text */
    float score;                /* of the output, with these */
};
/* As a row keeps it: with what comes before it, so that a place is found among a hundred thousand of them, of thousands
 * of requests, without a look at each. */
struct row_place {
    uint32_t output, first; /* tokens of the output before it */
    uint32_t end, end_text; /* of the row, with it */
};
struct row_output {
    uint32_t n_said, n_text_said; /* tokens and bytes of text the worker has sent */
    float score;
    uint16_t reason; /* it has ended; 0: not by the worker that has it now */
    uint32_t cached, adopted, recomputed;
};

/* For a row just taken: what its submit asks for. -ENOMEM. */
int pieces_begin(struct row *r) MUST_USE;
void pieces_done(struct row *r);
size_t pieces_bytes(const struct row *r); /* of memory */

/* A worker has said so much more; the streams have it. -ENOMEM, nothing changed. */
int pieces_add(struct row *r, const struct row_piece *p) MUST_USE;
/* The same of a row that has ended: it counts, and nobody gets it. */
void pieces_missed(struct row *r, uint32_t output, uint32_t n, uint32_t n_text);
/* What the client does not have of the piece it is in; n 0 and n_text 0: it has all. */
struct row_piece pieces_next(const struct row *r);
/* The position, among its output's tokens, of the first that pieces_next() names. */
uint32_t pieces_next_first(const struct row *r);
void pieces_sent(struct row *r, uint32_t n, uint32_t n_text);
/* Can a client have just so much of the row? false: no chunk has ended there. */
bool pieces_may_resume(const struct row *r, uint32_t n, uint32_t n_text);
/* It has, and gets what follows. */
void pieces_resume(struct row *r, uint32_t n, uint32_t n_text);
/* Another worker goes on: it says again what has ended. */
void pieces_again(struct row *r);
bool pieces_over(const struct row *r); /* every output has ended */
/* The outputs, the best first; of equals the first. */
void pieces_order(const struct row *r, uint32_t *order);

uint32_t pieces_n(const struct row *r);
struct row_piece pieces_at(const struct row *r, uint32_t i); /* score: of all of its output */
/* What stands behind a SUBMIT that goes on: whose the tokens are, and the outputs' scores. */
uint32_t pieces_record_bytes(const struct row *r);
void pieces_record(const struct row *r, uint32_t i, uint8_t *to,
                   uint32_t n); /* n bytes from i on */

#endif

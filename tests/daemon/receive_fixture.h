/* receive_fixture.h - one daemon with one READY worker, without processes: a test gives it the
 * records of that worker.
 */
#pragma once
#include "daemon/config/options.h"
#include "daemon/ledger/request.h"
#include "daemon/supervise/worker_struct.h"
#include "tests/test.h"

enum { VOCAB = 100, MAX_TOKENS = 8 };

union receive_buf {
    char b[4096];
    uint64_t align;
};

/* Those of the current test, from set_up(). */
extern struct config config;
extern struct daemon d;
extern struct worker w;
extern struct request *request; /* DISPATCHED, request id 1, without logprobs */
extern union receive_buf buf;   /* the next record */

int set_up(void **state);
int tear_down(void **state); /* with ledger_check() */
/* Returns a DISPATCHED request of worker w, with 3 prompt tokens and that many logprobs per
 * token; flags: SUBMIT_*. The ledger owns it. */
struct request *dispatched(uint64_t rid, uint32_t logprobs, uint8_t flags);
/* receive_record() of the first n bytes of buf. */
int record(uint16_t type, size_t n, struct err *e);
/* Makes a STEP with one entry of that request in buf, which the test may then corrupt. Returns the
 * entry; *bytes: the length of the record. */
struct rec_out *step(const struct request *r, uint8_t n_tokens, const char *text, size_t *bytes);

/* ledger.h - the table of all requests that lagand has accepted.
 *
 * A fixed table. A request has the record for a worker, the tokens that workers have generated, and
 * how much of them its client has received. It ends with exactly one DONE or ERROR. Its entry is
 * reused when the client has that message and no worker can send records of it. Workers name
 * requests by (index, generation), so that an old record cannot change a new request.
 *
 *     QUEUED -> DISPATCHED -> STREAMING -> ENDED -> (free)      request_move() is the only way
 *        ^----------/-------------/                             the worker ended
 *
 * Requests of a client with a session have names: (session, rid) and (session, idempotency key).
 * Named requests continue without a connection and after a restart of lagand. After the end they
 * are retained for LEDGER_KEEP_TIME, in at most LEDGER_KEEP_BYTES: a repeated name gets the stored
 * result, and no request runs twice. Names are found by a hash; a name whose hash is in use is
 * refused with -EEXIST.
 *
 * Only daemon/ledger and daemon/request include request.h; other files use request_info().
 */
#pragma once

#include "base/base.h"
#include "base/clock.h"
#include "include/lagan_wire.h"
#include "ipc/records.h"

#define REQUEST_NONE UINT32_MAX
#define LEDGER_KEEP_TIME (600 * NSEC_S)
#define LEDGER_KEEP_BYTES (64u << 20)

enum request_state {
    REQUEST_FREE,
    REQUEST_QUEUED,
    REQUEST_DISPATCHED,
    REQUEST_STREAMING,
    REQUEST_ENDED,
    REQUEST_N_STATES
};

/* Random number that only the client knows. All zero: none. */
struct session_id {
    uint8_t b[16];
};

/* Terms of the SUBMIT that are not in the record for a worker. Times: CLOCK_MONOTONIC. */
struct request_terms {
    uint32_t model;          /* index in the configuration */
    bool no_resume;          /* end with worker_lost if the worker ends */
    nsec accepted, deadline; /* deadline: NSEC_NEVER: none */
    nsec disconnect_timeout; /* limit without a connection */
};

struct request;
struct ledger;

struct ledger *ledger_new(uint32_t capacity, uint64_t seed) MUST_USE; /* NULL: no memory */
struct ledger *ledger_free(struct ledger *l);
CLEAN_FUNC(struct ledger, ledger_free)

uint32_t ledger_n(const struct ledger *l);             /* requests, without the retained */
uint32_t ledger_n_queued(const struct ledger *l);      /* of them in REQUEST_QUEUED */
uint64_t ledger_queued_tokens(const struct ledger *l); /* of their prompts */
uint32_t ledger_capacity(const struct ledger *l);
/* Tokens of the prompt; of the prompt and all outputs at most. 4 bytes of text count as a token. */
uint64_t ledger_prompt_tokens(const struct rec_submit *s);
uint64_t ledger_total_tokens(const struct rec_submit *s);

/* Adds a request in REQUEST_QUEUED under this client's rid, with fairness tag 0, model 0 and no
 * deadline. Owns submit (from malloc) on success. Frees retained requests if the table is full.
 * -EEXIST: the client has an open request with that rid. -ENOSPC: all requests are open. */
int ledger_take(struct ledger *l, uint32_t client, uint64_t rid, struct rec_submit *submit,
                uint32_t submit_bytes, struct request **ret) MUST_USE;
/* The same for a request of a previous lagand, with its id and without a client. -EEXIST: the id is
 * in use. -ENOSPC. */
int ledger_restore(struct ledger *l, req_id id, uint64_t rid, struct rec_submit *submit,
                   uint32_t submit_bytes, struct request **ret) MUST_USE;
void ledger_set_terms(struct request *r, const struct request_terms *terms);
req_id ledger_last_id(const struct ledger *l);
void ledger_skip_ids(struct ledger *l, req_id last); /* ids up to last are used */
/* Gives a new request its names. key: NULL and 0: none. A retained request with that rid loses its
 * names. -EEXIST: the session has an open request with that rid, or any with that key, or a hash is
 * in use. */
int ledger_name(struct ledger *l, struct request *r, const struct session_id *session,
                const char *key, uint32_t n_key) MUST_USE;
/* Removes the names. Frees a retained request. */
void ledger_unname(struct ledger *l, struct request *r);
/* Finds an open or retained request; NULL: unknown. */
struct request *ledger_find_rid(struct ledger *l, const struct session_id *session, uint64_t rid);
struct request *ledger_find_key(struct ledger *l, const struct session_id *session, const char *key,
                                uint32_t n_key);

/* The client has DONE or ERROR, or is gone: r is not attached any more, its rid is free. */
void ledger_detach(struct ledger *l, struct request *r);
/* For deliver_resume(): attaches r to another connection of its session under that rid. -EEXIST:
 * the session has another open request with that rid, or a hash is in use. */
int ledger_attach(struct ledger *l, struct request *r, uint32_t client, uint64_t rid) MUST_USE;
/* Changes the rid of a request that is not attached. -EEXIST as ledger_attach(). */
int ledger_renumber(struct ledger *l, struct request *r, uint64_t rid) MUST_USE;
/* Retains r if it has names, else frees it. r has ended and is not attached, held or pending. */
void ledger_give(struct ledger *l, struct request *r);
/* Frees retained requests older than LEDGER_KEEP_TIME. */
void ledger_expire(struct ledger *l, nsec now);

struct request *ledger_request(struct ledger *l, uint32_t index); /* NULL: out of range, or free */
/* Iterates over all requests; *at: 0 at first. NULL: the end. */
struct request *ledger_next(struct ledger *l, uint32_t *at);
/* Finds an attached request; NULL: none. */
struct request *ledger_find(struct ledger *l, uint32_t client, uint64_t rid);
struct request *ledger_find_id(struct ledger *l, req_id id); /* NULL: none */
/* Moves a queued request to another position of the queue. */
void ledger_set_fair_tag(struct ledger *l, struct request *r, uint64_t fair_tag);
/* The queue is ordered by priority, fairness tag, arrival; a request of a worker that ended keeps
 * its position. Returns the first request or the one after `after`; NULL: the end. */
struct request *ledger_next_queued(struct ledger *l, const struct request *after);
struct request *ledger_last_queued(struct ledger *l, const struct request *before); /* backwards */

/* Adds r to the list of attached requests with something to deliver. No effect if it is there. */
void ledger_add_pending(struct ledger *l, struct request *r);
/* Empties the list. Returns the first position for ledger_pop_pending(). */
uint32_t ledger_take_pending(struct ledger *l);
/* Removes the request at *at and advances *at. NULL: the end. */
struct request *ledger_pop_pending(struct ledger *l, uint32_t *at);

void request_move(struct ledger *l, struct request *r, enum request_state to);

/* A copy of what other folders need of a request. */
struct request_info {
    req_id id;
    uint32_t client; /* the last one that it was attached to */
    uint32_t worker; /* the one that has it, or had it last */
    uint32_t model;
    uint64_t seed, n_prompt_tokens; /* n_prompt_tokens: an estimate for text */
    nsec accepted;
    bool attached, retained, held, suspended;
};
struct request_info request_info(const struct request *r);
enum request_state request_state(const struct request *r);
const char *request_state_name(enum request_state state); /* "queued" */
uint32_t request_n_tokens(const struct request *r);       /* received from workers */
uint32_t request_n_seqs(const struct request *r);         /* sequences that a worker runs for it */

/* The SUBMIT with which a worker continues the request after its received tokens and text: its
 * size, and n bytes of it from `at` on. */
uint32_t request_record_bytes(const struct request *r);
void request_record(const struct request *r, uint32_t at, void *to, uint32_t n);

void ledger_check(const struct ledger *l);

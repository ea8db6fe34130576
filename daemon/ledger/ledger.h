/* ledger.h - the table of all requests that lagand has accepted.
 *
 * The table has a fixed number of entries. A request consists of its SUBMIT record for a worker,
 * the tokens that workers have generated, and the number of tokens that its client has received. It
 * ends with exactly one DONE or ERROR. Its entry is reused when the client has that message and no
 * worker can send records of the request. A rid is the request id that the client chose; the id is
 * lagand's own number. Records of workers name a request by (index, generation), so that an old
 * record cannot change a new request. A request is open until it has ended and its client has DONE
 * or ERROR; it is attached while a connection receives it.
 *
 *     QUEUED -> DISPATCHED -> STREAMING -> ENDED -> (free)      only request_move() changes a state
 *        ^----------/-------------/                             back if the worker has ended
 *
 * Requests of a client with a session have names: (session, rid) and (session, idempotency key).
 * Named requests continue without a connection and after a restart of lagand. After the end they
 * are retained for LEDGER_KEEP_TIME, in at most LEDGER_KEEP_BYTES: a SUBMIT with a known key gets
 * the stored result, and no request runs twice. The index of names stores only a 64-bit hash of a
 * name; a new name whose hash another request has is refused with -EEXIST.
 *
 * Only daemon/ledger and daemon/request include request.h; other files use request_info(). */
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

/* Id of a client's session: a random number that only the client knows. All zero: no session. */
struct session_id {
    uint8_t b[16];
};

/* Parameters of a SUBMIT that only lagand uses and no worker gets. Times are CLOCK_MONOTONIC. */
struct request_terms {
    uint32_t model;          /* index of the model in lagand's configuration */
    bool no_resume;          /* the request ends with worker_lost if its worker ends */
    nsec accepted, deadline; /* times of arrival and of expiry; no deadline: NSEC_NEVER */
    nsec disconnect_timeout; /* the request is cancelled after this time without a connection */
    uint64_t accepted_at;    /* UNIX time in seconds of the arrival */
    char request_id[LAGAN_MAX_REQUEST_ID + 1]; /* the client's name for log and lists; "": none */
};

struct request;
struct ledger;

struct ledger *ledger_new(uint32_t capacity, uint64_t seed) MUST_USE; /* NULL: no memory */
struct ledger *ledger_free(struct ledger *l);
CLEAN_FUNC(struct ledger, ledger_free)

struct ledger_counts {
    uint32_t open, queued, capacity; /* open: have not ended; queued: in REQUEST_QUEUED */
    uint64_t queued_tokens;          /* prompt tokens of all queued requests */
};
struct ledger_counts ledger_counts(const struct ledger *l);
/* Number of prompt tokens of s; ledger_total_tokens() adds the most tokens that all outputs can
 * have. 4 bytes of text count as one token. */
uint64_t ledger_prompt_tokens(const struct rec_submit *s);
uint64_t ledger_total_tokens(const struct rec_submit *s);

/* Adds a request in REQUEST_QUEUED under this client's rid, with fairness tag 0, model 0 and no
 * deadline. On success owns submit (from malloc). A full table frees the oldest retained request.
 * -EEXIST: the client has an open request with this rid. -ENOSPC: all entries are open. */
int ledger_take(struct ledger *l, uint32_t client, uint64_t rid, struct rec_submit *submit,
                uint32_t submit_bytes, struct request **ret) MUST_USE;
/* Adds a request of a previous lagand in REQUEST_QUEUED, with its old id, not attached to a client.
 * submit and -ENOSPC: as ledger_take(). -EEXIST: another request has this id. */
int ledger_restore(struct ledger *l, req_id id, uint64_t rid, struct rec_submit *submit,
                   uint32_t submit_bytes, struct request **ret) MUST_USE;
void ledger_set_terms(struct request *r, const struct request_terms *terms);
req_id ledger_last_id(const struct ledger *l);
void ledger_skip_ids(struct ledger *l, req_id last); /* new requests get ids above last */
/* Gives a new request its names: (session, r's rid) and, if n_key > 0, (session, key). A retained
 * request with the same rid is freed. -EEXIST: the session has an open request with the rid, or an
 * open or retained request with the key, or a name collides with another name's hash. */
int ledger_name(struct ledger *l, struct request *r, const struct session_id *session,
                const char *key, uint32_t n_key) MUST_USE;
/* Removes the names of r, so that its client cannot find it again. Frees r if it is retained. */
void ledger_unname(struct ledger *l, struct request *r);
/* Return the session's open or retained request with this rid or idempotency key; NULL: none. */
struct request *ledger_find_rid(struct ledger *l, const struct session_id *session, uint64_t rid);
struct request *ledger_find_key(struct ledger *l, const struct session_id *session, const char *key,
                                uint32_t n_key);

/* Detaches r from its client, which has DONE or ERROR, or is disconnected, and frees the rid. */
void ledger_detach(struct ledger *l, struct request *r);
/* Attaches r to connection `client` of its session, with rid as r's new request id. -EEXIST:
 * another open request of the session has this rid, or the hash of (session, rid) or of (session,
 * key) is in use by another request. */
int ledger_attach(struct ledger *l, struct request *r, uint32_t client, uint64_t rid) MUST_USE;
/* Changes the rid of a request that is not attached. -EEXIST as ledger_attach(). */
int ledger_renumber(struct ledger *l, struct request *r, uint64_t rid) MUST_USE;
/* Retains r if it has names, else frees it. r must have ended, and must not be attached to a
 * client, held by a worker or pending delivery. */
void ledger_give(struct ledger *l, struct request *r);
/* Frees retained requests older than LEDGER_KEEP_TIME. */
void ledger_expire(struct ledger *l, nsec now);

/* Returns the request in this table entry. NULL: index is out of range, or the entry is free. */
struct request *ledger_request(struct ledger *l, uint32_t index);
/* Returns the next request, open or retained; NULL: the end. *at: 0 for the first call. */
struct request *ledger_next(struct ledger *l, uint32_t *at);
/* Returns the request that is attached to this client under this rid; NULL: none. */
struct request *ledger_find(struct ledger *l, uint32_t client, uint64_t rid);
struct request *ledger_find_id(struct ledger *l, req_id id); /* NULL: none */
/* Sets r's fairness tag; a queued request moves to the queue position of the new tag. */
void ledger_set_fair_tag(struct ledger *l, struct request *r, uint64_t fair_tag);
/* Returns the queued request behind `after` (NULL: the first one); NULL: the end. The queue is
 * ordered by priority, fairness tag, arrival; a request whose worker ended keeps its position. */
struct request *ledger_next_queued(struct ledger *l, const struct request *after);
/* Returns the queued request in front of `before`, or the last one if before is NULL. */
struct request *ledger_last_queued(struct ledger *l, const struct request *before);

/* Adds r to the pending list (requests with a message to deliver) if r is attached. */
void ledger_add_pending(struct ledger *l, struct request *r);
/* Empties the pending list. Returns the position of its first request for ledger_pop_pending(). */
uint32_t ledger_take_pending(struct ledger *l);
/* Returns the request at position *at of a list from ledger_take_pending(), and advances *at. The
 * request may be added to the pending list again. NULL: the end. */
struct request *ledger_pop_pending(struct ledger *l, uint32_t *at);

void request_move(struct ledger *l, struct request *r, enum request_state to);

/* A copy of the fields of a request that other folders use. */
struct request_info {
    req_id id;
    uint32_t client; /* handle of the client that it is, or was last, attached to */
    uint32_t worker; /* index of the worker that has it, or had it last */
    uint32_t model;
    uint32_t user;                  /* number, for session_user_at() */
    uint64_t seed, n_prompt_tokens; /* n_prompt_tokens: an estimate if the prompt is text */
    nsec accepted;
    uint64_t accepted_at;   /* UNIX time in seconds */
    const char *request_id; /* "": none; valid as long as the request is */
    bool attached, retained, held, suspended;
};
struct request_info request_info(const struct request *r);
enum request_state request_state(const struct request *r);
const char *request_state_name(enum request_state state); /* "queued" */
uint32_t request_n_tokens(const struct request *r);       /* generated tokens stored in lagand */
uint32_t request_n_seqs(const struct request *r);         /* sequences that a worker runs for it */

/* Returns the *n bytes of stop string i of the request; NULL: it has fewer. */
const char *request_stop(const struct request *r, uint32_t i, uint32_t *n);

/* The SUBMIT with which a worker continues r after the tokens that lagand has stored: the first
 * function returns its size, the second writes its bytes [at, at + n) to `to`. */
uint32_t request_record_bytes(const struct request *r);
void request_record(const struct request *r, uint32_t at, void *to, uint32_t n);

void ledger_check(const struct ledger *l);

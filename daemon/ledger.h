/* ledger.h - every request that was accepted: the truth about them.
 *
 * A fixed table of rows, private to lagand. A row holds the request as it will go to a worker, what
 * the worker has produced so far and how much of that the client has. Each ends in exactly one
 * terminal message (DONE or ERROR); a row is given back when its client has that and no worker can
 * speak of it any more. Workers name rows by (index, generation), so an old record cannot hit a new
 * request.
 *
 *     QUEUED -> DISPATCHED -> STREAMING -> ENDED -> (free)      row_move() is the only way
 *        ^----------/-------------/                             its worker died
 *
 * A client that gave a session is known again after its connection, or lagand, was lost. Its rows have
 * names, (session, rid) and (session, key); they go on without a connection, and when they have ended
 * are kept for LEDGER_KEEP_TIME, in at most LEDGER_KEEP_BYTES, so that whoever knows a name gets the
 * answer and nothing runs twice. Of two names that fall together in a table, which is by a hash of theirs, the second
 * cannot be had: -EEXIST.
 */
#ifndef DAEMON_LEDGER_H
#define DAEMON_LEDGER_H

#include "base/base.h"
#include "base/clock.h"
#include "include/lagan_wire.h"
#include "ipc/records.h"

#define ROW_NONE UINT32_MAX
#define LEDGER_KEEP_TIME (600 * NSEC_S)
#define LEDGER_KEEP_BYTES (64u << 20)

enum row_state { ROW_FREE, ROW_QUEUED, ROW_DISPATCHED, ROW_STREAMING, ROW_ENDED, ROW_N_STATES };

struct bytes { /* grows at the end, shrinks at the front */
    char *p;
    size_t n, cap;
};
/* -ENOMEM. NULL from: room only. */
int bytes_add(struct bytes *b, const void *from, size_t n) MUST_USE;
void bytes_drop(struct bytes *b, size_t n); /* the first n */
void bytes_done(struct bytes *b);

/* Chosen by a client at random and told to nobody: all zero is none. */
struct session_id {
    uint8_t b[16];
};

struct row {
    enum row_state state;
    uint32_t index, gen;
    uint32_t next, prev; /* queue, kept rows, or free list */
    uint32_t next_due;   /* in deliver.c's list */
    req_id id;
    uint64_t rid; /* the client's own number */
    struct session_id session;
    uint8_t n_key; /* 0: none */
    char key[LAGAN_MAX_KEY];
    uint32_t client, model, worker;
    uint64_t turn;   /* its place in the queue among those of its priority: base/fair_queue.h */
    bool attached;   /* `client` is to hear of it; not: it has heard all, or is gone */
    bool named;      /* it has a session, and is found by its names */
    bool kept;       /* ended and heard: only its names lead to it */
    bool noted;      /* it is in the mirror */
    bool held;       /* a worker may still speak of it */
    bool due;        /* in deliver.c's list */
    bool blocked;    /* its client has too much under way: tried again by time */
    bool paused;     /* its client does not read: no more tokens are wanted for now */
    bool pause_told; /* as its worker knows */
    bool pause_due;  /* the worker must be told; the ring was full */
    bool cancel_due; /* likewise, cancel_reason */
    uint16_t cancel_reason;
    bool no_resume;          /* its client wants worker_lost rather than another worker */
    nsec accepted, deadline; /* deadline: NSEC_NEVER without */
    nsec ended, left;        /* when it ended; when its client went away */
    nsec patience;           /* so long it goes on without one */
    nsec stalled;      /* since when nothing could go: window shut or queue full; 0: it could */
    uint64_t asked_in; /* the number of the RESUME that named it last */
    uint32_t ack_window, n_chunks, n_acked;
    uint32_t mark_chunk, mark_token; /* when that chunk is acked, tokens before that are safe, */
    uint64_t mark_sent;              /* and so many bytes of its client's are read */
    uint64_t chunk_sent;             /* bytes that were sent to it, with the last chunk */

    uint32_t n_vain; /* deaths since its last new token, and how many it had at the last one */
    uint32_t n_before;
    uint32_t home;      /* 1 + the worker that had it last, when its KV is there; 0: none */
    nsec stay_until;    /* so long it waits for that one */
    uint8_t n_blames;   /* deaths that its own step may have caused */
    bool acquitted;     /* it got past them alone, once */
    uint32_t blamed_at; /* tokens it had when it was blamed last */

    uint64_t prompt_cost; /* its prompt in tokens; of a text a guess */
    uint64_t cost;        /* with the answer: tokens it may take */
    bool charged;         /* to its user and its turns, until it is over */
    uint32_t user;
    uint64_t bytes; /* it may come to take of lagand's memory; 0: it is over */

    struct rec_submit *submit; /* the record with its tails, submit_bytes long; n_done is 0 in it */
    uint32_t submit_bytes;

    uint32_t n_said, n_text_said; /* tokens and text bytes the worker has sent */
    bool
        text_unknown; /* it began with tokens of the client's: a worker will say how long their text is */
    uint32_t n_prompt_said; /* prompt positions with log-probabilities */
    uint32_t n_sent;        /* tokens the client has */
    uint32_t n_prompt_sent;
    struct bytes token; /* i32: all of them, sent or not: what a resume needs */
    struct bytes text;  /* likewise */
    size_t n_text_sent;
    uint32_t lp_first;                   /* tokens whose log-probabilities are dropped: acked */
    struct bytes logprob, top;           /* of the tokens from there on */
    struct bytes p_id, p_logprob, p_top; /* of prompt positions not sent yet */
    struct row_tensor {                  /* what it asked for beside tokens; counted in values */
        struct bytes value;              /* f32: not sent yet */
        uint64_t said, sent;
        uint32_t cols;
        bool unknown;          /* a worker will say where it goes on */
    } tensor[LAGAN_N_TENSORS]; /* by enum lagan_tensor, less 1 */

    /* With several outputs (pieces.h). The client has all before piece_at, and so much of that one. */
    struct row_output *out; /* [submit->n]; NULL: one */
    struct bytes piece;
    uint32_t piece_at, piece_n, piece_text;

    uint16_t reason; /* enum lagan_reason, from ROW_ENDED on */
    float score;
    uint32_t cached, adopted, recomputed, resumed;
    char why[200];
};

struct ledger;

struct ledger *ledger_new(uint32_t capacity, uint64_t seed) MUST_USE; /* NULL: no memory */
struct ledger *ledger_free(struct ledger *l);
CLEAN_FUNC(struct ledger, ledger_free)

uint32_t ledger_n(const struct ledger *l);             /* rows in use, without the kept */
uint32_t ledger_n_queued(const struct ledger *l);      /* of them in ROW_QUEUED */
uint64_t ledger_queued_tokens(const struct ledger *l); /* of their prompts */
uint64_t ledger_prompt_cost(const struct rec_submit *s);
uint64_t ledger_cost(const struct rec_submit *s); /* with its answers */
uint64_t ledger_unused(const struct row *r);      /* of that, what no token has taken */
uint32_t ledger_capacity(const struct ledger *l);

/* A row in ROW_QUEUED for this client's rid, of turn 0. -EEXIST: that client has an open one with it. -ENOSPC:
 * also without the kept rows, which make room, there is none. submit (from malloc) becomes the row's on
 * success. */
int ledger_take(struct ledger *l, uint32_t client, uint64_t rid, struct rec_submit *submit,
                uint32_t submit_bytes, struct row **ret) MUST_USE;
/* One that a former lagand took, under its old id: waiting, attached to nobody. -EEXIST, -ENOSPC. */
int ledger_recall(struct ledger *l, req_id id, uint64_t rid, struct rec_submit *submit,
                  uint32_t submit_bytes, struct row **ret) MUST_USE;
req_id ledger_last_id(const struct ledger *l);
void ledger_skip_ids(struct ledger *l, req_id last); /* up to there they are used */
/* Name a row just taken. key: NULL and 0 without. -EEXIST: the session has an open row with that rid,
 * or any row with that key; look first. A kept row with that rid loses its names. */
int ledger_name(struct ledger *l, struct row *r, const struct session_id *session, const char *key,
                uint32_t n_key) MUST_USE;
/* It will not be found any more; a kept row is gone with that. */
void ledger_unname(struct ledger *l, struct row *r);
/* Open, or ended and kept. NULL: unknown, and it may be run. */
struct row *ledger_find_rid(struct ledger *l, const struct session_id *session, uint64_t rid);
struct row *ledger_find_key(struct ledger *l, const struct session_id *session, const char *key,
                            uint32_t n_key);

/* Its client has the terminal message, or is gone: the client's number is free again. */
void ledger_detach(struct ledger *l, struct row *r);
/* Another connection of its session asks for it, under that number. -EEXIST: it has such a request
 * open. deliver_resume() is how. */
int ledger_attach(struct ledger *l, struct row *r, uint32_t client, uint64_t rid) MUST_USE;
/* A row that nobody is attached to is known by that number from now on. -EEXIST: its session has such a request open. */
int ledger_renumber(struct ledger *l, struct row *r, uint64_t rid) MUST_USE;
/* ENDED, not attached, held or due: kept if it has names, else gone. */
void ledger_give(struct ledger *l, struct row *r);
void ledger_expire(struct ledger *l, nsec now); /* kept rows that are too old, or too many bytes */

struct row *ledger_row(struct ledger *l, uint32_t index); /* NULL: out of range, or free */
/* Of rows that are attached. NULL: there is none. */
struct row *ledger_find(struct ledger *l, uint32_t client, uint64_t rid);
struct row *ledger_find_id(struct ledger *l, req_id id); /* NULL */
/* Its place among those that wait, from now on. */
void ledger_turn(struct ledger *l, struct row *r, uint64_t turn);
/* The queue: priority first, then turn, then in the order they came, also those that a dead worker had. The
 * first, or the next one; NULL: no more. */
struct row *ledger_next_queued(struct ledger *l, const struct row *after);

struct row *ledger_last_queued(struct ledger *l, const struct row *before); /* backwards */

void row_move(struct ledger *l, struct row *r, enum row_state to);
uint32_t row_n_tokens(const struct row *r);
/* Sequences that a worker runs for it. */
uint32_t row_n_seqs(const struct row *r);
/* The SUBMIT that goes on "from here": the request with the tokens and text of this row. n bytes of it
 * from `at` on; row_record_bytes() are all. */
uint32_t row_record_bytes(const struct row *r);
void row_record(const struct row *r, uint32_t at, void *to, uint32_t n);
void ledger_check(const struct ledger *l);

#endif

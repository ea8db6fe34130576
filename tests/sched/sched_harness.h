/* sched_harness.h - a scheduler with a KV manager under it and a pretended device, for tests.
 *
 * The pretended device holds what the real one would: tables, changed by nothing but edits; and it is
 * strict: it stops the program when a step is handed a block, a row or a token that is not in order.
 * The token after position p of request id is fake_token(id, p), so that streams can be compared. Requests
 * that begin alike: run_ref().
 */
#ifndef TESTS_SCHED_HARNESS_H
#define TESTS_SCHED_HARNESS_H

#include "worker/kv/kv_seq.h"
#include "worker/sched/scheduler.h"

enum { RUN_SLOTS = 64, RUN_ENTRIES = 512, RUN_OUT = 2 };
enum { RUN_SOURCE = 100000 }; /* a source's tokens are those of the positions from here on */

struct fake; /* what the device knows */

struct sched_fixture {
    struct kv_config c;
    struct scheduler_limits l;
    void *mem;
    struct kv *kv;
    struct scheduler *s;
    struct batch *batch[MAX_LANES][RUN_OUT]; /* ring: step % RUN_OUT */
    uint64_t planned[MAX_LANES], done[MAX_LANES];
    struct fake *fake;
    nsec now;
    bool failing; /* steps end with -EIO */
    bool divided; /* scheduler_set_partition() was called: answers may be where prompts are */
    /* For who writes a manifest, or NULL: before and after a step is launched, when it is done and not
     * committed, and what a new process takes over. */
    void (*launching)(struct sched_fixture *r, const struct batch *b);
    void (*launched)(struct sched_fixture *r, const struct batch *b);
    void (*finishing)(struct sched_fixture *r, const struct batch *b);
    void (*adopt)(struct sched_fixture *r);
};

/* One full group, blocks of 10 tokens, one lane; change what the test is about, then run_open(). */
void run_defaults(struct sched_fixture *r);
/* A group with `blocks` blocks at most (0: elastic). */
struct kv_group run_group(enum kv_kind kind, uint32_t window, uint32_t slice_bytes,
                          uint32_t max_blocks);
void run_open(struct sched_fixture *r);
/* The same, and adds the n sequences, which must succeed. */
void run_open_with(struct sched_fixture *r, struct seq *const *q, uint32_t n);
void run_close(struct sched_fixture *r);

/* How a test ends; a failure stops the program. */
/* Plans and commits until no lane has a step. One lane is planned one step ahead. */
void run_drain(struct sched_fixture *r);
/* Reaps what is left. All n sequences have ended, and no other; their tokens are what they must be
 * and no block is used. Frees the sequences, closes r. */
void run_end(struct sched_fixture *r, struct seq *const *q, uint32_t n);
/* run_drain() and run_end(); each of the n sequences has its full length. */
void run_finish(struct sched_fixture *r, struct seq *const *q, uint32_t n);
/* Cancels the n sequences, then run_end(). */
void run_cancel(struct sched_fixture *r, struct seq *const *q, uint32_t n);

/* The process is gone, at this instant: of each step that was out, all is written or nothing. Another one
 * begins, on the same memory. */
void run_die(struct sched_fixture *r);
void run_again(struct sched_fixture *r);
/* Whether the block, or the cell, has K and V of that many positions of the request's entry. */
bool run_holds(const struct sched_fixture *r, uint8_t tier, uint32_t group, slice_id at,
               const struct seq *q, uint32_t entry, uint32_t n);

/* Filled in, not added. The tokens are the test's to free with seq_free(). */
struct seq *seq_new(req_id id, uint32_t n_prompt, uint32_t max_new, uint32_t n_source);
void seq_free(struct seq *q);
/* n of one request that begin alike, behind the first: beams of a search that ends by length, or samples, each with
 * tokens of its own behind the prompt. Each is freed by itself. */
struct seq *seq_group_of(req_id id, uint32_t n, bool beams, uint32_t n_prompt, uint32_t max_new,
                         uint32_t n_source);
/* The request whose tokens those of q are: its own, or a sample's. */
req_id seq_name(const struct seq *q);
uint32_t seq_member(const struct seq *q);             /* of a family, from 0 */
void run_add(struct sched_fixture *r, struct seq *q); /* must succeed */

/* The lane's next step, checked against the device and "launched": its batch, or NULL. */
const struct batch *run_plan(struct sched_fixture *r, unsigned lane);
/* The lane's oldest step is done; false: none is out. */
bool run_commit(struct sched_fixture *r, unsigned lane);
/* Plan and commit one step of the lane; the batch, or NULL. */
const struct batch *run_step(struct sched_fixture *r, unsigned lane);
token_id fake_token(req_id id, uint32_t pos); /* 0 .. 999 */
/* Of the rows of a run whose first is at that position, how many are taken with so many drafts: 1 and more. */
uint32_t fake_taken(const struct scheduler_limits *l, req_id id, uint32_t first, uint32_t n_draft);
/* An id whose first `alike` positions, and whose source, are those of all with the same stem, 1 .. 255. */
req_id run_ref(uint32_t n, uint32_t stem, uint32_t alike);
/* What the request's tokens must be now: prompt untouched, then fake_token()s. */
void run_check_tokens(const struct seq *q);
/* Blocks held, over all pools. */
uint32_t run_used(const struct sched_fixture *r);
bool in_batch(const struct batch *b, const struct seq *q);

#endif

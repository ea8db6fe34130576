/* sched_harness.h - a scheduler, a KV manager and a fake device, for tests.
 *
 * The fake device has what a real one has: tables, changed by table edits only. It is strict: it
 * aborts when a step has an invalid block, position or token. The token after position p of request
 * id is fake_token(id, p), so that streams can be compared. run_ref() makes ids of requests with a
 * common prefix.
 */
#pragma once
#include "worker/kv/kv_seq.h"
#include "worker/sched/scheduler.h"

enum { RUN_SLOTS = 64, RUN_ENTRIES = 512, RUN_OUT = 2 };
enum { RUN_SOURCE = 100000 }; /* encoder input tokens are fake tokens from this position on */

struct fake; /* state of the device */

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
    bool divided; /* scheduler_set_partition() was called: decode may be in the prefill lane */
    /* Hooks for a manifest, or NULL: before and after a launch, when a step is done and not
     * committed, and before adoption in a new process. */
    void (*launching)(struct sched_fixture *r, const struct batch *b);
    void (*launched)(struct sched_fixture *r, const struct batch *b);
    void (*finishing)(struct sched_fixture *r, const struct batch *b);
    void (*adopt)(struct sched_fixture *r);
};

/* One full group, blocks of 10 tokens, one lane; change what the test is about, then run_open(). */
void run_defaults(struct sched_fixture *r);
/* A group with at most `blocks` blocks (0: limited by the arena). */
struct kv_group run_group(enum kv_kind kind, uint32_t window, uint32_t slice_bytes,
                          uint32_t max_blocks);
void run_open(struct sched_fixture *r);
/* The same, and adds n sequences, which must succeed. */
void run_open_with(struct sched_fixture *r, struct seq *const *q, uint32_t n);
void run_close(struct sched_fixture *r);

/* The following functions end a test; a failure aborts.
 * Plans and commits until no lane has a step. A single lane is planned one step ahead. */
void run_drain(struct sched_fixture *r);
/* Reaps the rest. All n sequences, and no other, must have ended with the right tokens, and no
 * block may be used. Frees the sequences and closes r. */
void run_end(struct sched_fixture *r, struct seq *const *q, uint32_t n);
/* run_drain() and run_end(); each of the n sequences has its full length. */
void run_finish(struct sched_fixture *r, struct seq *const *q, uint32_t n);
/* Cancels the n sequences, then run_end(). */
void run_cancel(struct sched_fixture *r, struct seq *const *q, uint32_t n);

/* The process dies now: the writes of each step in flight are complete or missing. A new process
 * starts on the same memory. */
void run_die(struct sched_fixture *r);
void run_again(struct sched_fixture *r);
/* True if the device or host block has K and V of that many positions of the request's entry. */
bool run_holds(const struct sched_fixture *r, uint8_t tier, uint32_t group, slice_id at,
               const struct seq *q, uint32_t entry, uint32_t n);

/* A filled-in sequence, not added. The caller frees it with seq_free(). */
struct seq *seq_new(req_id id, uint32_t n_prompt, uint32_t max_new, uint32_t n_source);
void seq_free(struct seq *q);
/* A group of n sequences that share a prompt: beams of a search that ends by length, or samples,
 * each with tokens of its own after the prompt. Each is freed on its own. */
struct seq *seq_group_of(req_id id, uint32_t n, bool beams, uint32_t n_prompt, uint32_t max_new,
                         uint32_t n_source);
/* The request whose fake tokens q has: its own, or a sample's. */
req_id seq_name(const struct seq *q);
uint32_t seq_member(const struct seq *q);             /* index in its group */
void run_add(struct sched_fixture *r, struct seq *q); /* must succeed */

/* Plans the lane's next step, checks it against the device and launches it: its batch, or NULL. */
const struct batch *run_plan(struct sched_fixture *r, unsigned lane);
/* Commits the lane's oldest step; false: none is in flight. */
bool run_commit(struct sched_fixture *r, unsigned lane);
/* Plan and commit one step of the lane; the batch, or NULL. */
const struct batch *run_step(struct sched_fixture *r, unsigned lane);
token_id fake_token(req_id id, uint32_t pos); /* 0 .. 999 */
/* How many tokens of a segment with that first position and n drafts are accepted, at least 1. */
uint32_t fake_taken(const struct scheduler_limits *l, req_id id, uint32_t first, uint32_t n_draft);
/* An id whose first `alike` positions and encoder input equal those of all ids with the stem 1 ..
 * 255. */
req_id run_ref(uint32_t n, uint32_t stem, uint32_t alike);
/* Checks the request's tokens: prompt unchanged, then fake_token()s. */
void run_check_tokens(const struct seq *q);
/* Referenced blocks in all pools. */
uint32_t run_used(const struct sched_fixture *r);
bool in_batch(const struct batch *b, const struct seq *q);

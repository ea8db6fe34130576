/* exec.h - executes batches on the device: uploads their arrays, queues the ops of the model and
 * samples.
 *
 * The scheduler makes all decisions. If the device can capture graphs, the decoder part of a batch
 * with a bucket runs as a captured graph (graphs.h).
 *
 * exec_start() queues a step on its lane and returns. exec_fd() of the lane becomes readable when a
 * step is done; exec_finish() then returns its result. Two steps of a lane may be in flight; they
 * finish in order. One thread makes all calls. exec_open() allocates all memory.
 */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "gpu/gpu.h"
#include "worker/kv/kv.h"
#include "worker/model/model.h"
#include "worker/partition/partition_list.h"
#include "worker/sched/batch.h"

struct exec;

struct exec_config {
    uint32_t max_tokens, max_seqs, max_enc_tokens; /* the scheduler's limits */
    /* limits as for batch_new(); 0: 4,096 edits, slots * groups copies */
    uint32_t max_edits, max_copies;
    uint32_t n_lanes;
    uint32_t lane_units[MAX_LANES]; /* threads or SMs of each lane; 0: an equal share */
    enum dtype kv_dtype;            /* dtype of the KV cache, as for model_groups() */
    /* Called repeatedly while a step is queued, because queueing may take long. May be NULL. */
    void (*heartbeat)(void *arg);
    void *heartbeat_arg;
    /* limit of device memory for captured graphs of all lanes; 0: no graphs */
    uint64_t graphs_memory;
    /* Partitions that are made before the first step. A step uses part[batch.partition][lane], a
     * range of the units of its lane; n 0, and partition 0: all units. */
    uint32_t n_partitions;
    struct exec_part {
        uint32_t first, n;
    } part[MAX_PARTITIONS][MAX_LANES];
    bool measure; /* true: exec_open() measures each partition for exec_rate() */
    bool brief; /* true: clients wait for this replacement worker, so only decoding is warmed up */
};

enum { EXEC_MAX_BIAS = 256 /* most logit_bias entries of a request */ };

/* Sampling parameters of the sequence in a slot. exec_set_sampling() copies the struct; the arrays
 * prompt and bias must stay valid while the slot is in use. */
struct sampling {
    uint64_t seed;
    float temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k;
    /* number of best tokens to return: for each generated token; for each prompt token */
    uint32_t logprobs, prompt_logprobs;
    bool want_logprobs; /* return the log-probability of the sampled token, also with logprobs 0 */
    /* copy encoder states for exec_states(); copy logits for exec_logits() */
    bool want_states, want_logits;
    uint32_t output;
    uint32_t n_prompt;         /* tokens of the prompt, for prompt_logprobs */
    const token_id *prompt;    /* [n_prompt], for prompt_logprobs */
    uint32_t first_new;        /* position of generated token 0: n_prompt - delivered tokens */
    uint32_t min_new, max_new; /* limits of generated tokens, those delivered before included */
    int32_t forced_bos, forced_eos; /* forced as generated token 0, as the last token; -1: none */
    uint32_t n_eos;                 /* number of eos[], tokens that are suppressed before min_new */
    token_id eos[48];
    /* Subtracted from the logit of a generated token: presence once, frequency per occurrence. */
    float presence_penalty, frequency_penalty;
    uint32_t no_repeat_ngram;
    uint32_t n_bias;
    const struct logit_bias *bias; /* [n_bias], sorted by id, no id twice */
    uint32_t n_candidates;         /* beam: number of best tokens to return; 0: sample a token */
};

/* Allocates all memory (scratch in an arena of its own) and runs every kernel once. kv: groups from
 * model_groups(). -ENOMEM: the message says how much memory was requested for what. */
int exec_open(struct exec **ret, const struct exec_config *c, struct gpu *g, const struct model *m,
              const struct kv_config *kv, struct err *e) MUST_USE;
/* Sets the arena that contains the KV blocks; call it before the first step. */
void exec_blocks(struct exec *x, const struct kv_config *kv, const struct arena *blocks);
/* Sets the memory of the host tier; call it before the first step that copies its blocks. */
void exec_host(struct exec *x, const struct host_memory *host);
/* Measures how many bytes per second are copied from the host tier to the device: copies the first
 * n host blocks, `pitch` bytes apart and mapped, to the group's block `scratch`. Waits for the
 * copies; only before the first step. 0: the device failed. */
uint64_t exec_host_rate(struct exec *x, uint32_t group, slice_id scratch, uint32_t n,
                        uint64_t pitch);
struct exec *exec_close(struct exec *x); /* waits for steps in flight; accepts NULL */
CLEAN_FUNC(struct exec, exec_close)

/* Rates of a lane in a partition, measured while the other lane was idle; 0: not measured. Lane 0
 * of partition 0 has the rates of the whole device. */
struct exec_rate {
    double read, compute; /* bytes/s, FLOP/s */
};
struct exec_rate exec_rate(const struct exec *x, unsigned partition, unsigned lane);
/* Time and memory that the partitions took before the first step. */
struct exec_partition_times {
    nsec made, measured;
    uint64_t bytes; /* device memory of the partitions */
};
struct exec_partition_times exec_partition_times(const struct exec *x);
/* Changes the unit ranges of a partition for steps started from now on. Waits for steps in flight
 * and calls the heartbeat. Returns 1: already equal. On failure the partition uses all units. */
int exec_set_partition(struct exec *x, unsigned partition, const struct exec_part part[MAX_LANES],
                       struct err *e) MUST_USE;
/* Returns [MAX_LANES] the current unit ranges of a partition. */
const struct exec_part *exec_parts(const struct exec *x, unsigned partition);
/* Sets the sampling parameters of a slot; call it before the first step of the sequence. */
void exec_set_sampling(struct exec *x, uint32_t slot, const struct sampling *s);
/* Makes the first n tokens of the slot's sequence its history, for penalties and no_repeat_ngram:
 * before the first step of a sequence, because no step has the tokens of a cache hit, and before
 * each step of a beam, which may have become another beam. Call it after exec_set_sampling(). */
void exec_mark_tokens(struct exec *x, uint32_t slot, const token_id *token, uint32_t n);
/* Queues a step; the caller may reuse b at once. -ENOTSUP: the batch needs a feature that is not
 * implemented. -EINVAL, -EIO: the device failed and the worker must exit. */
int exec_start(struct exec *x, const struct batch *b, struct err *e) MUST_USE;
/* Returns a fd that is readable while exec_finish() may return a step. Call exec_finish() until
 * -EAGAIN, which drains the fd. -1: the device has no fd; poll exec_done(). */
int exec_fd(const struct exec *x, unsigned lane);
/* Returns number and sum of the idle gaps between two steps, with gpu_options.timing. */
void exec_gaps(struct exec *x, uint64_t *n, uint64_t *ns);
/* Returns the number of captured graphs of all lanes and their device memory. */
void exec_graphs(const struct exec *x, uint64_t *n, uint64_t *bytes);
uint64_t exec_done(const struct exec *x, unsigned lane); /* number of the last step that is done */
/* Returns the result of the lane's oldest step in flight. exec owns *r, which is valid until
 * exec_start() has been called twice more for the lane. -EAGAIN: not done yet. r->status < 0: the
 * device failed. */
int exec_finish(struct exec *x, unsigned lane, const struct batch_result **r) MUST_USE;
/* Returns the unmodified logits [vocab] of the row that segment i sampled from. NULL: it did not
 * sample, or want_logits is not set. */
const float *exec_logits(const struct exec *x, const struct batch_result *r, uint32_t i);
/* exec_n_states() returns the number of values in the encoder states [enc_tokens, hidden] that the
 * first chunk of segment i projected; 0 if want_states is not set. exec_states() copies n of these
 * values, from `first` on, to `to` in fp32. */
uint32_t exec_n_states(const struct exec *x, const struct batch_result *r, uint32_t i);
void exec_states(const struct exec *x, const struct batch_result *r, uint32_t i, uint32_t first,
                 uint32_t n, float *to);
uint64_t exec_scratch_bytes(const struct exec *x);
/* Returns the memory that exec_open() would allocate, on the device and on the host, except pages
 * that only requests with special outputs (logits, many log-probabilities) touch. m: its weights
 * need not be loaded. */
uint64_t exec_scratch_need(const struct exec_config *c, const struct model *m,
                           const struct kv_config *kv);
/* Calls lane.tune() (gpu.h) for the first lane that has a shape to measure and returns its result.
 * Call it only while no step is in flight. If a faster algorithm was found, drops the captured
 * graphs of the lane, because graphs contain the old one. */
int exec_tune(struct exec *x, struct tune_result *ret) MUST_USE;
const char *exec_why(const struct exec *x); /* gpu_why() */
/* Runs matmul i < exec_n_matmuls() (a shape and a number of rows) in scratch memory, so that
 * exec_tune() measures it. Call it only while no step is in flight. -ENOTSUP: it cannot be
 * measured. -EIO: the device failed. */
uint32_t exec_n_matmuls(const struct exec *x);
int exec_matmul(struct exec *x, uint32_t i, struct err *e) MUST_USE;

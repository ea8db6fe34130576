/* exec.h - executes batches: uploads the arrays, queues the model's ops, samples.
 *
 * The scheduler makes all decisions. If the device can capture graphs (gpu_graphs()), the decoder
 * part of a batch with a bucket runs as a captured graph (graphs.h).
 *
 * exec_start() queues a step on its lane and returns. The lane's fd (exec_fd) becomes readable when
 * a step is done; exec_finish() then returns its result. Two steps of a lane may be in flight; they
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
    uint32_t max_edits, max_copies; /* as for batch_new(); 0: 4,096, slots * groups */
    uint32_t n_lanes;
    uint32_t lane_units[MAX_LANES]; /* threads or SMs of each; 0: an equal share */
    enum dtype kv_dtype;            /* as for model_groups() */
    /* Heartbeat, called repeatedly while a step is queued, because queueing may be slow. NULL:
     * none. */
    void (*heartbeat)(void *arg);
    void *heartbeat_arg;
    uint64_t graphs_memory; /* device memory for captured steps of all lanes; 0: no graphs */
    /* Partitions, made before the first step. A step of a partition (batch.partition) runs on this
     * range of its lane's units; n 0, and partition 0: all units. */
    uint32_t n_partitions;
    struct exec_part {
        uint32_t first, n;
    } part[MAX_PARTITIONS][MAX_LANES];
    bool measure; /* measure each partition for exec_rate() */
    bool brief;   /* clients wait for a replacement worker: warm up decoding only */
};

/* EXEC_LOOK_BACK: tokens of a sequence that the sampling of exec_looks_back() can use.
 * EXEC_MAX_BIAS: logit_bias entries of a request. */
enum { EXEC_LOOK_BACK = 4096, EXEC_MAX_BIAS = 256 };

/* Sampling parameters of a slot. exec_set_sampling() copies the struct; prompt and bias must stay
 * valid while the slot is in use. */
struct sampling {
    uint64_t seed;
    float temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k;
    uint32_t logprobs, prompt_logprobs; /* alternatives of each token */
    bool want_logprobs;                 /* of the sampled token, even with logprobs 0 */
    bool want_states, want_logits;      /* for exec_states(), exec_logits() */
    uint32_t output;
    uint32_t n_prompt;      /* token[0 .. n_prompt) of the sequence, for prompt_logprobs */
    const token_id *prompt; /* with exec_looks_back() also the generated tokens */
    uint32_t first_new; /* position of generated token 0 in the sequence: n_prompt - delivered */
    uint32_t min_new, max_new;      /* generated tokens, delivered ones included */
    int32_t forced_bos, forced_eos; /* at generated token 0, at the last; -1 off */
    uint32_t n_eos;                 /* suppressed before min_new */
    token_id eos[48];
    /* Subtracted from the logits of generated tokens: once; for each occurrence. */
    float presence_penalty, frequency_penalty;
    uint32_t no_repeat_ngram;
    uint32_t n_bias;
    const struct logit_bias *bias; /* [n_bias], sorted by id, no id twice */
    uint32_t n_candidates;         /* beam: number of best tokens to return; 0: sample a token */
};
/* Returns true if sampling needs all previous tokens: a step can be planned only after the steps
 * before it. */
bool exec_looks_back(const struct sampling *s);

/* Allocates all memory, scratch in its own arena, and runs every kernel once. kv: groups from
 * model_groups(). -ENOMEM: the message has the numbers. */
int exec_open(struct exec **ret, const struct exec_config *c, struct gpu *g, const struct model *m,
              const struct kv_config *kv, struct err *e) MUST_USE;
/* Sets the arena of KV blocks, before the first step. */
void exec_blocks(struct exec *x, const struct kv_config *kv, const struct arena *blocks);
/* Sets the memory of the host tier, before the first step that copies a block of it. */
void exec_host(struct exec *x, const struct host_memory *host);
struct exec *exec_close(struct exec *x); /* waits for steps in flight; accepts NULL */
CLEAN_FUNC(struct exec, exec_close)

/* Measured rates of a lane in a partition while the other lane is idle; lane 0 of partition 0: the
 * whole device. 0: not measured. */
struct exec_rate {
    double read, compute; /* bytes/s, FLOP/s */
};
struct exec_rate exec_rate(const struct exec *x, unsigned partition, unsigned lane);
/* Cost of the partitions before the first step. */
struct exec_partition_times {
    nsec made, measured;
    uint64_t bytes; /* device memory */
};
struct exec_partition_times exec_partition_times(const struct exec *x);
/* Changes the unit ranges of a partition, from the next started step on. Waits for steps in flight
 * and calls the heartbeat. Returns 1 if the ranges are unchanged. On failure the message is the
 * device's, and the partition uses all units. */
int exec_set_partition(struct exec *x, unsigned partition, const struct exec_part part[MAX_LANES],
                       struct err *e) MUST_USE;
/* [MAX_LANES]: the current unit ranges of a partition. */
const struct exec_part *exec_parts(const struct exec *x, unsigned partition);
/* Before the first step of the sequence in the slot. */
void exec_set_sampling(struct exec *x, uint32_t slot, const struct sampling *s);
/* After exec_set_sampling(): marks n tokens as seen that no step will contain (adopted
 * sequences). */
void exec_mark_tokens(struct exec *x, uint32_t slot, const token_id *token, uint32_t n);
/* Queues a step; b may be reused at once. -ENOTSUP: the batch needs a feature that is not
 * implemented. -EINVAL, -EIO: the device failed and the worker must exit. */
int exec_start(struct exec *x, const struct batch *b, struct err *e) MUST_USE;
/* Readable while exec_finish() may return a step. Call exec_finish() until -EAGAIN, which drains
 * the fd. -1: the device has no fd; poll exec_done(). */
int exec_fd(const struct exec *x, unsigned lane);
/* Number and total time of device gaps between two steps, with gpu_options.timing. */
void exec_gaps(struct exec *x, uint64_t *n, uint64_t *ns);
/* Captured graphs of all lanes and their device memory. */
void exec_graphs(const struct exec *x, uint64_t *n, uint64_t *bytes);
uint64_t exec_done(const struct exec *x, unsigned lane); /* number of the last step done */
/* Returns the result of the lane's oldest step in flight. *r belongs to exec and is valid until two
 * more exec_start() of the lane. -EAGAIN: that step is not done. r->status: device failure. */
int exec_finish(struct exec *x, unsigned lane, const struct batch_result **r) MUST_USE;
/* The unmodified logits [vocab] of the sampled row of segment i. NULL: no sampled row, or
 * want_logits is not set. */
const float *exec_logits(const struct exec *x, const struct batch_result *r, uint32_t i);
/* exec_n_states(): number of values in the encoder states [enc_tokens, hidden] that the first chunk
 * of segment i projected; 0 if want_states is not set. exec_states(): copies n values from `first`
 * on, in fp32. */
uint32_t exec_n_states(const struct exec *x, const struct batch_result *r, uint32_t i);
void exec_states(const struct exec *x, const struct batch_result *r, uint32_t i, uint32_t first,
                 uint32_t n, float *to);
uint64_t exec_scratch_bytes(const struct exec *x);
/* gpu_ops.tune on the first lane with a shape left. Only while no step is in flight. Drops the
 * lane's captured graphs if a faster algorithm was found, because graphs contain the old one. */
int exec_tune(struct exec *x, struct tune_result *ret) MUST_USE;
const char *exec_why(const struct exec *x); /* gpu_why() */
/* Runs matmul i < exec_n_matmuls() (a shape and a number of rows) in scratch, so that exec_tune()
 * measures it. Only while no step is in flight. -ENOTSUP: not measurable. -EIO: the device
 * failed. */
uint32_t exec_n_matmuls(const struct exec *x);
int exec_matmul(struct exec *x, uint32_t i, struct err *e) MUST_USE;

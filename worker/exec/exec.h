/* exec.h - do a batch: upload its arrays, queue the model's ops, sample; decides nothing.
 *
 * Where the device captures (gpu_graphs()), the decoder's part of a batch with a bucket runs as a graph once
 * that was captured (graphs.h).
 *
 * exec_start() queues a step on its lane and returns; the lane's fd (exec_fd) becomes readable when a
 * step is done; exec_finish() then hands its result out. Two steps of a lane may be out at once; they
 * finish in order. One thread calls all of it. Nothing is allocated after exec_open().
 */
#ifndef EXEC_EXEC_H
#define EXEC_EXEC_H

#include "base/base.h"
#include "base/err.h"
#include "gpu/gpu.h"
#include "worker/kv/kv.h"
#include "worker/model/model.h"
#include "worker/partition/partition_list.h"
#include "worker/sched/batch.h"

struct exec;

struct exec_config {
    uint32_t max_tokens, max_seqs, max_enc_tokens; /* as the scheduler's limits */
    uint32_t max_edits, max_copies; /* as batch_new()'s; 0: 4,096, a slot's and group's */
    uint32_t n_lanes;
    uint32_t lane_units[MAX_LANES]; /* threads or SMs of each; 0: an equal share */
    enum dtype kv_dtype;            /* as model_groups() was given */
    /* Called now and then while a step is queued: that may take longer than a turn should. Or NULL. */
    void (*beat)(void *arg);
    void *beat_arg;
    uint64_t graphs_memory; /* device memory that captured steps may take, all lanes; 0: none */
    /* Rungs that are made before the first step: steps of one (batch.partition) run on these of the units that their lane
     * was opened with. Rung 0, and one of which nothing is said: on all. */
    uint32_t n_partitions;
    struct exec_part {
        uint32_t first, n; /* n 0: all */
    } part[MAX_PARTITIONS][MAX_LANES];
    bool measure; /* what each part can do: exec_rate() */
    bool brief;   /* streams wait: the pass before the first step is of generation alone */
};

/* As many of a sequence's tokens are looked at where its next one depends on all of them (exec_looks_back()), and
 * as many logits changed by a request's own wish. */
enum { EXEC_LOOK_BACK = 4096, EXEC_MAX_BIAS = 256 };

/* How a slot's tokens are chosen. Copied by exec_set_sampling(); prompt and bias are kept until the slot ends. */
struct sampling {
    uint64_t seed;
    float temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k;
    uint32_t logprobs, prompt_logprobs; /* alternatives of each token */
    bool want_logprobs;                 /* of the sampled token, even with logprobs 0 */
    bool want_states, want_logits;      /* exec_states(), exec_logits() */
    uint32_t output;
    uint32_t n_prompt; /* token[0 .. n_prompt) of the sequence, for prompt_logprobs */
    const token_id
        *prompt; /* with exec_looks_back() the tokens behind them as they come to be known */
    uint32_t
        first_new; /* position (in the sequence) of generated token 0: n_prompt less delivered */
    uint32_t min_new, max_new;      /* generated tokens, delivered ones included */
    int32_t forced_bos, forced_eos; /* at generated token 0, at the last; -1 off */
    uint32_t n_eos;                 /* banned before min_new */
    token_id eos[48];
    float presence_penalty,
        frequency_penalty; /* taken from logits of generated tokens: once, and for each time */
    uint32_t no_repeat_ngram;
    uint32_t n_bias; /* [n_bias] by id, each once */
    const struct logit_bias *bias;
    uint32_t
        n_candidates; /* of a beam: so many of its best tokens are handed out; 0: a token is drawn */
};
/* Its steps may not be planned before the tokens of those ahead are known. */
bool exec_looks_back(const struct sampling *s);

/* kv: groups as model_groups() filled them. Scratch comes from an arena of its own. Everything is sized here
 * and every kernel met once; -ENOMEM with the numbers. */
int exec_open(struct exec **ret, const struct exec_config *c, struct gpu *g, const struct model *m,
              const struct kv_config *kv, struct err *e) MUST_USE;
/* The blocks, before the first step. */
void exec_blocks(struct exec *x, const struct kv_config *kv, const struct arena *blocks);
/* Those of the host tier, before the first step that copies one. */
void exec_host(struct exec *x, const struct host_memory *host);
struct exec *exec_close(struct exec *x); /* waits for steps that are out; NULL in, NULL out */
CLEAN_FUNC(struct exec, exec_close)

/* What a lane's part of a partition reads and multiplies by itself, a second; lane 0 of partition 0: the whole device. 0: it
 * was not measured. */
struct exec_rate {
    double read, compute; /* bytes, FLOP */
};
struct exec_rate exec_rate(const struct exec *x, unsigned partition, unsigned lane);
/* What the partitions took before the first step. */
struct exec_partition_times {
    nsec made, measured;
    uint64_t bytes; /* of the device's memory */
};
struct exec_partition_times exec_partition_times(const struct exec *x);
/* Steps of that partition run on these parts from the next one started on. Where it had others, it waits for steps that
 * are out, beating. 1: it has these already. Failure: the device's sentence, and the partition is on all units. */
int exec_set_partition(struct exec *x, unsigned partition, const struct exec_part part[MAX_LANES],
                       struct err *e) MUST_USE;
/* [MAX_LANES] that steps of that partition run on now. */
const struct exec_part *exec_parts(const struct exec *x, unsigned partition);
void exec_set_sampling(struct exec *x, uint32_t slot,
                       const struct sampling *s); /* before its first step */
/* After exec_set_sampling(): the first n tokens of its history, which no step will carry. */
void exec_mark_tokens(struct exec *x, uint32_t slot, const token_id *token, uint32_t n);
/* b is read and may be used again at once. -ENOTSUP: the batch asks for what is not there yet, by name;
 * -EINVAL, -EIO: the device's sentence, and the worker is finished. */
int exec_start(struct exec *x, const struct batch *b, struct err *e) MUST_USE;
/* Readable while exec_finish() may have something; call it until -EAGAIN, which empties the fd. -1: the
 * device has none, look at exec_done(). */
int exec_fd(const struct exec *x, unsigned lane);
/* How often and how long lanes had nothing to do between two steps, with gpu_options.timing. */
void exec_gaps(struct exec *x, uint64_t *n, uint64_t *ns);
/* Captured steps of all lanes, and what they take of the device's memory. */
void exec_graphs(const struct exec *x, uint64_t *n, uint64_t *bytes);
uint64_t exec_done(const struct exec *x, unsigned lane); /* the last step that is done */
/* The oldest step of the lane that is out and done: *r is ours, valid until two more exec_start() of the
 * lane. 0, or -EAGAIN: none is done. A device failure is r->status. */
int exec_finish(struct exec *x, unsigned lane, const struct batch_result **r) MUST_USE;
/* Of run i of a step that was handed out and is valid. Its sampled row of logits [vocab], before anything acts on
 * them; NULL: there is none, or its slot does not want it. */
const float *exec_logits(const struct exec *x, const struct batch_result *r, uint32_t i);
/* How many values the states of its source are [enc_tokens, hidden], that its first chunk projected; 0: its slot does
 * not want them. n of them from `first` on, in fp32. */
uint32_t exec_n_states(const struct exec *x, const struct batch_result *r, uint32_t i);
void exec_states(const struct exec *x, const struct batch_result *r, uint32_t i, uint32_t first,
                 uint32_t n, float *to);
uint64_t exec_scratch_bytes(const struct exec *x);
/* gpu_ops.tune, of the first lane that has something left. Only while no step is out. Captured steps are let go
 * of where a faster algorithm was found: they hold the one of before. */
int exec_tune(struct exec *x, struct tune_result *ret) MUST_USE;
const char *exec_why(const struct exec *x); /* gpu_why() */
/* Do the model's matmul i, a shape with a number of rows, of exec_n_matmuls(), in scratch, so that exec_tune()
 * finds it. Only while no step is out. -ENOTSUP: not this one; -EIO: the device has failed. */
uint32_t exec_n_matmuls(const struct exec *x);
int exec_matmul(struct exec *x, uint32_t i, struct err *e) MUST_USE;

#endif

/* exec_internal.h - structs and functions that the files of worker/exec share:
 *
 *     scratch.c         memory layout: one device arena, one host mapping
 *     stage.c           batch -> the arrays that ops read; refused batches
 *     encoder_launch.c  encoder slices and cross projections
 *     kv_moves.c        table edits, copies of table rows and of blocks
 *     copy_order.c      grouping of copies into launches
 *     sampling.c        logit rows, sampling parameters, results
 *     tensor_output.c   encoder states and logits for requests that want them
 *     graphs.c          which steps run as captured graphs
 *     capture.c         queues a piece of a step, plain or as a graph
 *     launch.c          queues one step
 *     exec_partition.c  the device units of each lane
 *     warmup.c          a pass over padding before the first step
 *     tune.c            measures the matmuls of the model while no step is in flight
 *     exec.c            opening; start and end of a step
 *
 * "Staging" writes the arrays of a step to host memory before they are copied to the device; a
 * "piece" is the part of a step that can be one graph (encoder, cross projections, decoder);
 * "plain" is without a graph.
 *
 * A lane has 1 staging image on the device, because graphs keep addresses and the copy into the
 * image follows the previous step in the lane's queue. It has 2 images on the host, because 2 steps
 * may be in flight and the source of a copy must stay valid. It has 3 outcomes, because a result
 * stays valid during one more start. All lanes share block tables, last tokens, seen bits and
 * encoder states.
 */
#pragma once
#include "worker/exec/copy_order.h"
#include "worker/exec/exec.h"
#include "worker/exec/graphs.h"

enum { STAGES = 2, OUTCOMES = 3, MAX_TOP = 1024 };
/* Pinned entries for the best tokens of logit rows. A step with more entries uses pageable memory,
 * and its copies block the caller; pinning more would add about 1 s to every start. */
enum { NEAR_TOPS = 128 << 10 };
enum { MAX_SUPPRESSED = ARRAY_LEN(((struct sampling *)0)->eos) /* of a logit row */ };

/* An image: arrays that are written on the host and copied to the device with one call. Arrays that
 * a graph reads come first and have the size of its bucket, so their addresses stay the same. */
struct image {
    char *host, *dev;
    size_t bytes, used;
};
/* Allocates an array of an image: returns its host address, sets *dev to its device address. */
void *image_take(struct image *im, size_t bytes, void **dev);
/* Allocates an array of n elements with image_take(); the value is the host address. */
#define TAKE_ARRAY(im, type, n, dev_p) \
    ({ \
        void *take_dev; \
        type *take_host = image_take(im, (n) * sizeof(type), &take_dev); \
        *(dev_p) = take_dev; \
        take_host; \
    })

/* The arrays of one step on the host, by piece. */
struct stage {
    struct image step, encode, project;
    int32_t *suppressed;           /* [n_slots * MAX_SUPPRESSED] */
    struct logit_bias *logit_bias; /* [n_slots * EXEC_MAX_BIAS] */
};

/* The result of one step. The arrays of r are in the host mapping. */
struct outcome {
    struct batch_result r;
    int32_t *drawn; /* [2 * max_tokens] tokens of the logit rows, then r.logprob */
    /* best tokens: near: pinned, [MIN(rows * top_most, NEAR_TOPS)]; far: pageable, for more */
    struct batch_top *near, *far;
    uint32_t *segment_logit; /* [n_slots] logit row that each segment sampled from, or NO_LOGIT */
    uint32_t n_segments;
    /* [n_slots] by segment: row in logits or NO_LOGIT; first row in states, number of rows there */
    uint32_t *logits_at, *states_at, *n_states;
    float *logits; /* [n_slots][vocab], pageable */
    char *states;  /* [max_enc_tokens][hidden] in the device's dtype, pageable */
    uint32_t n_logits_kept, n_states_kept;
};
#define NO_LOGIT UINT32_MAX
#define NOT_TOGETHER UINT32_MAX

/* The work of one step: staging sets it, queueing reads it. Pointers are device addresses. */
struct todo {
    struct graphs_slot *decode, *encode, *project; /* graph of each piece; NULL: plain */
    uint32_t n_single_token; /* number of one-token segments in the graph of the decoder */
    const struct table_edit *set;
    /* copies of table rows, then of blocks: those before the step, then those after the step */
    const struct block_copy *move;
    struct block_copy *move_host; /* the copies of `move`, on the host */
    const struct segment *marked; /* segments whose tokens enter the history */
    /* [n_sample_rows] index of each logit row among the decoder tokens; NULL: row i is token i */
    const uint32_t *which;
    /* step.few: `which`, if the last layer computes only logit rows; else NULL */
    const uint32_t *few;
    const struct sample_row *row;
    const int32_t *suppressed;           /* host, [n_suppressed] */
    const struct logit_bias *logit_bias; /* host, [n_logit_bias] */
    /* tokens of all encoder slices; first_token is relative to the first slice that runs with it */
    struct step_tokens enc;
    struct step_tokens projected; /* tokens to project; only pos and slot are set */
    /* rows of source_out to copy to enc_out (0, 1, ...); rows of enc_out to copy to sources */
    const uint32_t *enc_place, *project_row;
    uint32_t n_row_moves, n_marked, n_logits, n_top, n_suppressed, n_logit_bias, n_project;
    bool beams; /* true: a logit row is of a beam search */
    /* first of the rows of enc_out to project if they are consecutive, else NOT_TOGETHER */
    uint32_t project_first;
    uint32_t n_sample_rows; /* n_logits, or the number of rows of the graph */
    struct outcome *o;      /* outcome that keeps logits (never in a graph); NULL: none */
};

struct exec_lane {
    struct lane *lane;
    uint32_t units;             /* units that lane.open() got */
    struct exec_part part;      /* current range of units; n 0: all units */
    uint64_t started, finished; /* number of steps started, finished */
    struct {
        struct exec_part part;
        uint64_t step;
    } out[STAGES]; /* the steps in flight, for queue_behind() */
    nsec since;    /* start of the oldest step in flight */
    nsec step_ns;  /* moving average of the time of a step */
    struct graphs graphs;
    struct step step;        /* argument of the model functions; kv and scratch are set once */
    struct tensor x, normed; /* [max_tokens, hidden] */
    struct tensor logit_x;   /* [n_slots, hidden] */
    struct tensor scratch[MAX_SCRATCH]; /* [max(max_tokens, max_enc_tokens), model_scratch()] */
    struct tensor picked;               /* [x.piece, hidden] gathered logit rows */
    struct tensor sources; /* [max_enc_tokens, hidden] gathered encoder states to project */
    struct tensor source_x, source_out; /* [GRAPHS_SOURCE_ROWS, hidden] rows of the encoder graph */
    struct tensor logits;               /* [x.piece, vocab] */
    int32_t *drawn;                     /* [2 * max_tokens] as in struct outcome */
    struct top *top;
    int32_t *suppressed;
    struct logit_bias *logit_bias;
    struct stage stage[STAGES];
    struct outcome outcome[OUTCOMES];
};

struct exec {
    struct gpu *gpu;
    const struct gpu_ops *op;
    const struct model *m;
    struct exec_config c;
    uint32_t n_slots, scratch_rows;
    uint32_t piece;    /* logit rows computed at a time, which limits the memory of logits */
    uint32_t top_most; /* most best tokens that a logit row returns */
    struct arena arena;
    char *host, *far; /* host memory: pinned; pageable */
    uint64_t host_bytes, far_bytes;

    struct tables tables; /* block tables; their rows are rounded up to 16 bytes */
    char *kv, *host_kv; /* KV blocks on the device, in the host tier; host_kv NULL: no host tier */
    /* [max_copies] launch order of the copies of the step being queued: copy_order.h */
    uint64_t *place;
    struct copy_order_bytes bytes;
    /* By KV group: bytes of a head in a slice, of a token in a head; 0: layers differ in these. */
    struct {
        size_t head, token;
    } per[MAX_GROUPS];
    int32_t *last; /* [n_slots] */
    /* tokens of the slots for which wants_history() is true; stride: max_len of the model */
    struct token_history history;
    /* [max_enc_tokens, hidden] encoder states: enc_state between layers, enc_out after the last */
    struct tensor enc_state, enc_out;
    struct sampling *slot; /* [n_slots], host */
    /* Host, from exec_mark_tokens(). n_initial[slot]: tokens of `initial` that the next step of the
     * slot uploads to the device's history */
    struct token_history initial;
    uint32_t *n_initial;
    struct exec_lane lane[MAX_LANES];
    struct exec_part part[MAX_PARTITIONS][MAX_LANES];
    struct exec_rate rate[MAX_PARTITIONS][MAX_LANES];
    struct exec_partition_times divided;
};

/* scratch.c: allocates all memory of x, whose sizes must be set. scratch_size() sets only x's
 * host_bytes and far_bytes and returns the size of its device arena. */
uint64_t scratch_size(struct exec *x, const struct kv_config *kv);
int scratch_open(struct exec *x, const struct kv_config *kv, struct err *e) MUST_USE;
void scratch_close(struct exec *x);

/* stage.c */
/* Host addresses of the arrays of a struct step_tokens. */
struct staged_tokens {
    int32_t *token, *pos;
    uint32_t *slot;
};
/* Allocates the arrays of r for n tokens and makes tokens n_used .. n padding. */
struct staged_tokens stage_tokens(struct image *im, struct step_tokens *r, uint32_t n_used,
                                  uint32_t n);
int stage_refuse(const struct exec *x, const struct batch *b, struct err *e) MUST_USE;
/* Stages tokens, positions, slots and segments of the decoder. Must be the first function that
 * stages into st->step, because graphs read these arrays at fixed addresses. */
void stage_decoder(struct exec *x, struct exec_lane *l, struct stage *st, const struct batch *b,
                   const struct todo *t);
/* Returns true if sampling reads the earlier tokens: penalties, no_repeat_ngram. */
bool wants_history(const struct sampling *s);
/* Stages the segments whose tokens enter the history. Graphs do not read them. */
void stage_marked(const struct exec *x, struct image *im, const struct batch *b, struct todo *t);

/* kv_moves.c */
void stage_moves(struct exec *x, struct image *im, const struct batch *b, struct todo *t);
int queue_edits(struct exec *x, struct exec_lane *l, const struct batch *b,
                const struct todo *t) MUST_USE;
/* Queues the block copies that are made after the work of the step or, if !after, before it. */
int queue_copies(struct exec *x, struct exec_lane *l, const struct batch *b, const struct todo *t,
                 bool after) MUST_USE;

/* encoder_launch.c */
void stage_sources(struct exec *x, struct exec_lane *l, struct stage *st, const struct batch *b,
                   struct todo *t);
int queue_encoders(struct exec *x, struct exec_lane *l, const struct batch *b,
                   const struct todo *t) MUST_USE;
int queue_projections(struct exec *x, struct exec_lane *l, const struct todo *t) MUST_USE;

/* capture.c */
typedef int piece_fn(struct exec *x, struct exec_lane *l, const struct todo *t);
/* Queues a piece as the graph of `slot`, which is first captured if that is due; NULL: plain. */
int queue_piece(struct exec *x, struct exec_lane *l, const struct todo *t, struct graphs_slot *slot,
                piece_fn *piece) MUST_USE;
/* Drops the graphs of a partition, or of all with GRAPHS_ALL. None of them may be running. */
void drop_graphs(struct exec *x, struct exec_lane *l, uint32_t partition);

/* launch.c */
int queue_step(struct exec *x, struct exec_lane *l, const struct stage *st, const struct batch *b,
               const struct todo *t, struct outcome *o) MUST_USE;

/* warmup.c */
int warm_up(struct exec *x, struct exec_lane *l) MUST_USE;
/* Waits for all queued work; only before the first step. */
int wait_until_idle(struct exec *x, struct exec_lane *l) MUST_USE;

/* exec_partition.c. exec_partition_take() moves a lane to a range of units; exec_partition_open()
 * makes and measures the partitions of exec_config. On failure gpu_why() has the message. */
int exec_partition_take(struct exec *x, struct exec_lane *l, const struct exec_part *want) MUST_USE;
int exec_partition_open(struct exec *x) MUST_USE;

/* tune.c. Finds scratch for the input and output of a matmul; false: no scratch is wide enough. */
bool matmul_scratch(const struct exec_lane *l, const struct matmul *m, uint32_t rows,
                    struct tensor *from, struct tensor *to);

/* sampling.c */
/* A padding row of logits: its token is forced, so the logits are not read. */
extern const struct sample_row sampling_padding;
void sampling_stage(struct exec *x, struct stage *st, const struct batch *b, struct outcome *o,
                    struct todo *t);
int sampling_queue(struct exec *x, struct exec_lane *l, const struct todo *t) MUST_USE;
int sampling_get(struct exec *x, struct exec_lane *l, const struct todo *t,
                 struct outcome *o) MUST_USE;
void sampling_finish(struct outcome *o);

/* tensor_output.c. True if a request wants logits; the step then samples outside graphs. */
bool tensor_output_wanted(const struct exec *x, const struct batch *b);
/* Call after sampling_stage(). */
void tensor_output_stage(const struct exec *x, const struct batch *b, struct outcome *o,
                         struct todo *t);
/* Copies those logit rows from first .. first + n that requests want; logits: the n rows. */
int tensor_output_get_logits(const struct exec *x, struct exec_lane *l, const struct outcome *o,
                             uint32_t first, uint32_t n, struct tensor logits) MUST_USE;
int tensor_output_get_states(const struct exec *x, struct exec_lane *l, const struct batch *b,
                             const struct outcome *o) MUST_USE;

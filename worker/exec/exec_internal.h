/* exec_internal.h - shared by the files of worker/exec only.
 *
 *     scratch.c         memory layout: one device arena, one host mapping
 *     stage.c           batch -> the arrays that ops read; refused batches
 *     encoder_launch.c  encoder slices and cross projections
 *     kv_moves.c        table edits, copies of table rows and of blocks
 *     copy_order.c      grouping of copies into launches
 *     sampling.c        logit rows, sampling parameters, results
 *     tensor_output.c   encoder states and logits for requests that want them
 *     graphs.c          which steps run as captured graphs
 *     capture.c         a piece of a step, plain or as a graph
 *     launch.c          the queue of one step
 *     exec_partition.c  the device units of each lane
 *     warmup.c          a pass over padding before the first step
 *     tune.c            measures the model's matmuls while no step is in flight
 *     exec.c            opening; start and end of a step
 *
 * A lane has 1 staging image on the device, because graphs keep addresses and the copy into the
 * image follows the previous step in the lane's queue. A lane has 2 images on the host, because 2
 * steps may be in flight and a copy's source must stay valid. A lane has 3 outcomes, because a
 * result stays valid during one more start. All lanes share tables, last tokens, seen bits and
 * encoder states.
 */
#pragma once

#include "worker/exec/copy_order.h"
#include "worker/exec/exec.h"
#include "worker/exec/graphs.h"

enum { STAGES = 2, OUTCOMES = 3, MAX_TOP = 1024 };
/* Pinned entries for top log-probabilities, and for suppressed tokens and logit biases. A step with
 * more uses pageable memory and blocks the caller; pinning more would add about 1 s to every
 * start. */
enum { NEAR_TOPS = 128 << 10, NEAR_CHANGES = 16 << 10 };
/* Per logit row. */
enum {
    MAX_SUPPRESSED = ARRAY_LEN(((struct sampling *)0)->eos) + EXEC_LOOK_BACK,
    MAX_LOGIT_BIAS = EXEC_MAX_BIAS + EXEC_LOOK_BACK
};

/* Arrays written on the host and copied to the device in one piece. Arrays that a graph reads come
 * first and have the size of its bucket, so their addresses are those at capture time. */
struct image {
    char *host, *dev;
    size_t bytes, used;
};
/* Allocates bytes: returns the host address, sets *dev to the device address. */
void *image_take(struct image *im, size_t bytes, void **dev);
/* The same for an array of a type; the value is the host address. */
#define TAKE_ARRAY(im, type, n, dev_p) \
    ({ \
        void *take_dev; \
        type *take_host = image_take(im, (n) * sizeof(type), &take_dev); \
        *(dev_p) = take_dev; \
        take_host; \
    })

/* The arrays of one step. */
struct stage {
    struct image step, encode, project;
    /* [n_slots * MAX_SUPPRESSED], [n_slots * MAX_LOGIT_BIAS] pageable; near: [NEAR_CHANGES]
     * pinned */
    int32_t *suppressed, *near_suppressed;
    struct logit_bias *logit_bias, *near_logit_bias;
};

/* The result of one step. r's arrays are in the host mapping. */
struct outcome {
    struct batch_result r;
    int32_t *drawn;               /* [2 * max_tokens] token of each logit row, then r.logprob */
    struct batch_top *near, *far; /* [MIN(rows * top_most, NEAR_TOPS)] pinned; [all] pageable */
    uint32_t *segment_logit;      /* [n_slots] logit row that a segment sampled from, or NO_LOGIT */
    uint32_t n_segments;
    /* [n_slots] by segment: index among the kept logits and encoder states, or NO_LOGIT */
    uint32_t *logits_at, *states_at, *n_states;
    float *logits; /* [n_slots][vocab], pageable */
    char *states;  /* [max_enc_tokens][hidden] in the device's dtype, pageable */
    uint32_t n_logits_kept, n_states_kept;
};
#define NO_LOGIT UINT32_MAX
#define NOT_TOGETHER UINT32_MAX

/* The work of one step, as device addresses: set while staging, read while queueing. */
struct todo {
    struct graphs_slot *decode, *encode, *project; /* graphs of the pieces; NULL: plain */
    uint32_t n_single_token;                       /* one-token segments in decode's graph */
    const struct table_edit *set;
    const struct block_copy *move; /* table rows, blocks before the step, blocks after it */
    struct block_copy *move_host;  /* the same list on the host */
    const struct segment *marked;  /* segments whose tokens are marked as seen */
    const uint32_t *which; /* [n_sample_rows] decoder token of each logit row; NULL: identity */
    const uint32_t *few;   /* [n_sample_rows] the same, for step.few */
    const struct sample_row *row;
    const int32_t *suppressed;           /* host, [n_suppressed] */
    const struct logit_bias *logit_bias; /* host, [n_logit_bias] */
    struct step_tokens enc;              /* all slices; first_token counts from the slice's first */
    struct step_tokens projected;        /* pos and slot only */
    const uint32_t *enc_place, *project_row; /* encode's graph: 0, 1, ...; rows of enc_out */
    uint32_t n_row_moves, n_marked, n_logits, n_top, n_suppressed, n_logit_bias, n_project;
    bool beams;             /* some logit row is a beam's */
    uint32_t project_first; /* first row of enc_out if all are consecutive, or NOT_TOGETHER */
    uint32_t n_sample_rows; /* n_logits, or the graph's number */
    struct outcome *o;      /* keeps logits (never in a graph); NULL: none */
};

struct exec_lane {
    struct lane *lane;
    uint32_t units;             /* at open */
    struct exec_part part;      /* current range of units; n 0: all */
    uint64_t started, finished; /* number of steps */
    struct {
        struct exec_part part;
        uint64_t step;
    } out[STAGES]; /* steps in flight, for queue_behind() */
    nsec since;    /* start of the oldest step in flight */
    nsec step_ns;  /* moving average of a step's time */
    struct graphs graphs;
    struct step step;                   /* views; kv and scratch are set once */
    struct tensor x, normed;            /* [max_tokens, hidden] */
    struct tensor logit_x;              /* [n_slots, hidden] */
    struct tensor scratch[MAX_SCRATCH]; /* [max(max_tokens, max_enc_tokens), model_scratch()] */
    struct tensor picked;               /* [piece, hidden] gathered logit rows */
    struct tensor sources;              /* [max_enc_tokens, hidden] gathered states to project */
    struct tensor source_x, source_out; /* [GRAPHS_SOURCE_ROWS, hidden] of encode's graph */
    struct tensor logits;               /* [piece, vocab] */
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
    uint32_t piece;    /* logit rows computed at a time; limits the memory of logits */
    uint32_t top_most; /* largest number of log-probabilities of a row */
    struct arena arena;
    char *host, *far; /* pinned; pageable */
    uint64_t host_bytes, far_bytes;

    struct tables tables; /* rows are rounded up to 16 bytes */
    char *kv, *host_kv;   /* block arenas; host_kv NULL: no host tier */
    uint64_t *place;      /* [max_copies] of the step being queued: copy_order.h */
    struct copy_order_bytes bytes;
    /* By group: bytes of a head's part of a block, and of a token in it; 0: layers differ. */
    struct {
        size_t head, token;
    } per[MAX_GROUPS];
    int32_t *last;  /* [n_slots] */
    uint32_t *seen; /* [n_slots][seen_words] */
    uint32_t seen_words;
    struct tensor enc_state, enc_out; /* [max_enc_tokens, hidden]: between layers, after the last */
    struct sampling *slot;            /* [n_slots], host */
    bool *upload_seen;      /* [n_slots], host: upload initial_seen with the slot's next step */
    uint32_t *initial_seen; /* [n_slots][seen_words], host: from exec_mark_tokens() */
    struct exec_lane lane[MAX_LANES];
    struct exec_part part[MAX_PARTITIONS][MAX_LANES];
    struct exec_rate rate[MAX_PARTITIONS][MAX_LANES];
    struct exec_partition_times divided;
};

/* scratch.c: allocates everything; x's sizes must be set. */
int scratch_open(struct exec *x, const struct kv_config *kv, struct err *e) MUST_USE;
void scratch_close(struct exec *x);

/* stage.c */
/* Host addresses of the arrays of a struct step_tokens. */
struct staged_tokens {
    int32_t *token, *pos;
    uint32_t *slot;
};
/* Allocates r's arrays for n tokens and sets those from n_used on to padding. */
struct staged_tokens stage_tokens(struct image *im, struct step_tokens *r, uint32_t n_used,
                                  uint32_t n);
int stage_refuse(const struct exec *x, const struct batch *b, struct err *e) MUST_USE;
/* The decoder's tokens, positions, slots and segments. Must be first, because graphs read them. */
void stage_decoder(struct exec *x, struct exec_lane *l, struct stage *st, const struct batch *b,
                   const struct todo *t);
/* True if there is a repetition penalty; 0 and 1 mean none. */
bool wants_history(const struct sampling *s);
/* The segments whose tokens are marked as seen. Graphs do not read them. */
void stage_marked(const struct exec *x, struct image *im, const struct batch *b, struct todo *t);

/* kv_moves.c */
void stage_moves(struct exec *x, struct image *im, const struct batch *b, struct todo *t);
int queue_edits(struct exec *x, struct exec_lane *l, const struct batch *b,
                const struct todo *t) MUST_USE;
/* after: the copies after the step's work, instead of the earlier ones. */
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
/* Queues the piece as the slot's graph, capturing it if due; slot NULL: plain. */
int queue_piece(struct exec *x, struct exec_lane *l, const struct todo *t, struct graphs_slot *slot,
                piece_fn *piece) MUST_USE;
/* Drops the graphs of a partition, or GRAPHS_ALL. None may be running. */
void drop_graphs(struct exec *x, struct exec_lane *l, uint32_t partition);

/* launch.c */
int queue_step(struct exec *x, struct exec_lane *l, const struct stage *st, const struct batch *b,
               const struct todo *t, struct outcome *o) MUST_USE;

/* warmup.c */
int warm_up(struct exec *x, struct exec_lane *l) MUST_USE;
/* Waits for all queued work, before the first step. */
int wait_until_idle(struct exec *x, struct exec_lane *l) MUST_USE;

/* exec_partition.c. Moves the lane to a range of units; makes the partitions of exec_config. On
 * failure gpu_why() has the message. */
int exec_partition_take(struct exec *x, struct exec_lane *l, const struct exec_part *want) MUST_USE;
int exec_partition_open(struct exec *x) MUST_USE;

/* tune.c. Finds scratch for input and output of that matmul; false: no scratch is wide enough. */
bool matmul_scratch(const struct exec_lane *l, const struct matmul *m, uint32_t rows,
                    struct tensor *from, struct tensor *to);

/* sampling.c */
/* Padding: the token is forced, so the logits are not read. */
extern const struct sample_row sampling_padding;
void sampling_stage(struct exec *x, struct stage *st, const struct batch *b, struct outcome *o,
                    struct todo *t);
int sampling_queue(struct exec *x, struct exec_lane *l, const struct todo *t) MUST_USE;
int sampling_get(struct exec *x, struct exec_lane *l, const struct todo *t,
                 struct outcome *o) MUST_USE;
void sampling_finish(struct outcome *o);

/* tensor_output.c. True if a request wants logits; the step then samples outside of graphs. */
bool tensor_output_wanted(const struct exec *x, const struct batch *b);
/* After sampling_stage(). */
void tensor_output_stage(const struct exec *x, const struct batch *b, struct outcome *o,
                         struct todo *t);
/* Copies wanted ones of logit rows first .. first + n, which are in logits. */
int tensor_output_get_logits(const struct exec *x, struct exec_lane *l, const struct outcome *o,
                             uint32_t first, uint32_t n, struct tensor logits) MUST_USE;
int tensor_output_get_states(const struct exec *x, struct exec_lane *l, const struct batch *b,
                             const struct outcome *o) MUST_USE;

/* exec_internal.h - what the files of worker/exec share; nobody else includes it.
 *
 *     scratch.c   where everything lies: one device arena, one host mapping, laid out once
 *     stage.c     batch -> the arrays that ops read, and what is refused
 *     encoder_launch.c   encoder slices and cross projections
 *     kv_moves.c     table edits, copies of table rows and of blocks
 *     copy_order.c     in which launches those go
 *     sampling.c      rows of logits: which, how they are sampled, what comes back
 *     tensor_output.c   what else comes back, for who asks: encoder states, logits
 *     graphs.c    which steps run as captured graphs
 *     capture.c   a piece of a step, plain or as a graph
 *     launch.c     the queue of one step
 *     exec_partition.c     the parts of the device that lanes run on
 *     warmup.c    a pass over padding, before the first step
 *     tune.c      the model's matmuls measured, while no step is out
 *     exec.c      before the first step; a step's start and end
 *
 * A lane has one staging image on the device, because graphs keep addresses and because the copy into it
 * comes after the step before in the lane's queue; two on the host, because a copy's source must stay
 * until it is done and two steps may be out; and three outcomes, because a result must also outlast one
 * more start after it was handed out. Tables, last tokens, seen bits and encoder states belong to all
 * lanes.
 */
#ifndef EXEC_INTERNAL_H
#define EXEC_INTERNAL_H

#include "worker/exec/copy_order.h"
#include "worker/exec/exec.h"
#include "worker/exec/graphs.h"
#include "worker/model/matmul_shapes.h"

enum { STAGES = 2, OUTCOMES = 3, MAX_TOP = 1024 };
/* What a step of generation wants at most with good manners. More come into memory that is not pinned, and
 * hold up the caller: so pinning does not take a second of every start. */
enum { NEAR_TOPS = 128 << 10, NEAR_CHANGES = 16 << 10 /* bans; nudges */ };
/* Of a row. */
enum {
    MAX_SUPPRESSED = ARRAY_LEN(((struct sampling *)0)->eos) + EXEC_LOOK_BACK,
    MAX_LOGIT_BIAS = EXEC_MAX_BIAS + EXEC_LOOK_BACK
};

/* Arrays written on the host, copied in one piece, read on the device. What a graph reads comes first and has
 * a bucket's size: so it lies where it lay when the graph was captured. */
struct image {
    char *host, *dev;
    size_t bytes, used;
};
/* bytes of it: the host's address, and *dev the device's. */
void *image_take(struct image *im, size_t bytes, void **dev);
/* Address pair for an array of a type: the host's is the value, the device's goes to dev. */
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
    /* [n_slots * MAX_SUPPRESSED], [n_slots * MAX_LOGIT_BIAS], apart and not pinned; [NEAR_CHANGES] pinned, where few go from */
    int32_t *ban, *near_suppressed;
    struct logit_bias *logit_bias, *near_logit_bias;
};

/* One step's way back. r's arrays lie in the host mapping. */
struct outcome {
    struct batch_result r;
    int32_t *drawn; /* [2 * max_tokens] token by row of logits, then r.logprob */
    struct batch_top *near,
        *far;                /* [MIN(rows * top_most, NEAR_TOPS)] pinned; all of them, not pinned */
    uint32_t *segment_logit; /* [n_slots] row of logits that a run sampled from, or NO_LOGIT */
    uint32_t n_segments, n_logits;
    /* [n_slots] by run: where its logits and its source's states are among those kept, or NO_LOGIT */
    uint32_t *logits_at, *states_at, *n_states;
    float *logits; /* [n_slots][vocab], not pinned */
    char *states;  /* [max_enc_tokens][hidden] as the device has them, not pinned */
    uint32_t n_logits_kept, n_states_kept;
};
#define NO_LOGIT UINT32_MAX
#define NOT_TOGETHER UINT32_MAX

/* What one step queues, as device addresses: filled while it is staged, read while it is queued. */
struct todo {
    struct graphs_slot *decode, *encode, *project; /* what its pieces may run as; NULL: plain */
    uint32_t n_single_token; /* runs of one row, as many as decode's graph has */
    const struct table_edit *set;
    const struct block_copy *move; /* rows of tables, blocks before the step, blocks after it */
    struct block_copy *move_host;  /* the same list */
    const struct segment *see;
    const uint32_t
        *which; /* [n_sample_rows] decoder row of each row of logits; NULL: row by row the same */
    const uint32_t *few; /* [n_sample_rows] the same, where normed has no others: struct step */
    const struct sample_row *row;
    const int32_t *ban; /* [n_suppressed], [n_logit_bias], the host's */
    const struct logit_bias *logit_bias;
    struct step_tokens
        enc; /* of all slices; a run's first_token counts from those queued together */
    struct step_tokens projected;            /* pos and slot */
    const uint32_t *enc_place, *project_row; /* of encode's graph: 0, 1, ...; rows of enc_out */
    uint32_t n_row_moves, n_see, n_logits, n_top, n_suppressed, n_logit_bias, n_project;
    bool beams;             /* some row of logits is a beam's */
    uint32_t project_first; /* row of enc_out where all of them lie side by side, or NOT_TOGETHER */
    uint32_t n_sample_rows; /* n_logits, or as many as the graph has */
    struct outcome *o;      /* whose logits are kept, in no graph; NULL: nobody's */
};

struct exec_lane {
    struct lane *lane;
    uint32_t units;             /* it was opened with */
    struct exec_part part;      /* of them it is on; n 0: all */
    uint64_t started, finished; /* steps, counted */
    struct {
        struct exec_part part;
        uint64_t step;
    } out[STAGES]; /* from finished on: queue_behind() */
    nsec since,
        step_ns; /* when the oldest step that is out began, and how long they take of late */
    struct graphs graphs;
    struct step step;                   /* views; kv and scratch are set once */
    struct tensor x, normed;            /* [max_tokens, hidden] */
    struct tensor logit_x;              /* [n_slots, hidden] */
    struct tensor scratch[MAX_SCRATCH]; /* [max(max_tokens, max_enc_tokens), model_scratch()] */
    struct tensor picked;               /* [piece, hidden] rows whose logits are wanted */
    struct tensor sources; /* [max_enc_tokens, hidden] to project, where they do not lie together */
    struct tensor source_x, source_out; /* [GRAPHS_SOURCE_ROWS, hidden] of encode's graph */
    struct tensor logits;               /* [piece, vocab] */
    int32_t *drawn;                     /* [2 * max_tokens] as in struct outcome */
    struct top *top;
    int32_t *ban;
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
    /* Rows of logits at a time: prompt log-probabilities of a chunk must not need chunk * vocab floats. */
    uint32_t piece;
    uint32_t top_most; /* log-probabilities a row may ask for */
    struct arena arena;
    char *host, *far; /* pinned, and not */
    uint64_t host_bytes, far_bytes;

    struct tables tables; /* rows are rounded up to 16 bytes */
    char *kv, *host_kv;   /* the arenas of blocks; host_kv NULL: no host tier */
    uint64_t *place;      /* [max_copies] of a step being staged and queued: copy_order.h */
    struct copy_order_bytes bytes;
    /* By group: of each head's part of a block, and of a token there; 0: not alike in all of its layers. */
    struct {
        size_t head, token;
    } per[MAX_GROUPS];
    int32_t *last;  /* [n_slots] */
    uint32_t *seen; /* [n_slots][seen_words] */
    uint32_t seen_words;
    struct tensor enc_state, enc_out; /* [max_enc_tokens, hidden]: between layers, after the last */
    struct sampling *slot;            /* [n_slots], host */
    bool *recall;                     /* [n_slots], host: recalled goes out with its next step */
    uint32_t *recalled; /* [n_slots][seen_words], host: what exec_mark_tokens() was given */
    struct exec_lane lane[MAX_LANES];
    struct exec_part part[MAX_PARTITIONS][MAX_LANES];
    struct exec_rate rate[MAX_PARTITIONS][MAX_LANES];
    struct exec_partition_times divided;
};

/* scratch.c: sizes, then memory, then addresses. x's numbers are set. */
int scratch_open(struct exec *x, const struct kv_config *kv, struct err *e) MUST_USE;
void scratch_close(struct exec *x);

/* stage.c */
int stage_refuse(const struct exec *x, const struct batch *b, struct err *e) MUST_USE;
/* Rows, positions, slots and runs of the decoder: first, because graphs read them. */
void stage_decoder(struct exec *x, struct exec_lane *l, struct stage *st, const struct batch *b,
                   const struct todo *t);
/* 0 and 1 are no penalty. */
bool wants_history(const struct sampling *s);
/* What graphs do not read. */
void stage_rest(struct exec *x, struct stage *st, const struct batch *b, struct todo *t);

/* kv_moves.c */
void stage_moves(struct exec *x, struct image *im, const struct batch *b, struct todo *t);
int queue_edits(struct exec *x, struct exec_lane *l, const struct batch *b,
                const struct todo *t) MUST_USE;
/* Those before the step's work, or those after it. */
int queue_copies(struct exec *x, struct exec_lane *l, const struct batch *b, const struct todo *t,
                 bool after) MUST_USE;

/* Rows from .. n of no slot; token may be NULL. */
void pad_rows(int32_t *token, int32_t *pos, uint32_t *slot, uint32_t from, uint32_t n);

/* encoder_launch.c */
void stage_sources(struct exec *x, struct exec_lane *l, struct stage *st, const struct batch *b,
                   struct todo *t);
int queue_encoders(struct exec *x, struct exec_lane *l, const struct batch *b,
                   const struct todo *t) MUST_USE;
int queue_projections(struct exec *x, struct exec_lane *l, const struct todo *t) MUST_USE;

/* capture.c */
typedef int piece_fn(struct exec *x, struct exec_lane *l, const struct todo *t);
/* As the slot's graph, which may be captured now; slot NULL: plain. */
int queue_piece(struct exec *x, struct exec_lane *l, const struct todo *t, struct graphs_slot *slot,
                piece_fn *piece) MUST_USE;
/* All of that partition, or GRAPHS_ALL, to be captured anew; none may be running. */
void drop_graphs(struct exec *x, struct exec_lane *l, uint32_t partition);

/* launch.c */
int queue_step(struct exec *x, struct exec_lane *l, const struct stage *st, const struct batch *b,
               const struct todo *t, struct outcome *o) MUST_USE;

/* warmup.c */
int warm_up(struct exec *x, struct exec_lane *l) MUST_USE;
/* Before the first step: until all that was queued is done. */
int settle(struct exec *x, struct exec_lane *l) MUST_USE;

/* exec_partition.c. The lane's part from now on; and those of exec_config, gpu_why() says what failed. */
int exec_partition_take(struct exec *x, struct exec_lane *l, const struct exec_part *want) MUST_USE;
int exec_partition_open(struct exec *x) MUST_USE;

/* tune.c. Scratch for x and y of so many rows of that matmul; false: there is none of so many columns. */
bool matmul_room(const struct exec_lane *l, const struct matmul *m, uint32_t rows,
                 struct tensor *from, struct tensor *to);

/* sampling.c */
/* A row that draws for nobody: its token is forced, so that its logits are not looked at. */
extern const struct sample_row sampling_padding;
void sampling_stage(struct exec *x, struct stage *st, const struct batch *b, struct outcome *o,
                    struct todo *t);
int sampling_queue(struct exec *x, struct exec_lane *l, const struct todo *t) MUST_USE;
int sampling_get(struct exec *x, struct exec_lane *l, const struct todo *t,
                 struct outcome *o) MUST_USE;
void sampling_finish(struct outcome *o);

/* tensor_output.c. Whether a step's logits are wanted, which then is no graph that draws. */
bool tensor_output_wanted(const struct exec *x, const struct batch *b);
/* After sampling_stage(). */
void tensor_output_stage(const struct exec *x, const struct batch *b, struct outcome *o,
                         struct todo *t);
/* Of rows of logits first .. first + n, which lie in logits. */
int tensor_output_get_logits(const struct exec *x, struct exec_lane *l, const struct outcome *o,
                             uint32_t first, uint32_t n, struct tensor logits) MUST_USE;
int tensor_output_get_states(const struct exec *x, struct exec_lane *l, const struct batch *b,
                             const struct outcome *o) MUST_USE;

#endif

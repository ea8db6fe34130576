/* inside.h - what the files of worker/exec share; nobody else includes it.
 *
 *     scratch.c   where everything lies: one device arena, one host mapping, laid out once
 *     stage.c     batch -> the arrays that ops read, and what is refused
 *     draw.c      rows of logits: which, how they are sampled, what comes back
 *     exec.c      the queue of one step, and its end
 *
 * A lane alternates between two staging images (a step's arrays must stay until it is done, and two
 * steps may be out) and three outcomes (a result must also outlast one more start after it was
 * handed out). Tables, last tokens, seen bits and encoder states belong to all lanes.
 */
#ifndef EXEC_INSIDE_H
#define EXEC_INSIDE_H

#include "worker/exec/exec.h"

enum { STAGES = 2, OUTCOMES = 3, MAX_TOP = 1024 /* DECISIONS 17 */ };

/* The arrays of one step: written on the host, copied in one piece, read on the device. */
struct stage {
    char *host, *dev;
    size_t bytes, used;
};
/* bytes of it: the host's address, and *dev the device's. */
void *stage_take(struct stage *st, size_t bytes, void **dev);
/* Address pair for an array of a type: the host's is the value, the device's goes to dev. */
#define TAKE_ARRAY(st, type, n, dev_p) \
    ({ \
        void *take_dev; \
        type *take_host = stage_take(st, (n) * sizeof(type), &take_dev); \
        *(dev_p) = take_dev; \
        take_host; \
    })

/* One step's way back. r's arrays lie in the host mapping. */
struct outcome {
    struct batch_result r;
    int32_t *drawn;      /* [max_rows] token by row of logits */
    uint32_t *run_logit; /* [n_seats] row of logits that a run sampled from, or NO_LOGIT */
    uint32_t n_runs, n_logits;
};
#define NO_LOGIT UINT32_MAX

/* What one step queues, as device addresses: stage.c and draw.c fill it, exec.c queues it. */
struct todo {
    const struct table_edit *edit;
    const struct run *see;
    const uint32_t *which; /* [n_logits] decoder row of each row of logits */
    const struct sample_row *row;
    const int32_t *ban;
    const int32_t *enc_pos; /* arrays of all encoder rows of the batch */
    const uint32_t *enc_seat;
    int32_t *enc_token;
    const struct run
        *enc_run; /* [n_encode] first_row: from the first of the slices queued together */
    const int32_t *project_pos;
    const uint32_t *project_seat;
    uint32_t n_edits, n_see, n_logits, n_top;
};

struct exec_lane {
    struct lane *lane;
    uint64_t started, finished; /* steps, counted */
    struct step step;           /* views; kv and scratch are set once */
    struct tensor x, normed;    /* [max_rows, hidden] */
    struct tensor scratch[8];   /* [max(max_rows, max_enc_rows), model_scratch()] */
    struct tensor picked;       /* [piece, hidden] rows whose logits are wanted */
    struct tensor logits;       /* [piece, vocab] */
    int32_t *token;             /* [max_rows] on the device, by row of logits */
    float *logprob;
    struct top *top;
    struct stage stage[STAGES];
    struct outcome outcome[OUTCOMES];
};

struct exec {
    struct gpu *gpu;
    const struct gpu_ops *op;
    const struct model *m;
    struct exec_config c;
    uint32_t n_seats, scratch_rows;
    /* Rows of logits at a time: prompt log-probabilities of a chunk must not need chunk * vocab floats. */
    uint32_t piece;
    uint32_t top_most; /* log-probabilities a row may ask for */
    struct arena arena;
    char *host;
    uint64_t host_bytes;

    struct tables tables;
    int32_t *last;  /* [n_seats] */
    uint32_t *seen; /* [n_seats][seen_words] */
    uint32_t seen_words;
    struct tensor enc_state, enc_out; /* [max_enc_rows, hidden]: between layers, after the last */
    struct sampling *seat;            /* [n_seats], host */
    struct exec_lane lane[MAX_LANES];
};

/* scratch.c: sizes, then memory, then addresses. x's numbers are set. */
int scratch_open(struct exec *x, const struct kv_config *kv, struct err *e) MUST_USE;
void scratch_close(struct exec *x);

/* stage.c */
int stage_refuse(const struct exec *x, const struct batch *b, struct err *e) MUST_USE;
void stage_batch(struct exec *x, struct exec_lane *l, struct stage *st, const struct batch *b,
                 struct todo *t);

/* Encoder slice i goes through its layers together with the one before it: they are side by side in
 * the batch and in enc_state. */
bool stage_follows(const struct batch *b, uint32_t i);

/* draw.c */
void draw_stage(struct exec *x, struct stage *st, const struct batch *b, struct outcome *o,
                struct todo *t);
int draw_queue(struct exec *x, struct exec_lane *l, const struct todo *t,
               struct outcome *o) MUST_USE;
void draw_finish(struct outcome *o);

#endif

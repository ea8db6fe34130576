/* worker.h - one worker process: what its files share.
 *
 * One struct, made in main.c, filled by the loader (load.c), turned by the engine thread (loop.c).
 * The engine thread is the sole writer of W and the sole reader of D. Fields say which other thread
 * may touch them and when; everything else is the engine's.
 */
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include "base/base.h"
#include "base/err.h"
#include "gpu/gpu.h"
#include "ipc/hand.h"
#include "ipc/heritage.h"
#include "ipc/keys.h"
#include "ipc/link.h"
#include "ipc/stat.h"
#include "worker/exec/exec.h"
#include "worker/ops/cache_flush.h"
#include "worker/kv/manifest.h"
#include "worker/model/model.h"
#include "worker/io/outbox.h"
#include "worker/step_wait.h"
#include "worker/io/request.h"
#include "worker/sched/scheduler.h"
#include "worker/ops/partition_ctl.h"
#include "worker/text/tokenizer.h"
#include "worker/ops/tuning.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { STEPS_OUT = 2 }; /* of a lane at once: one runs, one is queued behind it */

struct worker_lane {
    struct batch *batch[STEPS_OUT]; /* by step % STEPS_OUT */
    uint64_t started, finished;     /* steps */
    nsec since;                     /* when the oldest step that is out was launched */
    struct step_wait wait;
};

/* What the loader leaves behind: complete before start_done is set, the engine's afterwards. */
/* What a start spends its time on, one after another; the tokenizer is opened beside them. */
enum load_slice { LOAD_DEVICE, LOAD_WEIGHTS, LOAD_STEPS, LOAD_KV, LOAD_SLICES };

struct engine {
    struct gpu *gpu;
    struct model_source source; /* weights_fd: the predecessor's, not mapped; -1: none, or open */
    struct model *begun;        /* until it is loaded: model_begin() */
    struct model *model;
    struct tokenizer *tokenizer; /* NULL: none; why_no_text says why */
    struct chat chat;            /* where there is one */
    char why_no_text[200];
    struct kv_config kv_config;
    void *kv_memory;
    struct kv *kv;
    struct arena kv_arena;
    struct host_memory host; /* base NULL: no host tier */
    uint64_t kv_id[2];       /* of what is in them: adopt.h */
    /* The predecessor's, not mapped; fd -1: none. */
    struct arena old_kv, old_host[HOST_PIECES], old_manifest;
    uint64_t old_kv_id[2], old_host_id[2];
    struct arena manifest_arena;
    struct manifest manifest;
    struct manifest_found
        *found; /* [n_seats] what was adopted and not claimed yet; NULL: nothing */
    struct exec_config steps;
    struct exec *exec;
    struct scheduler *sched;
    struct scheduler_limits limits;
    struct partition_ctl partition_ctl; /* shared with the control thread, under its own lock */
    uint32_t max_source;
    nsec load_ns, slice_ns[LOAD_SLICES];
};

static inline bool
on_gpu(const struct engine *n)
{
    return strcmp(gpu_ops(n->gpu)->name, "cpu") != 0;
}

/* Rank 0's ends of the plan rings: worker/tp/plan_ring.h. */
struct plan_ring {
    uint32_t n; /* other ranks; 0: there is no group */
    struct link link[MAX_RANKS - 1];
    void *packed; /* [packed_bytes] a batch */
    size_t packed_bytes;
    struct exec_part part[MAX_RUNGS][MAX_LANES]; /* as the others know them */
};

/* What is mapped of the host tier: worker/handover/host_tier.h. */
struct host_tier {
    bool later,
        begun;  /* later: nothing yet. begun: by the loader's thread, whose engine.host is then */
    bool stays; /* no more of it can be mapped */
    uint32_t want;    /* pieces that it is to map */
    _Atomic int done; /* release by that thread */
    struct err err;
};

struct text_thread;
struct control;

struct worker {
    struct model_keys keys;
    char name[32];
    struct heritage heritage;
    struct link link;
    int hand;
    uint32_t rank; /* of tensor_parallel; but for rank 0 there is no scheduler and no D: rank_loop.c */
    struct plan_ring plan;

    /* Loader: reads keys and hand until start_done; the engine reads load_* meanwhile. */
    pthread_t loader;
    struct engine e;
    struct err start_err;
    _Atomic int start_done; /* release by the loader, acquire by the engine: 1 ready, -1 failed */
    struct host_tier host_tier;
    pthread_t text_opener;
    bool opens_text; /* that thread is not joined yet */
    bool waits;  /* a standby, and its time has not come. The loader's while it runs, and begins. */
    bool begins; /* it may take of the device what it needs beside its worker */
    _Atomic uint64_t load_done, load_total; /* relaxed */
    uint64_t load_said; /* of load_done, in units of 16 MiB: what lagand was told last */

    struct worker_lane lane[MAX_LANES];
    struct requests requests;
    struct outbox outbox;
    struct text_thread *text;
    char *fragments; /* a SUBMIT of several records, as far as it has come */
    size_t n_fragments, most_fragments;
    char *text_buf; /* [text_cap] of one token: what was held, and the longest piece */
    size_t text_cap;
    struct control *control;
    struct tuning tuning; /* shared with the control thread, under its own lock */
    struct cache_flush cache_flush;   /* the same */

    struct stats stats;
    double ns_per_row; /* fitted to finished steps: predicts the next one's deadline */
    bool seen;         /* we looked on while a step ended */
    bool idled;        /* with nothing out; after_idle: the step that was launched then */
    uint64_t after_idle, gaps, gaps_ns; /* gaps: of the device, as last read */
    nsec ready_at;
    struct manifest_owner *owner; /* [max_seqs] of the step being launched */
    bool *named;                  /* [n_seats] the row of the manifest says whose it is */
    bool loaded;                  /* e is the engine's */
    bool draining;
    _Atomic bool drain_asked; /* set by the control thread */
};

/* Bytes of text that one token may bring, as far as a record takes them. */
static inline size_t
worker_token_text(const struct worker *w)
{
    return w->e.tokenizer
               ? MIN(3 * (size_t)tokenizer_longest(w->e.tokenizer), (size_t)w->link.out.max_rec)
               : 0;
}

/* load.c: why `laganctl tune` has nothing to do here, or NULL. */
const char *load_no_tuning(const struct worker *w);

/* load.c: a thread loads, turn() is called all the while; a standby waits in between, until it may take of the device what it
 * needs and then until its worker is gone. The loader's errors, turn()'s; -EPIPE: who would say so is gone. */
int load_run(struct worker *w, int (*turn)(struct worker *w, struct err *e),
              struct err *e) MUST_USE;
/* load.c: what a worker with these settings would be: its model (model_look()), tokenizer, KV's shape and limits,
 * without weights, memory for KV or steps. *weights: what its weights would take on the device, *beside: what it needs
 * there beside them and KV, but for the scratch of steps. */
int load_inspect(struct worker *w, uint64_t *weights, uint64_t *beside, struct err *e) MUST_USE;
/* inspect.c: says so as a line of JSON on standard output. */
int inspect_run(struct worker *w, struct err *e) MUST_USE;
/* load.c: take what lagand has sent by now of a predecessor's arenas. */
int load_take(struct worker *w, struct err *e) MUST_USE;
/* load.c: hand an arena up; one without an fd is none. */
int arena_channel_give(struct worker *w, const char *name, const struct arena *a,
               const uint64_t fingerprint[2], struct err *e) MUST_USE;
/* Join what load_run() made; for sanitizers and for drains. */
void load_free(struct engine *e);

/* intake.c: room for the longest request; the model is there. -ENOMEM. */
int intake_open(struct worker *w, struct err *e) MUST_USE;
void intake_close(struct worker *w);
/* intake.c: take what the request ring holds, within a budget. Records taken, or -EBADMSG: the ring
 * is corrupt. */
int intake_drain(struct worker *w, nsec now, struct err *e);
/* intake.c: a request whose text has been worked on, back from the text thread. */
void intake_text_done(struct worker *w, struct worker_request *r, nsec now);

/* emit.c */
void emit_ready(struct worker *w);
void emit_phase(struct worker *w);
void emit_reject(struct worker *w, uint32_t row, uint32_t gen, uint16_t reason, const char *why);
void emit_step(struct worker *w, const struct batch *b, const struct batch_result *r,
               struct seq *const *seq, const uint32_t *n_before);
void emit_ended(struct worker *w, struct worker_request *r); /* its FINISH, once */

/* loop.c: turns until drained (0) or the daemon is gone or the device failed (negative). */
int loop_run(struct worker *w, struct err *e);

#endif

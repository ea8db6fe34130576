/* load.h - the loader: from settings and inherited arenas to a model that can take requests.
 *
 * The loader thread loads while the engine thread updates the heartbeat and reports progress.
 *
 * A standby loads in three rounds: model files and driver; after "begin" the device, weights and
 * steps; after "go", when its worker has exited, KV memory and scheduler. Any other worker loads in
 * one round.
 */
#pragma once

#include "base/err.h"
#include "worker/model/model.h"
#include "worker/worker.h"

#include <pthread.h>
#include <stdatomic.h>

/* Phases of a load, in order; the tokenizer is opened at the same time by its own thread. */
enum load_phase { LOAD_DEVICE, LOAD_WEIGHTS, LOAD_STEPS, LOAD_KV, LOAD_PHASES };

/* Used by the loader thread during a round, otherwise by the engine thread. */
struct loader {
    pthread_t thread;
    bool runs; /* thread is not joined yet */
    /* weights_fd: of the previous worker, not mapped; -1: none, or already mapped. */
    struct model_source source;
    struct model *begun; /* opened by model_begin(), weights not loaded yet */
    pthread_t text_opener;
    bool opens_text; /* text_opener is not joined yet */
    bool standby;    /* waits for "go" */
    /* "begin" was received: this standby may use device memory while its worker still runs. */
    bool may_use_device;
    struct err err;
    /* release by the loader thread: 1 finished, -1 failed */
    _Atomic int done;
    _Atomic uint64_t bytes_done, bytes_total; /* of weights; relaxed */
    uint64_t reported;                        /* bytes_done >> 24, as last reported to lagand */
    nsec load_ns, phase_ns[LOAD_PHASES];      /* of the last round */
};

/* Engine thread: call until it returns 1, the load is complete. Returns 0 while the loader thread
 * runs; update the heartbeat and sleep. Negative: lagand (or rank 0) has exited (-EPIPE), no thread
 * can be started (-EAGAIN), the fd channel failed, or the loader's error. Blocks while a standby
 * waits for "begin" or "go", and updates the heartbeat meanwhile. */
int load_poll(struct worker *w, struct err *e) MUST_USE;
/* Frees the model's objects, arenas and device. No other thread may use them. */
void load_free(struct worker *w);

/* For inspect.c: opens device, model and tokenizer and sets the sizes, without weights, KV memory
 * or steps. *weights: bytes of device memory for weights; *beside: bytes kept free besides weights,
 * KV memory and the scratch of steps. */
int load_inspect(struct worker *w, uint64_t *weights, uint64_t *beside, struct err *e) MUST_USE;

/* inspect.c: lagan-worker --inspect. Prints one line of JSON on standard output, before anything
 * large is read or allocated. -ENOMEM: the model does not fit the device; -EIO: the device failed;
 * other errors as for a load. */
int inspect_run(struct worker *w, struct err *e) MUST_USE;

/* kv_memory.c: the KV arena, the KV manager over it, and their handover. Loader thread only. */

/* Rank 0: sizes the KV arena (kv.memory, or the free memory of the device), adopts the previous
 * worker's arena if its size fits, makes the KV manager, opens the manifest and sends the arenas to
 * lagand. Call after host_tier_open(), exec_open() and sizes_set(). -ENOMEM: too little memory,
 * with the figures. */
int kv_memory_open(struct worker *w, struct err *e) MUST_USE;
/* A rank above 0: makes a KV arena of rank 0's size and id; blocks until rank 0 has sent them. */
int kv_memory_open_rank(struct worker *w, struct err *e) MUST_USE;

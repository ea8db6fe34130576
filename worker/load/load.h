/* load.h - the loader: from settings and inherited arenas, makes a model that can take requests.
 *
 * A loader thread loads in one or more rounds while the engine thread updates the heartbeat and
 * reports progress. A standby loads in three: first model files and driver; when lagand sends
 * "begin", the device, weights and steps (executor, graphs, scratch); when lagand sends "go",
 * because the worker has exited that the standby replaces, KV memory and scheduler. Any other
 * worker loads in one round.
 */
#pragma once
#include "base/err.h"
#include "worker/model/model.h"
#include "worker/worker.h"

#include <pthread.h>
#include <stdatomic.h>

/* Phases of a load, in order. Another thread opens the tokenizer meanwhile. */
enum load_phase { LOAD_DEVICE, LOAD_WEIGHTS, LOAD_STEPS, LOAD_KV, LOAD_PHASES };

/* State of a load. Used by the loader thread during a round, otherwise by the engine thread. */
struct loader {
    pthread_t thread;
    bool runs; /* thread is not joined yet */
    /* source.weights_fd: the previous worker's weights, not mapped; -1: none, or already mapped */
    struct model_source source;
    struct model *begun; /* opened by model_begin(), weights not loaded yet */
    pthread_t text_opener;
    bool opens_text;     /* text_opener is not joined yet */
    bool standby;        /* this process is a standby that has not received "go" */
    bool may_use_device; /* a standby has received "begin": it may use device memory */
    struct err err;
    _Atomic int done; /* the round has finished (1) or failed (-1); stored with release */
    _Atomic uint64_t bytes_done, bytes_total; /* loaded weights, all weights; relaxed */
    uint64_t reported;                        /* bytes_done >> 24, as last reported to lagand */
    nsec load_ns, phase_ns[LOAD_PHASES];      /* duration of the last round and its phases */
};

/* Starts and polls the loader thread, for the engine thread. Returns 1 if the load is complete, 0
 * while the loader thread runs: then update the heartbeat, sleep, and call again. Negative: lagand
 * (or rank 0) has exited (-EPIPE), no thread can be started (-EAGAIN), the fd channel or the load
 * failed. Blocks while a standby waits for "begin" or "go"; updates the heartbeat meanwhile. */
int load_poll(struct worker *w, struct err *e) MUST_USE;
/* Frees the model's objects, arenas and device. No other thread may use them. */
void load_free(struct worker *w);

/* Opens device, model and tokenizer for inspect.c and sets the sizes; opens no weights, KV memory
 * or steps. *weights: bytes of the weights arena; *beside: bytes of a GPU that are kept free
 * besides weights, KV memory and the scratch of steps. */
int load_inspect(struct worker *w, uint64_t *weights, uint64_t *beside, struct err *e) MUST_USE;

/* inspect.c: runs lagan-worker --inspect: prints one line of JSON on standard output, without
 * reading weights or allocating device memory for them. held: bytes of used device memory that
 * count as free. -ENOMEM, -EINVAL: the model does not fit the device; -EIO: the device failed;
 * other errors as for a load. */
int inspect_run(struct worker *w, uint64_t held, struct err *e) MUST_USE;

/* kv_memory.c: makes or adopts the KV arena, makes the KV manager for it, and sends the arenas to
 * lagand for a replacement. Loader thread only. */

/* Opens the KV memory and the manifest on rank 0. The size of the KV arena is kv.memory, or follows
 * from the device's free memory; the previous worker's arena is adopted if its size fits. Call
 * after host_tier_open(), exec_open() and sizes_set(). -ENOMEM: there is too little memory. */
int kv_memory_open(struct worker *w, struct err *e) MUST_USE;
/* Checks that a kv.memory which is not auto has space for 2 blocks of each KV group, for inspect.c.
 * Call after sizes_set(). -EINVAL: it has not; e names the smallest value. */
int kv_memory_check(const struct worker *w, struct err *e) MUST_USE;
/* Opens a higher rank's KV memory with rank 0's arena size and KV id; blocks until they arrive. */
int kv_memory_open_rank(struct worker *w, struct err *e) MUST_USE;

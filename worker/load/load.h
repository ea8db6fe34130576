/* load.h - the loader: from settings and inherited arenas to a model that can take requests.
 *
 * The loader thread loads while the engine thread updates the heartbeat and reports progress. The
 * engine loop polls:
 *
 *     do {
 *         load_start();
 *         while (load_poll() == 0) { heartbeat, report load_progress(), sleep }
 *     } while (load_standby() > 0);
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

/* Used by the loader thread from load_start() to load_poll() != 0, otherwise by the engine. */
struct loader {
    pthread_t thread;
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
    nsec load_ns, phase_ns[LOAD_PHASES];      /* of the last round */
};

/* Starts a round on the loader thread. -EAGAIN: no thread can be started. */
int load_start(struct worker *w, struct err *e) MUST_USE;
/* Returns 0 while the round continues, 1 when it is finished and joined, negative with the loader's
 * error if it failed. */
int load_poll(struct worker *w, struct err *e) MUST_USE;
/* After a round. Returns 0 if the load is complete, 1 if this standby has waited and must load
 * more; negative: lagand (or rank 0) has exited (-EPIPE), or the fd channel failed. Blocks, and
 * updates the heartbeat meanwhile. */
int load_standby(struct worker *w, struct err *e) MUST_USE;
/* Frees the model's objects, arenas and device. No other thread may use them. */
void load_free(struct worker *w);

/* For inspect.c: opens device, model and tokenizer and sets the sizes, without weights, KV memory
 * or steps. *weights: bytes of device memory for weights; *beside: bytes kept free besides weights,
 * KV memory and the scratch of steps. */
int load_inspect(struct worker *w, uint64_t *weights, uint64_t *beside, struct err *e) MUST_USE;

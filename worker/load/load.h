/* load.h - the loader: from settings and inherited arenas to a model that can take requests.
 *
 * The loader thread loads while the engine thread beats and reports progress. The engine loop
 * polls:
 *
 *     do {
 *         load_start();
 *         while (load_poll() == 0) { beat, report load_progress(), sleep }
 *     } while (load_standby() > 0);
 *
 * A standby loads in three rounds: the model's files and the driver; after "begin" the device,
 * weights and steps; after "go", when its worker is gone, KV memory and scheduler. Any other worker
 * does all of it in one round.
 */
#ifndef WORKER_LOAD_LOAD_H
#define WORKER_LOAD_LOAD_H

#include "base/err.h"
#include "worker/model/model.h"
#include "worker/worker.h"

#include <pthread.h>
#include <stdatomic.h>

/* Phases of a load, one after another; the tokenizer is opened beside them. */
enum load_phase { LOAD_DEVICE, LOAD_WEIGHTS, LOAD_STEPS, LOAD_KV, LOAD_PHASES };

/* The loader thread's between load_start() and load_poll() != 0, else the engine thread's. */
struct loader {
    pthread_t thread;
    /* weights_fd: the previous worker's, not mapped; -1: none, or open. */
    struct model_source source;
    struct model *begun; /* model_begin() has opened it, its weights are not loaded */
    pthread_t text_opener;
    bool opens_text; /* text_opener is not joined yet */
    bool standby;    /* waits for "go" */
    /* "begin" was received: this standby may take device memory beside its worker. */
    bool may_use_device;
    struct err err;
    _Atomic int done;                         /* release by the thread: 1 finished, -1 failed */
    _Atomic uint64_t bytes_done, bytes_total; /* of weights; relaxed */
    nsec load_ns, phase_ns[LOAD_PHASES];      /* of the last round */
};

/* Starts a round on the loader thread. -EAGAIN: no thread can be started. */
int load_start(struct worker *w, struct err *e) MUST_USE;
/* 0: the round continues. 1: it is finished and joined. Negative: it failed, with the loader's
 * sentence. */
int load_poll(struct worker *w, struct err *e) MUST_USE;
/* After a round: 0: the load is complete. 1: this is a standby that has waited and now has to
 * load more. Negative: lagand (or rank 0) is gone (-EPIPE), or the fd channel failed. Blocks;
 * beats meanwhile. */
int load_standby(struct worker *w, struct err *e) MUST_USE;
/* Frees the model's objects, arenas and device. No other thread may use them. */
void load_free(struct worker *w);

/* For inspect.c: opens device, model and tokenizer and sets the sizes, without weights, KV
 * memory or steps. *weights: bytes of device memory of the weights; *beside: bytes that are kept
 * free beside weights and KV memory, without the scratch of steps. */
int load_inspect(struct worker *w, uint64_t *weights, uint64_t *beside, struct err *e) MUST_USE;

#endif

/* arena_channel.h - sends arenas to lagand, which passes them to the replacement of this worker. */
#ifndef WORKER_PROCESS_ARENA_CHANNEL_H
#define WORKER_PROCESS_ARENA_CHANNEL_H

#include "base/err.h"
#include "gpu/gpu.h"
#include "worker/worker.h"

/* Sends the descriptor of an arena over the fd channel; the arena stays the caller's. An arena
 * with fd -1 is skipped. name: shorter than FD_CHANNEL_NAME, such as "kv". fingerprint: identifies the
 * content. Negative errno: lagand is gone or the socket failed. Loader and engine thread. */
int arena_channel_give(struct worker *w, const char *name, const struct arena *a,
                       const uint64_t fingerprint[2], struct err *e) MUST_USE;

#endif

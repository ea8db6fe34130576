/* arena_channel.h - sends arenas to lagand, which passes them to the replacement worker. */
#pragma once

#include "base/err.h"
#include "gpu/gpu.h"
#include "worker/worker.h"

/* Sends the descriptor of an arena over the fd channel; the caller keeps the arena. Skips an arena
 * whose fd is -1. name: shorter than FD_CHANNEL_NAME, such as "kv". fingerprint: identifies the
 * content. Negative errno: lagand has exited or the socket failed. Loader and engine thread. */
int arena_channel_give(struct worker *w, const char *name, const struct arena *a,
                       const uint64_t fingerprint[2], struct err *e) MUST_USE;

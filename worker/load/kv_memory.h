/* kv_memory.h - the KV arena, the KV manager over it, and their handover. Loader thread only. */
#ifndef WORKER_LOAD_KV_MEMORY_H
#define WORKER_LOAD_KV_MEMORY_H

#include "base/err.h"
#include "worker/worker.h"

/* Rank 0: sizes the KV arena (kv.memory, or what the device has free), adopts the previous
 * worker's where its size fits, makes the KV manager, opens the manifest, and sends the arenas
 * to lagand. The host tier is open; steps and sizes are known. -ENOMEM: too little memory, with
 * the figures. */
int kv_memory_open(struct worker *w, struct err *e) MUST_USE;
/* A rank above 0: a KV arena as large as rank 0's, with the same number; blocks until rank 0 has
 * reported it. */
int kv_memory_open_rank(struct worker *w, struct err *e) MUST_USE;

#endif

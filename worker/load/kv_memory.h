/* kv_memory.h - the KV arena, the KV manager over it, and their handover. Loader thread only. */
#pragma once

#include "base/err.h"
#include "worker/worker.h"

/* Rank 0: sizes the KV arena (kv.memory, or the free memory of the device), adopts the previous
 * worker's arena if its size fits, makes the KV manager, opens the manifest and sends the arenas to
 * lagand. Call after host_tier_open(), exec_open() and sizes_set(). -ENOMEM: too little memory,
 * with the figures. */
int kv_memory_open(struct worker *w, struct err *e) MUST_USE;
/* A rank above 0: makes a KV arena of rank 0's size and id; blocks until rank 0 has sent them. */
int kv_memory_open_rank(struct worker *w, struct err *e) MUST_USE;

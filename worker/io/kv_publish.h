/* kv_publish.h - sends the KV events of the worker (worker/kv/kv_event.h) to lagand in the response
 * ring: at first a snapshot of the prefix cache, then its changes.
 *
 * Events never delay tokens: they are sent while at least half of the ring is free. If lagand reads
 * so slowly that the event log overwrites events, these are counted and a new snapshot is sent, in
 * parts, with the changes in between. Engine thread only; allocates nothing after the open. */
#pragma once
#include "worker/worker.h"

struct kv_publish {
    bool on, in_snapshot, begun; /* begun: the first part of the snapshot has been sent */
    uint32_t at;                 /* position of the snapshot: kv_event_snapshot() */
    uint64_t next, lost;         /* number of the next event; overwritten since the last snapshot */
};

void kv_publish_open(struct worker *w); /* before the first step */
/* Adds records to the outbox. Returns 1 if there is more to send and space for it, else 0. */
int kv_publish_run(struct worker *w);

/* adopt.h - what the previous worker left: its arenas, its manifest, and which requests continue
 * from them.
 *
 * This is the read side, used once after a start; adopt_log.h is the write side, used in every
 * step. The manifest (worker/manifest/manifest.h) is in an arena of its own beside the KV arena. Both
 * carry the KV arena's number, drawn when its content began, so that a manifest is never read with
 * another arena's blocks. lagand passes a manifest on only if no stray write can have damaged it;
 * KV memory without a manifest is memory without content.
 */
#ifndef WORKER_HANDOVER_ADOPT_H
#define WORKER_HANDOVER_ADOPT_H

#include "base/base.h"
#include "base/err.h"
#include "gpu/gpu.h"
#include "worker/io/request.h"
#include "worker/manifest/manifest.h"
#include "worker/worker.h"

/* The loader's until READY, then the engine thread's. */
struct adopt {
    struct arena kv_arena;
    uint64_t kv_id[2];                 /* number of the content of kv_arena */
    struct arena old_kv, old_manifest; /* the previous worker's, not mapped; fd -1: none */
    uint64_t old_kv_id[2];
    struct arena manifest_arena; /* base NULL: not open */
    struct manifest manifest;
    struct manifest_found *found; /* [n_slots] adopted and not claimed yet; NULL: none */
    /* adopt_log.c's */
    struct manifest_owner *owner; /* [max_seqs] of the step being launched */
    bool *named;                  /* [n_slots] the manifest names the owner of the entry */
};

/* Draws a number for KV memory without content. -EIO. */
int adopt_new_id(uint64_t id[2], struct err *e) MUST_USE;
/* Loader, before kv_init(): the hash secret of the prefix tree; the previous worker's if it left
 * a manifest. */
int adopt_secret(const struct worker *w, uint64_t ret[4], struct err *e) MUST_USE;
/* Loader, between kv_init() and scheduler_new(): adopts what is proven by the manifest, or makes
 * an empty manifest. host_kept: the host tier still has the content that the manifest names. */
int adopt_open(struct worker *w, enum dtype kv_dtype, bool host_kept, struct err *e) MUST_USE;
/* Loader, before adopt_open(): forgets the previous worker's manifest, if any. */
void adopt_drop_manifest(struct worker *w);
void adopt_close(struct worker *w);

/* READY is queued: resumed requests will arrive. */
void adopt_start_claims(struct worker *w, nsec now);
/* A request whose tokens are in place, before scheduler_add(): sets what its sequence adopts. */
void adopt_claim(struct worker *w, struct worker_request *r);
void adopt_claimed(struct worker *w, struct worker_request *r); /* the scheduler has taken it */
/* Restores a beam search from the manifest, before scheduler_add(). Returns true if the KV of
 * every beam was adopted and the search continues at the step where the previous worker stopped.
 * told: [r->n_sent] reported tokens of the best output. */
bool adopt_claim_search(struct worker *w, struct worker_request *r, const token_id *delivered);
/* The request has ended and does not continue: its adopted blocks are freed. */
void adopt_release(struct worker *w, struct worker_request *r);
/* Every output of a request that continues has been claimed; r: its first slot. Other entries of
 * it are freed. */
void adopt_release_rest(struct worker *w, struct worker_request *r);
/* Once per loop iteration: frees what no request has claimed 10 s after READY. */
void adopt_expire(struct worker *w, nsec now);

#endif

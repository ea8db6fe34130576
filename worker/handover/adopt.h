/* adopt.h - adopts the previous worker's arenas and manifest, and the KV of requests that resume.
 *
 * This file reads the manifest (worker/manifest/manifest.h), once after a start; adopt_log.h writes
 * it in every step. The manifest has an arena of its own. It and the KV arena have the same KV id,
 * a random number drawn when the KV arena was empty, so that a manifest is never combined with the
 * blocks of another arena. lagand passes a manifest on only if no stray write can have damaged it.
 * A KV arena without a manifest is reused as empty memory.
 *
 * To claim a manifest entry means to continue a resumed request with the KV blocks of the entry,
 * which were adopted at the start.
 */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "gpu/gpu.h"
#include "worker/io/request.h"
#include "worker/manifest/manifest.h"
#include "worker/worker.h"

/* State of adoption. Used by the loader thread until READY, then by the engine thread. */
struct adopt {
    struct arena kv_arena;
    uint64_t kv_id[2];                 /* KV id of kv_arena */
    struct arena old_kv, old_manifest; /* the previous worker's, not mapped; fd -1: there is none */
    uint64_t old_kv_id[2];             /* KV id of old_kv */
    struct arena manifest_arena;       /* our manifest; base NULL: it is not open */
    struct manifest manifest;
    struct manifest_found *found; /* [n_slots] adopted entries not yet claimed; NULL: none */
    /* Used by adopt_log.c only. The owner of an entry: the request and output whose KV it lists. */
    struct manifest_owner *owner; /* [max_seqs] owners that the step being launched publishes */
    bool *named;                  /* [n_slots] true: the slot's entry needs no owner any more */
};

/* Sends the descriptor of an arena to lagand, which passes it to the replacement worker; the caller
 * keeps the arena. Skips an arena whose fd is -1. name: shorter than FD_CHANNEL_NAME, such as "kv".
 * fingerprint: identifies the content. Fails if lagand has exited. Loader and engine thread. */
int adopt_give_arena(struct worker *w, const char *name, const struct arena *a,
                     const uint64_t fingerprint[2], struct err *e) MUST_USE;
/* Draws a random KV id for an empty KV arena. -EIO: getrandom() failed. */
int adopt_new_id(uint64_t id[2], struct err *e) MUST_USE;
/* Returns the hash secret of the prefix tree in *ret: the previous worker's if it left a manifest,
 * else lagand's cache key (equal in all workers of the model), else a random one. Loader thread,
 * before kv_init(). */
int adopt_secret(const struct worker *w, uint64_t ret[4], struct err *e) MUST_USE;
/* Adopts the blocks that the previous worker's manifest proves valid, or makes an empty manifest.
 * host_kept: the host tier's old contents are valid. Loader thread, before scheduler_new(). */
int adopt_open(struct worker *w, enum dtype kv_dtype, bool host_kept, struct err *e) MUST_USE;
/* Closes the previous worker's manifest, if any, unused. Loader thread, before adopt_open(). */
void adopt_drop_manifest(struct worker *w);
void adopt_close(struct worker *w);

/* Starts the 10 s in which resumed requests may claim adopted blocks. Call when READY is queued. */
void adopt_start_claims(struct worker *w, nsec now);
/* Claims the entry of one output of a resumed request. adopt_claim() sets which positions the
 * sequence adopts; call it with the generated tokens in the sequence, before scheduler_add().
 * adopt_claimed() counts and commits the adopted positions; call it after scheduler_add(). */
void adopt_claim(struct worker *w, struct worker_request *r);
void adopt_claimed(struct worker *w, struct worker_request *r);
/* Restores a beam search from the manifest; call before scheduler_add(). Returns true if the KV of
 * every beam was adopted and the search continues at the step where the previous worker stopped.
 * delivered: [r->n_sent] the tokens of the best output that lagand has received. */
bool adopt_claim_search(struct worker *w, struct worker_request *r, const token_id *delivered);
/* Frees the blocks adopted for one output of a request that has ended. */
void adopt_release(struct worker *w, struct worker_request *r);
/* Frees the entries of a resumed request that none of its outputs has claimed. r: its first output.
 * Call after all outputs have been claimed. */
void adopt_release_rest(struct worker *w, struct worker_request *r);
/* Frees the adopted blocks not claimed 10 s after READY. Call once per loop iteration. */
void adopt_expire(struct worker *w, nsec now);

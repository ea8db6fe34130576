/* adopt.h - adopts what the previous worker left: its arenas, its manifest, and the KV of requests
 * that resume.
 *
 * This is the read side, used once after a start; adopt_log.h is the write side, used in every
 * step. The manifest (worker/manifest/manifest.h) has its own arena next to the KV arena. Both
 * carry the KV arena's id, a random number drawn when its content began, so that a manifest is
 * never combined with the blocks of another arena. lagand passes a manifest on only if no stray
 * write can have damaged it. KV memory without a manifest is reused as memory without content.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "gpu/gpu.h"
#include "worker/io/request.h"
#include "worker/manifest/manifest.h"
#include "worker/worker.h"

/* Used by the loader thread until READY, then by the engine thread. */
struct adopt {
    struct arena kv_arena;
    uint64_t kv_id[2];                 /* id of the content of kv_arena */
    struct arena old_kv, old_manifest; /* of the previous worker, not mapped; fd -1: none */
    uint64_t old_kv_id[2];
    struct arena manifest_arena; /* base NULL: not open */
    struct manifest manifest;
    struct manifest_found *found; /* [n_slots] adopted, not yet claimed by a request; NULL: none */
    /* Used by adopt_log.c only. */
    /* [max_seqs] owners of manifest entries, for the step being launched */
    struct manifest_owner *owner;
    bool *named; /* [n_slots] the manifest has the owner of this slot's entry */
};

/* Sends the descriptor of an arena to lagand, which passes it to the replacement worker; the caller
 * keeps the arena. Skips an arena whose fd is -1. name: shorter than FD_CHANNEL_NAME, such as "kv".
 * fingerprint: identifies the content. Negative errno: lagand has exited or the socket failed.
 * Loader and engine thread. */
int adopt_give_arena(struct worker *w, const char *name, const struct arena *a,
                     const uint64_t fingerprint[2], struct err *e) MUST_USE;
/* Draws a random id for KV memory without content. -EIO. */
int adopt_new_id(uint64_t id[2], struct err *e) MUST_USE;
/* Loader, before kv_init(): the hash secret of the prefix tree, taken from the previous worker's
 * manifest if there is one. */
int adopt_secret(const struct worker *w, uint64_t ret[4], struct err *e) MUST_USE;
/* Loader, between kv_init() and scheduler_new(): adopts the blocks that the manifest proves valid,
 * or makes an empty manifest. host_kept: the content of the host tier is still there. */
int adopt_open(struct worker *w, enum dtype kv_dtype, bool host_kept, struct err *e) MUST_USE;
/* Loader, before adopt_open(): closes the previous worker's manifest, if any, without using it. */
void adopt_drop_manifest(struct worker *w);
void adopt_close(struct worker *w);

/* Call when READY is queued: starts the 10 s in which resumed requests may claim adopted blocks. */
void adopt_start_claims(struct worker *w, nsec now);
/* Before scheduler_add(), with the request's tokens in place: sets what its sequence adopts. */
void adopt_claim(struct worker *w, struct worker_request *r);
void adopt_claimed(struct worker *w, struct worker_request *r); /* after scheduler_add() */
/* Restores a beam search from the manifest, before scheduler_add(). Returns true if the KV of every
 * beam was adopted and the search continues at the step where the previous worker stopped.
 * delivered: [r->n_sent] tokens of the best output that lagand has received. */
bool adopt_claim_search(struct worker *w, struct worker_request *r, const token_id *delivered);
/* Frees the blocks adopted for one output of a request that has ended. */
void adopt_release(struct worker *w, struct worker_request *r);
/* Call after every output of a resumed request has been claimed: frees its other adopted entries.
 * r: the request's first slot. */
void adopt_release_rest(struct worker *w, struct worker_request *r);
/* Once per loop iteration: frees blocks that no request has claimed 10 s after READY. */
void adopt_expire(struct worker *w, nsec now);

/* manifest.h - what a worker that is killed at any instant leaves of its KV, for the next one.
 *
 * An arena of its own, written by the engine thread alone and read only once its writer is dead. The ledger
 * in lagand is the truth; this is a cache of work done, believed as far as it proves itself. Little-endian:
 *
 *     offset          bytes
 *     0               512                  struct manifest_head: constant
 *     512 + i * row   192                  struct manifest_entry of slot i
 *       + 192         4 * max_entries      the slot's table row of group 0: slices; valid: first .. end
 *       + ...         4 * max_entries      of group 1 ...
 *     node_at + i * node  48               struct manifest_node: node i of the tree of what may be found (kv_tree_export.h)
 *       + 48          8 * groups           its block and its cell of group 0, 1 ...: slice + 1; 0: none
 *       + ...         4 * tokens_per_block its tokens
 *     turn_at + i * turns  20 * n_turns    struct manifest_decision of slot i: of a search's beam, step by step
 *
 * Every store leaves a manifest that may be adopted as it is; a row that takes several stores is odd meanwhile. The
 * order in which the functions below are called, and the proof that the order suffices, are in
 * worker/handover/adopt_log.h.
 */
#ifndef MANIFEST_H
#define MANIFEST_H

#include "worker/kv/kv_tree_export.h"

#include <stdatomic.h>

#define MANIFEST_MAGIC UINT64_C(0x3174736566696e6d) /* "mnifest1" */
enum { MANIFEST_VERSION = 4 };

struct manifest_group {
    uint32_t kind, window, n_layers, n_parts, slice_bytes, max_entries, table_at;
    uint32_t sinks; /* positions */
};
struct manifest_head {
    uint64_t magic;               /* 0 */
    uint32_t version, head_bytes; /* 8 */
    uint64_t bytes;               /* 16  of the whole arena */
    uint64_t print[2];            /* 24  model, precision, device: what K and V depend on */
    uint64_t kv_id[2];            /* 40  the KV arena that rows name blocks of */
    uint64_t arena_bytes;         /* 56  of that */
    uint32_t n_slots, n_groups;   /* 64 */
    uint32_t tokens_per_block;    /* 72 */
    uint32_t slab_bytes;          /* 76 */
    uint32_t row_at, row_bytes;   /* 80 */
    struct manifest_group group[MAX_GROUPS]; /* 88  table_at: from the row's start */
    uint64_t hash_secret[4];                 /* 344  that labels' keys were made with */
    uint64_t host_bytes, node_at;            /* 376 */
    uint32_t n_nodes, node_bytes;            /* 392  n_nodes: node 0, which is none, included */
    uint64_t turn_at;                        /* 400 */
    uint32_t n_turns, turn_bytes;            /* 408  of a slot */
    uint8_t zero[96];
};
struct manifest_entry {
    _Atomic uint32_t seq;       /* 0   odd: being edited */
    _Atomic uint32_t committed; /* 4   positions written, in every group; the source's if > 0 */
    _Atomic uint64_t id;        /* 8   of the request; 0: nobody's */
    _Atomic uint32_t n_cross;   /* 16  tokens of its source */
    _Atomic uint32_t n_tokens;  /* 20  decoder tokens that tokens_hash is of */
    _Atomic uint64_t tokens_hash[2]; /* 24 */
    _Atomic uint64_t source_hash[2]; /* 40  of what the encoder read */
    _Atomic uint32_t
        first[MAX_GROUPS];            /* 56  entries held: first .. end; those below were dropped */
    _Atomic uint32_t end[MAX_GROUPS]; /* 88 */
    _Atomic uint32_t snapshot[KV_SNAPSHOTS]; /* 120 positions that each is of; 0: none */
    _Atomic uint32_t member;  /* 132 which of its request's sequences: its output, or its beam */
    _Atomic uint32_t n_beams; /* 136 of its search; 0: it is none's */
    _Atomic uint32_t n_turns; /* 140 of the first beam: steps that its search has decided */
    uint8_t zero[48];         /* 144 */
};
struct manifest_decision {                     /* of one step, and of rank r of it (sched/beam.h) */
    _Atomic uint32_t token, score;             /* 0   of who goes on; score: a float's bits */
    _Atomic uint32_t ended_token, ended_score; /* 8   of who has ended; token all ones: nobody */
    _Atomic uint32_t slot; /* 16  that they go on from: the first's, and << 8 the other's */
};
struct manifest_node {
    _Atomic uint32_t seq; /* 0   odd: being edited */
    _Atomic uint32_t
        parent; /* 4   its node; of a root 0. Of node 0: the highest node that was ever told */
    _Atomic uint32_t n_tokens; /* 8 */
    _Atomic uint32_t live;     /* 12  0: no node */
    _Atomic uint64_t key[2];   /* 16 */
    _Atomic uint64_t priority; /* 32  of each group's block, a byte each */
    uint8_t zero[8];           /* 40 */
};
_Static_assert(sizeof(struct manifest_node) == 48, "manifest_node");
_Static_assert(sizeof(struct manifest_decision) == 20, "manifest_decision");
_Static_assert(offsetof(struct manifest_entry, member) == 132, "member");
_Static_assert(offsetof(struct manifest_head, turn_at) == 400, "turn_at");
_Static_assert(sizeof(struct manifest_group) == 32, "manifest_group");
_Static_assert(sizeof(struct manifest_head) == 512, "manifest_head");
_Static_assert(offsetof(struct manifest_head, print) == 24, "print");
_Static_assert(offsetof(struct manifest_head, arena_bytes) == 56, "arena_bytes");
_Static_assert(offsetof(struct manifest_head, row_at) == 80, "row_at");
_Static_assert(offsetof(struct manifest_head, group) == 88, "group");
_Static_assert(offsetof(struct manifest_head, hash_secret) == 344, "hash_secret");
_Static_assert(offsetof(struct manifest_head, n_nodes) == 392, "n_nodes");
_Static_assert(sizeof(struct manifest_entry) == 192, "manifest_entry");
_Static_assert(offsetof(struct manifest_entry, id) == 8, "id");
_Static_assert(offsetof(struct manifest_entry, tokens_hash) == 24, "tokens_hash");
_Static_assert(offsetof(struct manifest_entry, first) == 56, "first");
_Static_assert(offsetof(struct manifest_entry, end) == 88, "end");
_Static_assert(offsetof(struct manifest_entry, snapshot) == 120, "snapshot");

/* One process's view; sizes and offsets are here, not in the arena. */
struct manifest {
    char *base;
    struct manifest_head h;
};

/* Whose row it becomes. */
struct manifest_owner {
    seq_slot slot;
    req_id id;
    uint32_t n_cross, n_tokens;
    uint32_t member, n_beams;
    uint64_t tokens_hash[2], source_hash[2];
};

/* A row as it was found: copied once, bounded, not yet believed. */
struct manifest_found {
    struct kv_entry_found row; /* entry[]: in the caller's room */
    uint32_t resume;           /* once adopted: kv_entry_resume() */
    uint32_t n_turns;
    struct manifest_owner owner;
};

/* What rank r of a search's step has decided. */
struct manifest_move {
    token_id token, ended_token; /* ended_token < 0: nobody has ended */
    float score, ended_score;
    uint8_t slot, ended_slot;
};

void manifest_hash(const token_id *token, uint32_t n, uint64_t ret[2]);

uint64_t manifest_bytes(const struct kv_config *c); /* c as kv_init() left it */
/* base: that many zero bytes. */
void manifest_make(struct manifest *m, void *base, const struct kv_config *c,
                   const uint64_t print[2], const uint64_t kv_id[2]);
/* A predecessor's, to go on with. -EBADMSG: not of this model, configuration and KV arena; the sentence says
 * what differs, and nothing was changed. */
int manifest_open(struct manifest *m, void *base, uint64_t bytes, const struct kv_config *c,
                  const uint64_t print[2], const uint64_t kv_id[2], struct err *e) MUST_USE;
/* The secret that the labels of a manifest were made with, of its first bytes: for kv_init(), before
 * manifest_open() says whether it is one. */
void manifest_secret(const struct manifest_head *h, uint64_t ret[4]);

struct manifest_adopted {
    uint32_t rows, labels;
    uint32_t no_rows, no_nodes; /* whole ones that were not taken: they cannot be true */
};
/* Give kv what its rows and labels prove, clear the others, kv_adopt_end(). found: [n_slots], owner.id 0 where
 * nothing was adopted; room: row_bytes / 4 of them, for its use; host: cells hold what they held. */
struct manifest_adopted manifest_adopt(struct manifest *m, struct kv *kv, bool host,
                                       struct manifest_found *found, slice_id *room);

/* What was found of a request that has come again, with the n tokens of its decoder that are known: its
 * slot, and in *resume the positions to go on from, less than n (with state just those, or none); 0: none that are its. -ENOENT: no slot. Once:
 * it is no longer found then. */
int manifest_claim(struct manifest_found *found, uint32_t n_slots, req_id id, uint32_t member,
                   const token_id *token, uint32_t n, const token_id *source, uint32_t n_source,
                   uint32_t *resume) MUST_USE;
/* The same of a whole search, with the n tokens of its prompt: slot[] of its beams, and how many steps it had decided,
 * with which n - 1 positions and as many more are written in each. 0: they are not all there, or nothing was decided;
 * no slot is found by manifest_claim() then that was not before. */
uint32_t manifest_claim_search(struct manifest_found *found, uint32_t n_slots, req_id id,
                               uint32_t n_beams, const token_id *token, uint32_t n,
                               const token_id *source, uint32_t n_source, seq_slot *slot) MUST_USE;
/* That is left of the request, claimed or not: its slot, once each. -ENOENT: nothing. */
int manifest_forget(struct manifest_found *found, uint32_t n_slots, req_id id) MUST_USE;

/* All that has changed of the tree: before a step is launched, and whenever there is time. */
void manifest_put_nodes(struct manifest *m, struct kv *kv);
/* A step that is about to be launched: its edits, and the rows that begin with it. Ends stand first in the
 * edits, so a slot that changes hands loses its old row before it gets the new one. */
void manifest_launch(struct manifest *m, const struct kv_edit *edit, uint32_t n_edits,
                     const struct manifest_owner *owner, uint32_t n_owners);
/* That many positions of the slot are written, or are what shall be gone on from. */
void manifest_commit(struct manifest *m, seq_slot slot, uint32_t committed);

/* A search's step turn, the next one, has decided that: move[r] of rank r, slot[] of its beams. Nothing where there is
 * no room for so many. */
void manifest_put_decision(struct manifest *m, const seq_slot *slot, uint32_t n_beams,
                           uint32_t turn, const struct manifest_move *move);
/* The search of that first beam begins again: what its predecessor's has decided is in the rows of other slots. */
void manifest_drop_decisions(struct manifest *m, seq_slot slot);
/* Of a predecessor, not yet believed: what rank 0 .. n_beams - 1 decided in that step, turn < n_turns. */
void manifest_decision(const struct manifest *m, const seq_slot *slot, uint32_t n_beams,
                       uint32_t turn, struct manifest_move *ret);

/* One row. 1: *ret, its tables in room (as above); 0: nobody's, half edited, or nothing committed;
 * -EBADMSG: it cannot be. */
int manifest_read(const struct manifest *m, seq_slot slot, slice_id *room,
                  struct manifest_found *ret) MUST_USE;

#endif

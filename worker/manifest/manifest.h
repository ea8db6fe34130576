/* manifest.h - crash-consistent record of the KV that a worker has written, for its replacement.
 *
 * The manifest is an arena of its own. The worker's engine thread writes it; the replacement worker
 * reads it after the writer has exited. The ledger in lagand is the authority on requests; the
 * manifest only saves finished work, and its contents are validated before use. An entry records
 * one slot, a node records one block of the prefix cache, a decision one step of a beam search.
 * Little-endian:
 *
 *     offset               bytes
 *     0                    512                 struct manifest_head, constant
 *     row_at + i * row     192                 struct manifest_entry of slot i
 *       + 192              4 * max_entries     block table of group 0: slices
 *       + ...              4 * max_entries     of group 1 ...
 *     node_at + i * node   48                  struct manifest_node: node i of the prefix tree
 *       + 48               4 * places          of group 0, then 1 ...: block, host block (of
 *                                              recurrent state: of each layer); slice + 1; 0: none
 *       + ...              4 * tokens_per_block  tokens
 *     decision_at          20 * n_decisions    struct manifest_decision of one slot: what a beam
 *       + i * decisions                        search has decided for the beam, step by step
 *
 * Every single store leaves a manifest that can be adopted. seq of an entry or node is odd while
 * several stores change it. worker/handover/adopt_log.h has the order in which the functions below
 * are called, and the proof that this order suffices.
 */
#pragma once
#include "worker/kv/kv_tree_export.h"

#include <stdatomic.h>

#define MANIFEST_MAGIC UINT64_C(0x3174736566696e6d) /* "mnifest1" */
enum { MANIFEST_VERSION = 5 };

struct manifest_group {
    uint32_t kind, window, n_layers, n_parts, slice_bytes, max_entries, table_at;
    uint32_t sinks; /* attention sinks: first positions, which stay visible outside the window */
};
/* In the structs of the arena each comment begins with the byte offset of its field. */
struct manifest_head {
    uint64_t magic;               /* 0 */
    uint32_t version, head_bytes; /* 8 */
    uint64_t bytes;               /* 16  of the whole arena */
    uint64_t fingerprint[2]; /* 24  hash of all that K and V depend on: model, precision, device */
    uint64_t kv_id[2];       /* 40  of the KV arena that the slices belong to */
    uint64_t arena_bytes;    /* 56  of the KV arena */
    uint32_t n_slots, n_groups;              /* 64 */
    uint32_t tokens_per_block;               /* 72 */
    uint32_t slab_bytes;                     /* 76 */
    uint32_t row_at, row_bytes;              /* 80  of the entries */
    struct manifest_group group[MAX_GROUPS]; /* 88  table_at: from the start of the entry */
    uint64_t hash_secret[4];                 /* 344 with which the keys of nodes are hashed */
    uint64_t host_bytes, node_at;            /* 376 */
    uint32_t n_nodes, node_bytes;            /* 392 n_nodes: node 0 included, which is no node */
    uint64_t decision_at;                    /* 400 */
    uint32_t n_decisions, decision_bytes;    /* 408 n_decisions: capacity per slot */
    uint8_t zero[96];
};
struct manifest_entry {
    _Atomic uint32_t seq;            /* 0   odd while several stores change it */
    _Atomic uint32_t committed;      /* 4   committed position; > 0: the cross KV is written too */
    _Atomic uint64_t id;             /* 8   of the request; 0: the entry is empty */
    _Atomic uint32_t n_cross;        /* 16  tokens of the encoder input */
    _Atomic uint32_t n_tokens;       /* 20  decoder tokens that tokens_hash covers */
    _Atomic uint64_t tokens_hash[2]; /* 24 */
    _Atomic uint64_t source_hash[2]; /* 40  of the encoder input */
    _Atomic uint32_t first[MAX_GROUPS];      /* 56  used table entries: sinks, first .. end - 1 */
    _Atomic uint32_t end[MAX_GROUPS];        /* 88 */
    _Atomic uint32_t snapshot[KV_SNAPSHOTS]; /* 120 position of each snapshot; 0: none */
    _Atomic uint32_t member;      /* 132 index of the output, sample or beam in its request */
    _Atomic uint32_t n_beams;     /* 136 beams of its search; 0: no beam search */
    _Atomic uint32_t n_decisions; /* 140 in the first beam's entry: number of decided steps */
    uint8_t zero[48];             /* 144 */
};
struct manifest_decision {         /* what a step decided for the beam of one rank (score order) */
    _Atomic uint32_t token, score; /* 0   of the continued beam; score as float bits */
    _Atomic uint32_t ended_token, ended_score; /* 8   of an ended beam; UINT32_MAX: none */
    _Atomic uint32_t slot; /* 16  parent's slot: bits 0-7 continued beam, bits 8-15 ended beam */
};
struct manifest_node {
    _Atomic uint32_t seq; /* 0   odd while several stores change it */
    /* 4   number of the parent node, 0: a root. In node 0: highest node number ever written */
    _Atomic uint32_t parent;
    _Atomic uint32_t n_tokens; /* 8 */
    _Atomic uint32_t live;     /* 12  0: the node is empty */
    _Atomic uint64_t key[2];   /* 16 */
    _Atomic uint64_t priority; /* 32  retention priority of each group's block, 1 byte each */
    uint8_t zero[8];           /* 40 */
};
_Static_assert(sizeof(struct manifest_node) == 48, "manifest_node");
_Static_assert(sizeof(struct manifest_decision) == 20, "manifest_decision");
_Static_assert(offsetof(struct manifest_entry, member) == 132, "member");
_Static_assert(offsetof(struct manifest_head, decision_at) == 400, "decision_at");
_Static_assert(sizeof(struct manifest_group) == 32, "manifest_group");
_Static_assert(sizeof(struct manifest_head) == 512, "manifest_head");
_Static_assert(offsetof(struct manifest_head, fingerprint) == 24, "fingerprint");
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

/* One process's view of a manifest; h is in private memory, so the arena cannot change it. */
struct manifest {
    char *base;
    struct manifest_head h;
};

/* The sequence whose KV an entry records. */
struct manifest_owner {
    seq_slot slot;
    req_id id;
    uint32_t n_cross, n_tokens;
    uint32_t member, n_beams;
    uint64_t tokens_hash[2], source_hash[2];
};

/* A copy of one entry for adoption: its counts are in range, the rest is not yet validated. */
struct manifest_found {
    struct kv_entry_found row; /* row.entry[] points to the caller's `tables` */
    uint32_t resume;           /* kv_entry_resume() after adoption */
    uint32_t n_decisions;
    struct manifest_owner owner;
};

/* The decision of one beam-search step for the beam of one rank (order by score). */
struct manifest_move {
    token_id token, ended_token; /* ended_token < 0: no beam ended */
    float score, ended_score;
    uint8_t slot, ended_slot; /* slots of the parent beams */
};

void manifest_hash(const token_id *token, uint32_t n, uint64_t ret[2]);

uint64_t manifest_bytes(const struct kv_config *c); /* size; c after kv_init() */
/* Creates an empty manifest at base, in manifest_bytes(c) bytes that are zero. */
void manifest_make(struct manifest *m, void *base, const struct kv_config *c,
                   const uint64_t fingerprint[2], const uint64_t kv_id[2]);
/* Opens the previous worker's manifest of this size at base. -EBADMSG: it is of another model,
 * configuration or KV arena; e names the difference, and the arena is unchanged. */
int manifest_open(struct manifest *m, void *base, uint64_t bytes, const struct kv_config *c,
                  const uint64_t fingerprint[2], const uint64_t kv_id[2], struct err *e) MUST_USE;
/* Copies hash_secret, with which the keys of nodes are hashed, from a head that is not validated,
 * because kv_init() needs the secret before manifest_open() can validate the head. */
void manifest_secret(const struct manifest_head *h, uint64_t ret[4]);

struct manifest_adopted {
    uint32_t rows, labels;      /* adopted entries (slots) and nodes */
    uint32_t no_rows, no_nodes; /* entries and nodes rejected as invalid */
};
/* Adopts every valid entry and tree node into kv, clears the others, and calls kv_adopt_end().
 * found: [n_slots] gets the adopted entries; found[i].owner.id is 0 if slot i was not adopted.
 * tables: [row_bytes / 4], scratch. host: the previous worker's host tier is valid. */
struct manifest_adopted manifest_adopt(struct manifest *m, struct kv *kv, bool host,
                                       struct manifest_found *found, slice_id *tables);

/* Returns the adopted slot of a resubmitted request and removes it from found, so that it is found
 * only once. token: the n known decoder tokens. Sets *resume to the position to resume at, below n.
 * *resume 0: the KV cannot be used, because it is of other tokens, or its recurrent state is of a
 * later position; the caller frees the slot. -ENOENT: no slot has this id and member. */
int manifest_claim(struct manifest_found *found, uint32_t n_slots, req_id id, uint32_t member,
                   const token_id *token, uint32_t n, const token_id *source, uint32_t n_source,
                   uint32_t *resume) MUST_USE;
/* As manifest_claim(), for all beams of a search; token: the n prompt tokens. Sets slot[] per beam
 * and returns the number of decided steps; each beam has n - 1 positions plus this number written.
 * 0: a beam is missing or no step was decided, and found is unchanged. */
uint32_t manifest_claim_search(struct manifest_found *found, uint32_t n_slots, req_id id,
                               uint32_t n_beams, const token_id *token, uint32_t n,
                               const token_id *source, uint32_t n_source, seq_slot *slot) MUST_USE;
/* Removes one slot of the request from found and returns it. -ENOENT: found has no more of them. */
int manifest_forget(struct manifest_found *found, uint32_t n_slots, req_id id) MUST_USE;

/* Writes all nodes of the prefix tree that have changed. Call before each launch, and when idle. */
void manifest_put_nodes(struct manifest *m, struct kv *kv);
/* Writes the table edits of a step before its launch, and the owners of new entries. Edits of kind
 * EDIT_CLEAR come first, so a reused slot's entry is cleared before it gets the new owner. */
void manifest_launch(struct manifest *m, const struct kv_edit *edit, uint32_t n_edits,
                     const struct manifest_owner *owner, uint32_t n_owners);
/* Publishes that the slot's KV is written up to this position. */
void manifest_commit(struct manifest *m, seq_slot slot, uint32_t committed);

/* Appends the decision of beam-search step `step`, which must be the next: move[r] of rank r is
 * stored for slot[r]. No effect if manifest_head.n_decisions steps are stored already. */
void manifest_put_decision(struct manifest *m, const seq_slot *slot, uint32_t n_beams,
                           uint32_t step, const struct manifest_move *move);
/* Discards the decisions of the search whose first beam has this slot. Needed when an adopted
 * search restarts: decisions are stored by slot, and the new beams may get other slots. */
void manifest_drop_decisions(struct manifest *m, seq_slot slot);
/* Reads what the previous worker decided in step `step` < n_decisions; not yet validated. */
void manifest_decision(const struct manifest *m, const seq_slot *slot, uint32_t n_beams,
                       uint32_t step, struct manifest_move *ret);

/* Reads a slot's entry. 1: *ret is set, its block tables are in `tables` (scratch as above). 0: it
 * is empty, was being edited, or has no committed position. -EBADMSG: it is invalid. */
int manifest_read(const struct manifest *m, seq_slot slot, slice_id *tables,
                  struct manifest_found *ret) MUST_USE;

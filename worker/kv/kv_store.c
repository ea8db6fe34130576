/* kv_store.c - adds computed blocks to the prefix tree: see kv_reuse.h. */
#include "worker/kv/kv_evict.h"

uint64_t
kv_salt(const struct kv *kv, const void *bytes, size_t n)
{
    return block_salt(&kv->key, bytes, n);
}

void
kv_namespace(const struct kv *kv, uint64_t salt, uint64_t lora, const token_id *source,
             uint32_t n_source, struct kv_namespace *ret)
{
    block_root(&kv->key, salt, lora, source, n_source, 0, ret->self);
    block_root(&kv->key, salt, lora, source, n_source, 1, ret->cross);
}

int
kv_keep_check(const struct kv_keep *keep, uint32_t n, struct err *e)
{
    for (uint32_t i = 0; i < n; i++) {
        if (keep[i].start >= keep[i].end)
            return err_set(e, -EINVAL, "retention range: start %u is not below end %u",
                           keep[i].start, keep[i].end);
        if (keep[i].priority > KV_PRIORITY_MAX)
            return err_set(e, -EINVAL, "retention priority %u is above %d", keep[i].priority,
                           KV_PRIORITY_MAX);
        if (i > 0 && keep[i].start < keep[i - 1].end)
            return err_set(e, -EINVAL,
                           "retention ranges overlap: one ends at token %u, the next begins at %u",
                           keep[i - 1].end, keep[i].start);
    }
    return 0;
}

uint32_t
kv_names(const struct kv *kv, const struct kv_text *t, uint64_t (*ret)[2], uint32_t max)
{
    uint32_t tokens = kv->c.tokens_per_block, n = MIN(t->n / tokens, max);

    for (uint32_t i = 0; i < n; i++) {
        struct kv_piece p = kv_piece(kv, t, i, tokens);

        kv_tree_name(i ? ret[i - 1] : t->namespace->self, &p, ret[i]);
    }
    return n;
}

/* Attaches the slot's blocks of the entry to the node, unless the node has a block of the group. */
static void
store_entry(struct kv *kv, seq_slot slot, const struct kv_text *t, uint32_t node, uint32_t entry,
            bool self)
{
    const struct kv_seq *s = &kv_seqs(kv)[slot];

    for (uint32_t g = 0; g < kv->c.n_groups; g++) {
        uint32_t block;

        if ((kv->c.group[g].kind != KV_CROSS) != self) continue;
        if (kv->c.group[g].kind == KV_STATE) {
            kv_state_store(kv, slot, t, node, g, entry);
            continue;
        }
        if (!kv_has_entry(kv, s, g, entry)) continue;
        block = kv_table(kv, g, slot)[entry] - 1;
        if (kv_blocks(kv)[block].node || kv_node(kv, node)->slot[g]) continue;
        kv_tree_set_priority(kv, t, block, self ? entry : 0);
        kv_tree_attach(kv, node, block);
    }
}

/* Returns the child of `parent` with the tokens *p, and adds it if missing; 0: the tree is full. */
static uint32_t
next_node(struct kv *kv, uint32_t parent, const struct kv_piece *p)
{
    uint64_t name[2];
    uint32_t node;

    kv_tree_name(kv_node(kv, parent)->key, p, name);
    node = kv_tree_child(kv, parent, name, p);
    return node ? node : kv_tree_add(kv, parent, name, p);
}

static bool
open_root(struct kv *kv, const uint64_t root_name[2], uint32_t *cursor)
{
    uint32_t root = kv_tree_root(kv, root_name);

    if (!root) root = kv_tree_add(kv, 0, root_name, NULL);
    if (root) kv_tree_pin(kv, root, cursor);
    return root;
}

/* Adds the encoder input to the tree, whole or (in a full tree) its first blocks. */
static void
store_cross(struct kv *kv, seq_slot slot, const struct kv_text *t)
{
    struct kv_text source = { .token = t->source, .n = t->n_source };
    uint32_t tokens = kv->c.tokens_per_block, cursor = 0;
    struct kv_seq *s = &kv_seqs(kv)[slot];

    if (s->cross_stored || !t->source) return;
    s->cross_stored = true;
    if (!open_root(kv, t->namespace->cross, &cursor)) return;
    for (uint32_t at = 0; at < t->n_source; at += tokens) {
        struct kv_piece p = kv_piece(kv, &source, at / tokens, MIN(tokens, t->n_source - at));
        uint32_t node = next_node(kv, cursor, &p);

        if (!node) break;
        store_entry(kv, slot, t, node, at / tokens, false);
        kv_tree_pin(kv, node, &cursor);
    }
    kv_tree_pin(kv, 0, &cursor);
}

void
kv_store(struct kv *kv, seq_slot slot, const struct kv_text *t, uint32_t n)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];
    uint32_t tokens = kv->c.tokens_per_block;

    if (!kv->c.reuse || !s->live || kv_text_of_features(t)) return;
    check(n <= t->n && !s->starting);
    store_cross(kv, slot, t);
    if (s->tree_full || n / tokens <= s->n_stored) return;
    if (!s->cursor && !open_root(kv, t->namespace->self, &s->cursor)) s->tree_full = true;
    while (!s->tree_full && s->n_stored < n / tokens) {
        struct kv_piece p = kv_piece(kv, t, s->n_stored, tokens);
        uint32_t node = next_node(kv, s->cursor, &p);

        if (!node) {
            s->tree_full = true;
            return;
        }
        store_entry(kv, slot, t, node, s->n_stored, true);
        kv_tree_pin(kv, node, &s->cursor);
        s->n_stored++;
    }
}

static void
store_rest(struct kv *kv, seq_slot slot, const struct kv_text *t, uint32_t n)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];
    uint32_t tokens = kv->c.tokens_per_block, node;
    struct kv_piece p = kv_piece(kv, t, s->n_stored, n % tokens);

    if (n % tokens == 0 || n / tokens != s->n_stored) return;
    if (kv->has_state || kv->c.whole_blocks) return;
    if (!s->cursor && !open_root(kv, t->namespace->self, &s->cursor)) return;
    node = next_node(kv, s->cursor, &p);
    if (!node) return;
    store_entry(kv, slot, t, node, s->n_stored, true);
    kv_tree_pin(kv, node, &s->cursor);
}

/* Sets the priority of all blocks of the slot. With fifo those outside the tree are cached too. */
static void
set_all_priorities(struct kv *kv, seq_slot slot, const struct kv_text *t)
{
    const struct kv_seq *s = &kv_seqs(kv)[slot];

    for (uint32_t g = 0; t->keep && g < kv->c.n_groups; g++)
        for (uint32_t i = kv_begin(kv, s, g); kv_is_positions(kv, g) && i < s->end[g];
             i = kv_after(kv, s, g, i))
            kv_tree_set_priority(kv, t, kv_table(kv, g, slot)[i] - 1, i);
}

void
kv_release(struct kv *kv, seq_slot slot, const struct kv_text *t, uint32_t n)
{
    const struct kv_seq *s = &kv_seqs(kv)[slot];
    uint32_t node;

    if (kv->c.reuse && s->live && !s->starting && !kv_text_of_features(t)) {
        kv_store(kv, slot, t, n);
        /* The loop attaches blocks to nodes whose block of equal contents was evicted meanwhile. */
        node = s->cursor;
        for (uint32_t i = s->n_stored; i > 0; i--, node = kv_node(kv, node)->parent)
            store_entry(kv, slot, t, node, i - 1, true);
        if (!s->tree_full) store_rest(kv, slot, t, n);
        set_all_priorities(kv, slot, t);
    }
    kv_drop(kv, slot);
}

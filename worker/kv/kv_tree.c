/* kv_tree.c - the prefix tree of cached blocks: see kv_evict.h. */
#include "worker/kv/kv_evict.h"

uint64_t
kv_tree_bytes(struct kv *kv, uint64_t at, uint64_t n_blocks)
{
    uint64_t tokens = kv->c.tokens_per_block, lead = 1;

    if (!kv->c.reuse) return at;
    /* The tree needs a node per block and a few without a block, which have a descendant with one.
     * If all groups are KV_STATE, up to `lead` nodes without a block lead to the next snapshot. */
    for (uint32_t g = 0; g < kv->c.n_groups; g++)
        lead = MAX(lead, kv->c.group[g].interval / tokens / kv->c.group[g].n_layers);
    for (uint32_t g = 0; g < kv->c.n_groups; g++)
        if (kv_is_positions(kv, g)) lead = 1;
    kv->n_nodes = (uint32_t)MIN((1 + lead) * n_blocks + 64 + 2 * kv->c.n_slots, UINT32_MAX / 2);
    for (kv->n_buckets = 64; kv->n_buckets < kv->n_nodes;) kv->n_buckets *= 2;
    kv->node_at = ROUND_UP(at, (uint64_t)CACHE_LINE);
    kv->bucket_at = kv->node_at + kv->n_nodes * sizeof(struct kv_node);
    kv->token_at = kv->bucket_at + kv->n_buckets * sizeof(uint32_t);
    kv->extra_at = ROUND_UP(kv->token_at + kv->n_nodes * tokens * sizeof(token_id), 8ul);
    return kv->extra_at + (kv->c.extra_ids ? kv->n_nodes * tokens * sizeof(uint64_t) : 0);
}

void
kv_tree_init(struct kv *kv)
{
    block_key_init(&kv->key, kv->c.hash_secret);
}

static uint32_t *
bucket_of(const struct kv *kv, const uint64_t name[2])
{
    return kv_buckets(kv) + (name[0] & (kv->n_buckets - 1));
}

void
kv_tree_note(struct kv *kv, uint32_t node)
{
    struct kv_node *n = kv_node(kv, node);

    if (n->changed || kv->suppress_exports) return;
    n->changed = true;
    n->next_changed = 0;
    *(kv->last_changed ? &kv_node(kv, kv->last_changed)->next_changed : &kv->first_changed) = node;
    kv->last_changed = node;
    kv->n_changed++;
}

token_id *
kv_tree_tokens(const struct kv *kv, uint32_t node)
{
    return kv_all_tokens(kv) + (size_t)(node - 1) * kv->c.tokens_per_block;
}

uint32_t
kv_tree_depth(const struct kv *kv, uint32_t node)
{
    uint32_t n = 0;

    for (; node && kv_node(kv, node)->parent; node = kv_node(kv, node)->parent) n++;
    return n;
}

static uint64_t *
extra_of(const struct kv *kv, uint32_t node)
{
    return kv_all_extras(kv) + (size_t)(node - 1) * kv->c.tokens_per_block;
}

struct kv_piece
kv_piece(const struct kv *kv, const struct kv_text *t, uint32_t entry, uint32_t n)
{
    size_t first = (size_t)entry * kv->c.tokens_per_block;
    const uint64_t *extra = kv->c.extra_ids && t->extra ? t->extra + first : NULL;
    uint32_t i = 0;

    while (extra && i < n && !extra[i]) i++;
    return (struct kv_piece){ .token = t->token + first, .extra = i < n ? extra : NULL, .n = n };
}

void
kv_tree_name(const uint64_t parent[2], const struct kv_piece *p, uint64_t ret[2])
{
    uint64_t tokens[2];

    block_name(parent, p->token, p->n * sizeof *p->token, ret);
    if (!p->extra) return;
    /* With extra ids: the name of the extra ids, behind a parent made of the tokens' name. */
    tokens[0] = ret[0] ^ ret[1];
    tokens[1] = parent[1];
    block_name(tokens, p->extra, p->n * sizeof *p->extra, ret);
}

static bool
same_piece(const struct kv *kv, uint32_t node, const struct kv_piece *p)
{
    const struct kv_node *n = kv_node(kv, node);

    if (n->n_tokens != p->n || n->has_extra != (p->extra != NULL)) return false;
    if (p->n && memcmp(kv_tree_tokens(kv, node), p->token, p->n * sizeof(token_id))) return false;
    return !p->extra || !memcmp(extra_of(kv, node), p->extra, p->n * sizeof(uint64_t));
}

uint32_t
kv_tree_child(const struct kv *kv, uint32_t parent, const uint64_t name[2],
              const struct kv_piece *p)
{
    for (uint32_t i = *bucket_of(kv, name); i; i = kv_node(kv, i)->chain) {
        const struct kv_node *n = kv_node(kv, i);

        if (n->key[0] == name[0] && n->key[1] == name[1] && n->parent == parent &&
            same_piece(kv, i, p))
            return i;
    }
    return 0;
}

uint32_t
kv_tree_root(const struct kv *kv, const uint64_t name[2])
{
    static const struct kv_piece none;

    return kv_tree_child(kv, 0, name, &none);
}

uint32_t
kv_tree_common(const struct kv *kv, uint32_t node, const struct kv_piece *p)
{
    const struct kv_node *n = kv_node(kv, node);
    const token_id *token = kv_tree_tokens(kv, node);
    uint32_t max = MIN(p->n, n->n_tokens), i;

    for (i = 0; i < max && token[i] == p->token[i]; i++)
        if ((n->has_extra ? extra_of(kv, node)[i] : 0) != (p->extra ? p->extra[i] : 0)) break;
    return i;
}

void
kv_tree_put(struct kv *kv, uint32_t node, uint32_t parent, const uint64_t name[2],
            const struct kv_piece *p)
{
    uint32_t *list = bucket_of(kv, name);
    struct kv_node *n = kv_node(kv, node);

    *n = (struct kv_node){ .key = { name[0], name[1] },
                           .parent = parent,
                           .chain = *list,
                           .live = true,
                           .changed = n->changed,
                           .next_changed = n->next_changed };
    *list = node;
    kv->n_live_nodes++;
    kv_tree_note(kv, node);
    if (p) {
        n->n_tokens = (uint16_t)p->n;
        n->has_extra = p->extra != NULL;
        memcpy(kv_tree_tokens(kv, node), p->token, p->n * sizeof(token_id));
        if (p->extra) memcpy(extra_of(kv, node), p->extra, p->n * sizeof(uint64_t));
    }
    if (!parent) return;
    n->next = kv_node(kv, parent)->child;
    if (n->next) kv_node(kv, n->next)->prev = node;
    kv_node(kv, parent)->child = node;
}

uint32_t
kv_tree_add(struct kv *kv, uint32_t parent, const uint64_t name[2], const struct kv_piece *p)
{
    uint32_t at = kv->first_free_node;

    if (!at && kv->n_fresh_nodes == kv->n_nodes) return 0;
    if (at) {
        kv->first_free_node = kv_node(kv, at)->next;
    } else {
        at = ++kv->n_fresh_nodes;
    }
    kv_tree_put(kv, at, parent, name, p);
    return at;
}

static bool
is_empty(const struct kv *kv, const struct kv_node *n)
{
    for (uint32_t g = 0; g < kv->c.n_groups; g++)
        if (n->slot[g] || n->host[g]) return false;
    return !n->child && !n->n_pins;
}

void
kv_tree_prune(struct kv *kv, uint32_t node)
{
    while (node && is_empty(kv, kv_node(kv, node))) {
        struct kv_node *n = kv_node(kv, node);
        uint32_t parent = n->parent, *chain = bucket_of(kv, n->key);

        while (*chain != node) chain = &kv_node(kv, *chain)->chain;
        *chain = n->chain;
        if (n->next) kv_node(kv, n->next)->prev = n->prev;
        if (n->prev) {
            kv_node(kv, n->prev)->next = n->next;
        } else if (parent) {
            kv_node(kv, parent)->child = n->next;
        }
        kv_tree_note(kv, node);
        *n = (struct kv_node){ .next = kv->first_free_node,
                               .changed = n->changed,
                               .next_changed = n->next_changed };
        kv->first_free_node = node;
        kv->n_live_nodes--;
        node = parent;
    }
}

static uint32_t
next_below(const struct kv *kv, uint32_t top, uint32_t at)
{
    if (kv_node(kv, at)->child) return kv_node(kv, at)->child;
    while (at != top && !kv_node(kv, at)->next) at = kv_node(kv, at)->parent;
    return at == top ? 0 : kv_node(kv, at)->next;
}

static void
orphan_block(struct kv *kv, uint32_t ref)
{
    if (ref && kv_blocks(kv)[ref - 1].state == BLOCK_CACHED)
        kv_evict_queue_push_orphan(kv, ref - 1);
}

/* Makes the cached blocks of all nodes below `top` orphans, because no lookup reaches them. Because
 * leaves are evicted before their ancestors, an eviction rarely finds such nodes. */
static void
orphan_below(struct kv *kv, uint32_t top)
{
    for (uint32_t at = next_below(kv, top, top); at; at = next_below(kv, top, at))
        for (uint32_t g = 0; g < kv->c.n_groups; g++) {
            orphan_block(kv, kv_node(kv, at)->slot[g]);
            orphan_block(kv, kv_node(kv, at)->host[g]);
        }
}

/* Sets the node of the block, of a snapshot of all blocks of the ring; 0: ends the ring. */
static void
set_node(struct kv *kv, uint32_t block, uint32_t node)
{
    struct kv_block *all = kv_blocks(kv);
    uint32_t at = block;

    do {
        uint32_t next = all[at].more ? all[at].more - 1 : block;

        all[at].node = node;
        if (!node) all[at].more = 0;
        at = next;
    } while (at != block);
}

void
kv_tree_attach(struct kv *kv, uint32_t node, uint32_t block)
{
    struct kv_block *b = &kv_blocks(kv)[block];
    struct kv_node *n = kv_node(kv, node);
    uint32_t *slot = kv_is_host_block(kv, block) ? &n->host[b->group] : &n->slot[b->group];
    bool moved = n->slot[b->group] || n->host[b->group];

    check(!b->node && !*slot);
    set_node(kv, block, node);
    *slot = block + 1;
    kv_tree_note(kv, node);
    if (!kv_is_host_block(kv, block))
        kv_event_put(kv, moved ? KV_UPDATED : KV_STORED, block, b->priority, KV_ASKED);
}

void
kv_tree_detach(struct kv *kv, uint32_t block, enum kv_why why)
{
    struct kv_block *b = &kv_blocks(kv)[block];
    uint32_t node = b->node, top = node;
    struct kv_node *n = kv_node(kv, node);
    bool host_block = kv_is_host_block(kv, block), both = n->slot[b->group] && n->host[b->group];
    uint32_t *slot = host_block ? &n->host[b->group] : &n->slot[b->group];
    enum kv_kind kind = kv->c.group[b->group].kind;

    if (!both) kv_event_put(kv, KV_REMOVED, *slot - 1, b->priority, why);
    *slot = 0;
    set_node(kv, block, 0);
    kv_tree_note(kv, node);
    if (both) { /* the other tier still has a block of the group at the node */
        if (!host_block) kv_event_put(kv, KV_UPDATED, n->host[b->group] - 1, b->priority, why);
        return;
    }
    while (kind == KV_CROSS && kv_node(kv, top)->parent) top = kv_node(kv, top)->parent;
    if (!kv->c.fifo && (kind == KV_CROSS || kind == KV_FULL)) orphan_below(kv, top);
    kv_tree_prune(kv, node);
}

void
kv_tree_set_priority(struct kv *kv, const struct kv_text *t, uint32_t block, uint32_t entry)
{
    uint64_t token = (uint64_t)entry * kv->c.tokens_per_block;
    struct kv_block *b = &kv_blocks(kv)[block];
    uint8_t was = b->priority;

    for (uint32_t i = 0; t->keep && i < t->n_keep; i++) {
        if (token < t->keep[i].start || token >= t->keep[i].end) continue;
        b->priority = t->keep[i].priority;
        if (b->node && was != b->priority) kv_event_put(kv, KV_UPDATED, block, was, KV_ASKED);
        return;
    }
}

void
kv_tree_pin(struct kv *kv, uint32_t node, uint32_t *cursor)
{
    uint32_t old = *cursor;

    if (old == node) return;
    if (node) kv_node(kv, node)->n_pins++;
    *cursor = node;
    if (!old) return;
    kv_node(kv, old)->n_pins--;
    kv_tree_prune(kv, old);
}

void
kv_tree_check(const struct kv *kv)
{
    uint32_t live = 0, chained = 0, free = 0, changed = 0;

    for (uint32_t i = 1; i <= kv->n_fresh_nodes; i++) {
        const struct kv_node *n = kv_node(kv, i);
        uint32_t prev = 0;

        if (!n->live) continue;
        live++;
        check(!is_empty(kv, n));
        check(n->parent ? kv_node(kv, n->parent)->live : n->n_tokens == 0);
        check(n->n_tokens == kv->c.tokens_per_block || !n->child || !n->parent);
        for (uint32_t c = n->child; c; prev = c, c = kv_node(kv, c)->next)
            check(kv_node(kv, c)->parent == i && kv_node(kv, c)->prev == prev);
        for (uint32_t g = 0; g < kv->c.n_groups; g++) {
            for (int host = 0; host < 2; host++) {
                uint32_t ref = host ? n->host[g] : n->slot[g];
                const struct kv_block *b = &kv_blocks(kv)[ref ? ref - 1 : 0];

                if (!ref) continue;
                check(b->node == i && b->group == g &&
                      kv_is_host_block(kv, ref - 1) == (host == 1));
                check(b->state == BLOCK_HELD || b->state == BLOCK_CACHED);
            }
        }
        for (uint32_t c = *bucket_of(kv, n->key); c != i; c = kv_node(kv, c)->chain) check(c);
    }
    for (uint32_t i = 0; kv->n_nodes && i < kv->n_buckets; i++)
        for (uint32_t c = kv_buckets(kv)[i]; c; c = kv_node(kv, c)->chain) check(++chained <= live);
    for (uint32_t i = kv->first_free_node; i; i = kv_node(kv, i)->next)
        check(++free <= kv->n_nodes);
    for (uint32_t i = kv->first_changed; i; i = kv_node(kv, i)->next_changed) {
        check(kv_node(kv, i)->changed && ++changed <= kv->n_changed);
        check(kv_node(kv, i)->next_changed || kv->last_changed == i);
    }
    check(changed == kv->n_changed && !kv->suppress_exports);
    check(live == kv->n_live_nodes && live + free == kv->n_fresh_nodes && chained == live);
}

/* manifest_read.c - reads, validates and adopts the previous worker's manifest: see manifest.h.
 *
 * Every value is copied once, and its range is checked before use. Entries and nodes that are not
 * adopted are cleared one by one, so a kill during adoption leaves a manifest that can be adopted.
 */
#include "worker/kv/kv_table.h"
#include "worker/manifest/manifest_layout.h"

int
manifest_read(const struct manifest *m, seq_slot slot, slice_id *tables, struct manifest_found *ret)
{
    const struct manifest_entry *r = entry_of(m, slot);

    *ret = (struct manifest_found){
        .row = { .id = get64(&r->id),
                 .slot = slot,
                 .committed = get32(&r->committed),
                 .cross_tokens = get32(&r->n_cross) },
        .n_decisions = MIN(get32(&r->n_decisions), m->h.n_decisions),
        .owner = { .slot = slot,
                   .n_tokens = get32(&r->n_tokens),
                   .member = get32(&r->member),
                   .n_beams = get32(&r->n_beams),
                   .tokens_hash = { get64(&r->tokens_hash[0]), get64(&r->tokens_hash[1]) },
                   .source_hash = { get64(&r->source_hash[0]), get64(&r->source_hash[1]) } },
    };
    for (uint32_t i = 0; i < KV_SNAPSHOTS; i++) ret->row.snapshot[i] = get32(&r->snapshot[i]);
    ret->owner.id = ret->row.id;
    ret->owner.n_cross = ret->row.cross_tokens;
    if ((get32(&r->seq) & 1) || !ret->row.id || !ret->row.committed) return 0;
    for (uint32_t g = 0; g < m->h.n_groups; g++) {
        const _Atomic uint32_t *table = table_of(m, slot, g);
        uint32_t first = get32(&r->first[g]), end = get32(&r->end[g]), sinks = sink_entries(m, g);

        if (first > end || end > m->h.group[g].max_entries) return -EBADMSG;
        ret->row.entry[g] = tables;
        ret->row.n_entries[g] = end;
        for (uint32_t i = 0; i < end; i++) {
            bool has = i >= first || i < sinks;

            *tables = has ? get32(&table[i]) : SLICE_NONE;
            /* freed entries are below first, never SLICE_NONE */
            if (has && *tables == SLICE_NONE) return -EBADMSG;
            tables++;
        }
    }
    return 1;
}

void
manifest_decision(const struct manifest *m, const seq_slot *slot, uint32_t n_beams, uint32_t step,
                  struct manifest_move *ret)
{
    for (uint32_t r = 0; r < n_beams; r++) {
        const struct manifest_decision *t = decision_of(m, slot[r], step);
        uint32_t slots = get32(&t->slot);

        ret[r] = (struct manifest_move){ .token = (token_id)get32(&t->token),
                                         .ended_token = (token_id)get32(&t->ended_token),
                                         .score = (union float_bits){ .bits = get32(&t->score) }.f,
                                         .ended_score =
                                             (union float_bits){ .bits = get32(&t->ended_score) }.f,
                                         .slot = (uint8_t)slots,
                                         .ended_slot = (uint8_t)(slots >> 8) };
    }
}

/* Reads a node. 1: *ret is set, its tokens are in token[tokens_per_block], its host blocks in
 * host[n_places()]. 0: the node is empty or was being edited. -EBADMSG: it is invalid. */
static int
read_node(const struct manifest *m, uint32_t node, token_id *token, slice_id *host,
          struct kv_tree_export *ret)
{
    struct manifest_node *n = node_of(m, node);
    const _Atomic uint32_t *place = places_of(n);
    uint64_t priority = get64(&n->priority);

    *ret = (struct kv_tree_export){ .node = node,
                                    .parent = get32(&n->parent),
                                    .live = true,
                                    .key = { get64(&n->key[0]), get64(&n->key[1]) },
                                    .n_tokens = get32(&n->n_tokens),
                                    .token = token,
                                    .host = host };
    if ((get32(&n->seq) & 1) || !get32(&n->live)) return 0;
    if (ret->n_tokens > m->h.tokens_per_block) return -EBADMSG;
    for (uint32_t i = 0; i < ret->n_tokens; i++) token[i] = (token_id)get32(&tokens_of(m, n)[i]);
    for (uint32_t g = 0; g < m->h.n_groups; g++) {
        ret->at[g] = get32(place++) - 1;
        for (uint32_t i = n_host_of(&m->h.group[g]); i > 0; i--) *host++ = get32(place++) - 1;
        ret->priority[g] = (uint8_t)(priority >> 8 * g);
    }
    return 1;
}

static bool
is_open(const struct manifest *m, const struct kv *kv, uint32_t node)
{
    return node > 0 && node < m->h.n_nodes && get32(&node_of(m, node)->live) &&
           !kv_tree_export_known(kv, node);
}

/* Returns the node's topmost ancestor (or itself) that is not adopted yet; 0: parents form a
 * cycle. */
static uint32_t
top_of(const struct manifest *m, const struct kv *kv, uint32_t node)
{
    uint32_t most = m->h.n_nodes, up;

    for (; most > 0; most--, node = up) {
        up = get32(&node_of(m, node)->parent);
        if (!is_open(m, kv, up)) return node;
    }
    return 0;
}

/* Adopts the node after its ancestors. Clears a rejected node before its blocks can be reused. */
static void
adopt_node(struct manifest *m, struct kv *kv, bool host, uint32_t node, slice_id *tables,
           struct manifest_adopted *a)
{
    token_id token[KV_MAX_TOKENS];
    struct kv_tree_export l;

    while (is_open(m, kv, node)) {
        uint32_t top = top_of(m, kv, node), at = top ? top : node;
        int r = top ? read_node(m, at, token, tables, &l) : -EBADMSG;
        bool whole = r > 0;

        if (whole) r = kv_tree_export_adopt(kv, &l, host);
        a->labels += whole && r == 0;
        a->no_nodes += r == -EBADMSG;
        if (!whole || r < 0) manifest_put_node(m, &(struct kv_tree_export){ .node = at });
    }
}

struct manifest_adopted
manifest_adopt(struct manifest *m, struct kv *kv, bool host, struct manifest_found *found,
               slice_id *tables)
{
    uint32_t n_nodes = m->h.n_nodes ? MIN(get32(&node_of(m, 0)->parent), m->h.n_nodes - 1) : 0;
    struct manifest_adopted a = { 0 };

    for (seq_slot slot = 0; slot < m->h.n_slots; slot++) {
        struct manifest_entry *e = entry_of(m, slot);
        int r = manifest_read(m, slot, tables, &found[slot]);

        if (r > 0) r = kv_adopt(kv, &found[slot].row);
        if (r < 0 && r != -ENODATA) a.no_rows++;
        if (r == 0 && kv_live(kv, slot)) {
            found[slot].resume = kv_entry_resume(kv, &found[slot].row);
            /* the blocks of other snapshots are free now */
            for (uint32_t i = 0; i < KV_SNAPSHOTS; i++)
                if (get32(&e->snapshot[i]) != found[slot].resume) put32(&e->snapshot[i], 0);
            a.rows++;
        } else {
            found[slot].owner.id = 0;
            manifest_clear(m, slot);
        }
    }
    for (uint32_t i = 1; i <= n_nodes; i++) adopt_node(m, kv, host, i, tables, &a);
    kv_adopt_end(kv);
    return a;
}

static bool
same_tokens(const token_id *token, uint32_t n, const uint64_t hash[2])
{
    uint64_t here[2];

    manifest_hash(token, n, here);
    return here[0] == hash[0] && here[1] == hash[1];
}

static bool
owner_matches(const struct manifest_owner *o, const token_id *token, const token_id *source,
              uint32_t n_source)
{
    return same_tokens(token, o->n_tokens, o->tokens_hash) && o->n_cross == n_source &&
           same_tokens(source, n_source, o->source_hash);
}

int
manifest_claim(struct manifest_found *found, uint32_t n_slots, req_id id, uint32_t member,
               const token_id *token, uint32_t n, const token_id *source, uint32_t n_source,
               uint32_t *resume)
{
    for (seq_slot slot = 0; slot < n_slots; slot++) {
        struct manifest_owner *o = &found[slot].owner;

        if (o->id != id || o->member != member) continue;
        *resume = 0;
        if (o->n_tokens <= n && owner_matches(o, token, source, n_source))
            *resume = found[slot].resume;
        if (*resume >= n) *resume = found[slot].resume == found[slot].row.committed ? n - 1 : 0;
        o->id = 0;
        return (int)slot;
    }
    return -ENOENT;
}

uint32_t
manifest_claim_search(struct manifest_found *found, uint32_t n_slots, req_id id, uint32_t n_beams,
                      const token_id *token, uint32_t n, const token_id *source, uint32_t n_source,
                      seq_slot *slot)
{
    uint32_t n_decisions = 0;

    for (uint32_t i = 0; i < n_beams; i++) {
        const struct manifest_owner *o;

        for (slot[i] = 0; slot[i] < n_slots; slot[i]++) {
            o = &found[slot[i]].owner;
            if (o->id == id && o->member == i && o->n_beams == n_beams) break;
        }
        if (slot[i] == n_slots) return 0;
        o = &found[slot[i]].owner;
        if (o->n_tokens != n || !owner_matches(o, token, source, n_source)) return 0;
        if (i == 0) n_decisions = found[slot[i]].n_decisions;
        if (n_decisions == 0 || found[slot[i]].resume < n - 1 + n_decisions) return 0;
    }
    for (uint32_t i = 0; i < n_beams; i++) found[slot[i]].owner.id = 0;
    return n_decisions;
}

int
manifest_forget(struct manifest_found *found, uint32_t n_slots, req_id id)
{
    for (seq_slot slot = 0; slot < n_slots; slot++) {
        if (found[slot].owner.id != id) continue;
        found[slot].owner.id = 0;
        return (int)slot;
    }
    return -ENOENT;
}

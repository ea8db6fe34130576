/* manifest.c - creates, opens and writes a manifest: see manifest.h. manifest_read.c reads it.
 *
 * Every store is a release store through put32() or put64(). So a worker that is killed leaves a
 * manifest with the stores up to some point in program order, and none after it.
 */
#include "worker/manifest/manifest_layout.h"

#include <xxhash.h>

/* Returns how many beam-search steps can be stored per slot: as many as it has positions. 0: no
 * beam search can be adopted, because beams have no snapshots of their recurrent state, or because
 * there is only one slot. */
static uint32_t
max_decisions(const struct kv_config *c)
{
    uint32_t n = 0;

    for (uint32_t g = 0; g < c->n_groups; g++) {
        const struct kv_group *k = &c->group[g];

        if (k->kind == KV_STATE) return 0;
        if (k->kind != KV_CROSS) n = MAX(n, k->max_entries * c->tokens_per_block);
    }
    return c->n_slots > 1 ? n : 0;
}

static void
lay_out(struct manifest_head *h, const struct kv_config *c, const uint64_t fingerprint[2],
        const uint64_t kv_id[2])
{
    uint64_t row = sizeof(struct manifest_entry);

    *h = (struct manifest_head){
        .magic = MANIFEST_MAGIC,
        .version = MANIFEST_VERSION,
        .head_bytes = sizeof *h,
        .fingerprint = { fingerprint[0], fingerprint[1] },
        .kv_id = { kv_id[0], kv_id[1] },
        .arena_bytes = c->arena_bytes,
        .n_slots = c->n_slots,
        .n_groups = c->n_groups,
        .tokens_per_block = c->tokens_per_block,
        .slab_bytes = c->slab_bytes,
        .row_at = sizeof *h,
        .host_bytes = c->host_bytes,
    };
    memcpy(h->hash_secret, c->hash_secret, sizeof h->hash_secret);
    for (uint32_t i = 0; i < c->n_groups; i++) {
        const struct kv_group *g = &c->group[i];

        h->group[i] = (struct manifest_group){
            .kind = g->kind,
            .window = g->window,
            .n_layers = g->n_layers,
            .n_parts = g->n_parts,
            .slice_bytes = g->slice_bytes,
            .max_entries = g->max_entries,
            .table_at = (uint32_t)row,
            .sinks = g->kind == KV_WINDOW ? g->sinks : 0,
        };
        row += (uint64_t)g->max_entries * sizeof(slice_id);
        check(row < UINT32_MAX - CACHE_LINE);
    }
    h->row_bytes = (uint32_t)ROUND_UP(row, (uint64_t)CACHE_LINE);
    h->node_at = h->row_at + (uint64_t)h->row_bytes * h->n_slots;
    h->n_nodes = c->reuse ? kv_tree_max_exports(c) + 1 : 0;
    h->node_bytes = ROUND_UP((uint32_t)sizeof(struct manifest_node) + 4 * n_places(h) +
                                 (uint32_t)sizeof(token_id) * c->tokens_per_block,
                             8u);
    h->decision_at = ROUND_UP(h->node_at + (uint64_t)h->node_bytes * h->n_nodes,
                              (uint64_t)CACHE_LINE);
    h->decision_bytes = sizeof(struct manifest_decision);
    h->n_decisions = max_decisions(c);
    h->bytes = h->decision_at + (uint64_t)h->decision_bytes * h->n_decisions * h->n_slots;
}

void
manifest_hash(const token_id *token, uint32_t n, uint64_t ret[2])
{
    XXH128_hash_t h = XXH3_128bits(token, n * sizeof *token);

    ret[0] = h.low64;
    ret[1] = h.high64;
}

uint64_t
manifest_bytes(const struct kv_config *c)
{
    static const uint64_t none[2];
    struct manifest_head h;

    lay_out(&h, c, none, none);
    return h.bytes;
}

void
manifest_make(struct manifest *m, void *base, const struct kv_config *c,
              const uint64_t fingerprint[2], const uint64_t kv_id[2])
{
    m->base = base;
    lay_out(&m->h, c, fingerprint, kv_id);
    memcpy(base, &m->h, sizeof m->h);
}

void
manifest_secret(const struct manifest_head *h, uint64_t ret[4])
{
    memcpy(ret, h->hash_secret, sizeof h->hash_secret);
}

int
manifest_open(struct manifest *m, void *base, uint64_t bytes, const struct kv_config *c,
              const uint64_t fingerprint[2], const uint64_t kv_id[2], struct err *e)
{
    struct manifest_head found;

    lay_out(&m->h, c, fingerprint, kv_id);
    m->base = base;
    if (bytes < sizeof found)
        return err_set(e, -EBADMSG, "manifest of %llu bytes is too short for its head",
                       (unsigned long long)bytes);
    memcpy(&found, base, sizeof found);
    if (found.magic != m->h.magic || found.version != m->h.version)
        return err_set(e, -EBADMSG, "manifest version is %u (0: not a manifest), expected %u",
                       found.magic == m->h.magic ? found.version : 0, MANIFEST_VERSION);
    if (memcmp(found.fingerprint, fingerprint, sizeof found.fingerprint))
        return err_set(e, -EBADMSG, "manifest is of another model, precision or device");
    if (memcmp(found.kv_id, kv_id, sizeof found.kv_id))
        return err_set(e, -EBADMSG, "manifest is of another KV arena");
    if (bytes != m->h.bytes || memcmp(&found, &m->h, sizeof found))
        return err_set(e, -EBADMSG, "manifest has other KV groups, slots or block sizes");
    return 0;
}

static struct manifest_entry *
entry_begin(struct manifest *m, seq_slot slot)
{
    struct manifest_entry *r = entry_of(m, slot);

    put32(&r->seq, get32(&r->seq) | 1);
    return r;
}

static void
entry_end(struct manifest_entry *r)
{
    put32(&r->seq, get32(&r->seq) + 1);
}

static void
entry_clear(struct manifest *m, struct manifest_entry *r)
{
    put64(&r->id, 0);
    put32(&r->committed, 0);
    put32(&r->n_decisions, 0);
    for (uint32_t i = 0; i < KV_SNAPSHOTS; i++) put32(&r->snapshot[i], 0);
    for (uint32_t g = 0; g < m->h.n_groups; g++) {
        put32(&r->end[g], 0);
        put32(&r->first[g], 0);
    }
}

void
manifest_clear(struct manifest *m, seq_slot slot)
{
    struct manifest_entry *r = entry_of(m, slot);
    bool held = false; /* an entry without an id may have blocks too */

    for (uint32_t g = 0; g < m->h.n_groups; g++) held = held || get32(&r->end[g]) > 0;
    if (!get64(&r->id) && !held && !(get32(&r->seq) & 1)) return;
    r = entry_begin(m, slot);
    entry_clear(m, r);
    entry_end(r);
}

static void
entry_assign(struct manifest *m, const struct manifest_owner *o)
{
    struct manifest_entry *r = entry_begin(m, o->slot);

    entry_clear(m, r);
    put32(&r->n_cross, o->n_cross);
    put32(&r->n_tokens, o->n_tokens);
    put32(&r->member, o->member);
    put32(&r->n_beams, o->n_beams);
    for (int i = 0; i < 2; i++) {
        put64(&r->tokens_hash[i], o->tokens_hash[i]);
        put64(&r->source_hash[i], o->source_hash[i]);
    }
    put64(&r->id, o->id);
    entry_end(r);
}

/* Applies an EDIT_SET to an entry: block tables grow at the end and shrink from the start. */
static void
entry_set(struct manifest *m, struct manifest_entry *r, const struct kv_edit *e)
{
    _Atomic uint32_t *table = table_of(m, e->slot, e->group);
    uint32_t first = get32(&r->first[e->group]), end = get32(&r->end[e->group]);
    const struct manifest_group *g = &m->h.group[e->group];
    uint32_t sinks = sink_entries(m, e->group);

    if (g->kind == KV_STATE && e->entry >= g->n_layers)
        put32(&r->snapshot[e->entry / g->n_layers - 1], (uint32_t)e->pos);
    if (e->entry > end) { /* first edit of a cache hit: its window starts here */
        check(first == end || end <= sinks);
        put32(&r->end[e->group], end = e->entry);
        put32(&r->first[e->group], first = e->entry);
    }
    if (e->at == SLICE_NONE) {
        check(e->entry == MAX(first, sinks) && e->entry < end);
        put32(&r->first[e->group], e->entry + 1);
    } else if (e->entry < end) { /* sent again after adoption, or reordered by a beam search */
        check(e->entry >= first || e->entry < sinks);
        put32(&table[e->entry], e->at);
    } else {
        check(e->entry == end && end < m->h.group[e->group].max_entries);
        put32(&table[end], e->at);
        put32(&r->end[e->group], end + 1);
    }
}

void
manifest_launch(struct manifest *m, const struct kv_edit *edit, uint32_t n_edits,
                const struct manifest_owner *owner, uint32_t n_owners)
{
    struct manifest_entry *r = NULL;
    uint32_t i = 0;
    seq_slot slot = 0;

    for (; i < n_edits && edit[i].op == EDIT_CLEAR; i++) manifest_clear(m, edit[i].slot);
    for (uint32_t k = 0; k < n_owners; k++) entry_assign(m, &owner[k]);
    for (; i < n_edits; i++) {
        check(edit[i].op == EDIT_SET);
        if (r && edit[i].slot != slot) {
            entry_end(r);
            r = NULL;
        }
        if (!r) r = entry_begin(m, slot = edit[i].slot);
        entry_set(m, r, &edit[i]);
    }
    if (r) entry_end(r);
}

void
manifest_commit(struct manifest *m, seq_slot slot, uint32_t committed)
{
    put32(&entry_of(m, slot)->committed, committed);
}

void
manifest_put_decision(struct manifest *m, const seq_slot *slot, uint32_t n_beams, uint32_t step,
                      const struct manifest_move *move)
{
    if (step >= m->h.n_decisions || get32(&entry_of(m, slot[0])->n_decisions) != step) return;
    for (uint32_t r = 0; r < n_beams; r++) {
        struct manifest_decision *t = decision_of(m, slot[r], step);

        put32(&t->token, (uint32_t)move[r].token);
        put32(&t->score, (union float_bits){ move[r].score }.bits);
        put32(&t->ended_token, (uint32_t)move[r].ended_token);
        put32(&t->ended_score, (union float_bits){ move[r].ended_score }.bits);
        put32(&t->slot, move[r].slot | (uint32_t)move[r].ended_slot << 8);
    }
    put32(&entry_of(m, slot[0])->n_decisions, step + 1);
}

void
manifest_drop_decisions(struct manifest *m, seq_slot slot)
{
    put32(&entry_of(m, slot)->n_decisions, 0);
}

void
manifest_put_node(struct manifest *m, const struct kv_tree_export *l)
{
    struct manifest_node *n = node_of(m, l->node), *none = node_of(m, 0);
    _Atomic uint32_t *token = tokens_of(m, n), *place = places_of(n);
    const slice_id *host = l->host;
    uint64_t priority = 0;

    put32(&n->seq, get32(&n->seq) | 1);
    for (uint32_t g = 0; g < m->h.n_groups; g++) {
        put32(place++, l->live ? l->at[g] + 1 : 0);
        for (uint32_t i = n_host_of(&m->h.group[g]); i > 0; i--)
            put32(place++, l->live ? *host++ + 1 : 0);
        priority |= (uint64_t)l->priority[g] << 8 * g;
    }
    if (l->live) {
        put64(&n->priority, priority);
        put32(&n->parent, l->parent);
        put32(&n->n_tokens, l->n_tokens);
        put64(&n->key[0], l->key[0]);
        put64(&n->key[1], l->key[1]);
        for (uint32_t i = 0; i < l->n_tokens; i++)
            atomic_store_explicit(&token[i], (uint32_t)l->token[i], memory_order_release);
    }
    put32(&n->live, l->live);
    put32(&n->seq, get32(&n->seq) + 1);
    if (l->live && l->node > get32(&none->parent)) put32(&none->parent, l->node);
}

void
manifest_put_nodes(struct manifest *m, struct kv *kv)
{
    for (uint32_t n = kv_tree_n_exports(kv); n > 0; n--) {
        struct kv_tree_export l;

        kv_tree_export_take(kv, &l);
        manifest_put_node(m, &l);
    }
}

/* manifest.c - see manifest.h.
 *
 * Every store is a release and goes through put32() or put64(): what a kill leaves is the stores up to some
 * instant, in the order in which they stand here.
 */
#include "worker/kv/manifest.h"

#include "base/failpoint.h"

#include "worker/kv/kv_kind.h"
#include "worker/kv/kv_seat.h"

#include <errno.h>
#include <string.h>
#include <xxhash.h>

static void
put32(_Atomic uint32_t *at, uint32_t v)
{
    atomic_store_explicit(at, v, memory_order_release);
    FP(manifest_stored);
}

static void
put64(_Atomic uint64_t *at, uint64_t v)
{
    atomic_store_explicit(at, v, memory_order_release);
    FP(manifest_stored);
}

static uint32_t
get32(const _Atomic uint32_t *at)
{
    return atomic_load_explicit(at, memory_order_acquire);
}

static uint64_t
get64(const _Atomic uint64_t *at)
{
    return atomic_load_explicit(at, memory_order_acquire);
}

static struct manifest_row *
row_of(const struct manifest *m, uint32_t seat)
{
    check(seat < m->h.n_seats);
    return (void *)(m->base + m->h.row_at + (size_t)seat * m->h.row_bytes);
}

static _Atomic uint32_t *
table_of(const struct manifest *m, uint32_t seat, uint32_t group)
{
    check(group < m->h.n_groups);
    return (void *)((char *)row_of(m, seat) + m->h.group[group].table_at);
}

static struct manifest_node *
node_of(const struct manifest *m, uint32_t node)
{
    check(node < m->h.n_nodes);
    return (void *)(m->base + m->h.node_at + (size_t)node * m->h.node_bytes);
}

/* Of a node: [group][device, host]. */
static _Atomic uint32_t *
places_of(struct manifest_node *n)
{
    return (void *)(n + 1);
}

static _Atomic uint32_t *
tokens_of(const struct manifest *m, struct manifest_node *n)
{
    return places_of(n) + 2 * (size_t)m->h.n_groups;
}

static struct manifest_turn *
turn_of(const struct manifest *m, uint32_t seat, uint32_t turn)
{
    check(seat < m->h.n_seats && turn < m->h.n_turns);
    return (void *)(m->base + m->h.turn_at +
                    ((size_t)seat * m->h.n_turns + turn) * m->h.turn_bytes);
}

/* Steps of a search in which a sequence could be: as many as it has positions. Nothing is kept of what cannot be
 * forked. */
static uint32_t
most_turns(const struct kv_config *c)
{
    uint32_t n = 0;

    for (uint32_t g = 0; g < c->n_groups; g++) {
        const struct kv_group *k = &c->group[g];

        if (k->kind == KV_STATE || k->sinks) return 0;
        if (k->kind != KV_CROSS) n = MAX(n, k->max_entries * c->tokens_per_block);
    }
    return c->n_seats > 1 ? n : 0;
}

static void
lay_out(struct manifest_head *h, const struct kv_config *c, const uint64_t print[2],
        const uint64_t kv_id[2])
{
    uint64_t row = sizeof(struct manifest_row);

    *h = (struct manifest_head){
        .magic = MANIFEST_MAGIC,
        .version = MANIFEST_VERSION,
        .head_bytes = sizeof *h,
        .print = { print[0], print[1] },
        .kv_id = { kv_id[0], kv_id[1] },
        .arena_bytes = c->arena_bytes,
        .n_seats = c->n_seats,
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
            .n_sinks = kv_kind_sinks(g, c->tokens_per_block),
        };
        row += (uint64_t)g->max_entries * sizeof(slice_id);
        check(row < UINT32_MAX - CACHE_LINE);
    }
    h->row_bytes = (uint32_t)ROUND_UP(row, (uint64_t)CACHE_LINE);
    h->node_at = h->row_at + (uint64_t)h->row_bytes * h->n_seats;
    h->n_nodes = c->reuse ? kv_max_labels(c) + 1 : 0;
    h->node_bytes = ROUND_UP((uint32_t)sizeof(struct manifest_node) + 8 * c->n_groups +
                                 (uint32_t)sizeof(token_id) * c->tokens_per_block,
                             8u);
    h->turn_at = ROUND_UP(h->node_at + (uint64_t)h->node_bytes * h->n_nodes, (uint64_t)CACHE_LINE);
    h->turn_bytes = sizeof(struct manifest_turn);
    h->n_turns = most_turns(c);
    h->bytes = h->turn_at + (uint64_t)h->turn_bytes * h->n_turns * h->n_seats;
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
manifest_make(struct manifest *m, void *base, const struct kv_config *c, const uint64_t print[2],
              const uint64_t kv_id[2])
{
    m->base = base;
    lay_out(&m->h, c, print, kv_id);
    memcpy(base, &m->h, sizeof m->h);
}

void
manifest_secret(const struct manifest_head *h, uint64_t ret[4])
{
    memcpy(ret, h->hash_secret, sizeof h->hash_secret);
}

int
manifest_open(struct manifest *m, void *base, uint64_t bytes, const struct kv_config *c,
              const uint64_t print[2], const uint64_t kv_id[2], struct err *e)
{
    struct manifest_head found;

    lay_out(&m->h, c, print, kv_id);
    m->base = base;
    if (bytes < sizeof found)
        return err_set(e, -EBADMSG, "manifest of %llu bytes has no head",
                       (unsigned long long)bytes);
    memcpy(&found, base, sizeof found);
    if (found.magic != m->h.magic || found.version != m->h.version)
        return err_set(e, -EBADMSG, "manifest of version %u, this is %u",
                       found.magic == m->h.magic ? found.version : 0, MANIFEST_VERSION);
    if (memcmp(found.print, print, sizeof found.print))
        return err_set(e, -EBADMSG, "manifest of another model, precision or device");
    if (memcmp(found.kv_id, kv_id, sizeof found.kv_id))
        return err_set(e, -EBADMSG, "manifest of another KV arena");
    if (bytes != m->h.bytes || memcmp(&found, &m->h, sizeof found))
        return err_set(e, -EBADMSG, "manifest of other KV groups, seats or sizes");
    return 0;
}

static struct manifest_row *
row_begin(struct manifest *m, uint32_t seat)
{
    struct manifest_row *r = row_of(m, seat);

    put32(&r->seq, get32(&r->seq) | 1);
    return r;
}

static void
row_end(struct manifest_row *r)
{
    put32(&r->seq, get32(&r->seq) + 1);
}

static void
empty(struct manifest *m, struct manifest_row *r)
{
    put64(&r->id, 0);
    put32(&r->committed, 0);
    put32(&r->n_turns, 0);
    for (uint32_t i = 0; i < KV_SNAPSHOTS; i++) put32(&r->snapshot[i], 0);
    for (uint32_t g = 0; g < m->h.n_groups; g++) {
        put32(&r->end[g], 0);
        put32(&r->first[g], 0);
    }
}

static void
clear(struct manifest *m, uint32_t seat)
{
    struct manifest_row *r = row_of(m, seat);

    bool held =
        false; /* also by nobody: what is not to be taken over is written down all the same */

    for (uint32_t g = 0; g < m->h.n_groups; g++) held = held || get32(&r->end[g]) > 0;
    if (!get64(&r->id) && !held && !(get32(&r->seq) & 1)) return;
    r = row_begin(m, seat);
    empty(m, r);
    row_end(r);
}

static void
take(struct manifest *m, const struct manifest_owner *o)
{
    struct manifest_row *r = row_begin(m, o->seat);

    empty(m, r);
    put32(&r->n_cross, o->n_cross);
    put32(&r->n_tokens, o->n_tokens);
    put32(&r->member, o->member);
    put32(&r->n_beams, o->n_beams);
    for (int i = 0; i < 2; i++) {
        put64(&r->tokens_hash[i], o->tokens_hash[i]);
        put64(&r->source_hash[i], o->source_hash[i]);
    }
    put64(&r->id, o->id);
    row_end(r);
}

/* A table grows at its end and is dropped from its start. */
static void
set(struct manifest *m, struct manifest_row *r, const struct kv_edit *e)
{
    _Atomic uint32_t *table = table_of(m, e->seat, e->group);
    uint32_t first = get32(&r->first[e->group]), end = get32(&r->end[e->group]);
    const struct manifest_group *g = &m->h.group[e->group];

    if (g->kind == KV_STATE && e->entry >= g->n_layers)
        put32(&r->snapshot[e->entry / g->n_layers - 1], (uint32_t)e->pos);
    if (e->entry > end) { /* a window that begins within a hit */
        check(first == end || end <= g->n_sinks);
        put32(&r->end[e->group], end = e->entry);
        put32(&r->first[e->group], first = e->entry);
    }
    if (e->at == SLICE_NONE) {
        check(e->entry == MAX(first, g->n_sinks) && e->entry < end);
        put32(&r->first[e->group], e->entry + 1);
    } else if (e->entry < end) { /* told again after a death; or a beam goes on from another */
        check(e->entry >= first || e->entry < g->n_sinks);
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
    struct manifest_row *r = NULL;
    uint32_t i = 0, seat = 0;

    for (; i < n_edits && edit[i].op == EDIT_END; i++) clear(m, edit[i].seat);
    for (uint32_t k = 0; k < n_owners; k++) take(m, &owner[k]);
    for (; i < n_edits; i++) {
        check(edit[i].op == EDIT_SET);
        if (r && edit[i].seat != seat) {
            row_end(r);
            r = NULL;
        }
        if (!r) r = row_begin(m, seat = edit[i].seat);
        set(m, r, &edit[i]);
    }
    if (r) row_end(r);
}

void
manifest_commit(struct manifest *m, uint32_t seat, uint32_t committed)
{
    put32(&row_of(m, seat)->committed, committed);
}

int
manifest_read(const struct manifest *m, uint32_t seat, slice_id *room, struct manifest_found *ret)
{
    const struct manifest_row *r = row_of(m, seat);

    *ret = (struct manifest_found){
        .row = { .id = get64(&r->id),
                 .seat = seat,
                 .committed = get32(&r->committed),
                 .cross_tokens = get32(&r->n_cross) },
        .n_turns = MIN(get32(&r->n_turns), m->h.n_turns),
        .owner = { .seat = seat,
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
        const _Atomic uint32_t *table = table_of(m, seat, g);
        uint32_t first = get32(&r->first[g]), end = get32(&r->end[g]);

        if (first > end || end > m->h.group[g].max_entries) return -EBADMSG;
        ret->row.entry[g] = room;
        ret->row.n_entries[g] = end;
        for (uint32_t i = 0; i < end; i++) {
            bool has = i >= first || i < m->h.group[g].n_sinks;

            *room = has ? get32(&table[i]) : SLICE_NONE;
            if (has && *room == SLICE_NONE) return -EBADMSG; /* only `first` says dropped */
            room++;
        }
    }
    return 1;
}

static float
float_of(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t
bits_of(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

void
manifest_turned(struct manifest *m, const uint32_t *seat, uint32_t n_beams, uint32_t turn,
                const struct manifest_move *move)
{
    if (turn >= m->h.n_turns || get32(&row_of(m, seat[0])->n_turns) != turn) return;
    for (uint32_t r = 0; r < n_beams; r++) {
        struct manifest_turn *t = turn_of(m, seat[r], turn);

        put32(&t->token, (uint32_t)move[r].token);
        put32(&t->score, bits_of(move[r].score));
        put32(&t->ended_token, (uint32_t)move[r].ended_token);
        put32(&t->ended_score, bits_of(move[r].ended_score));
        put32(&t->slot, move[r].slot | (uint32_t)move[r].ended_slot << 8);
    }
    put32(&row_of(m, seat[0])->n_turns, turn + 1);
}

void
manifest_turn(const struct manifest *m, const uint32_t *seat, uint32_t n_beams, uint32_t turn,
              struct manifest_move *ret)
{
    for (uint32_t r = 0; r < n_beams; r++) {
        const struct manifest_turn *t = turn_of(m, seat[r], turn);
        uint32_t slot = get32(&t->slot);

        ret[r] = (struct manifest_move){ .token = (token_id)get32(&t->token),
                                         .ended_token = (token_id)get32(&t->ended_token),
                                         .score = float_of(get32(&t->score)),
                                         .ended_score = float_of(get32(&t->ended_score)),
                                         .slot = (uint8_t)slot,
                                         .ended_slot = (uint8_t)(slot >> 8) };
    }
}

/* All but the one that is gone on from: their blocks are free. */
static void
forget_snapshots(struct manifest *m, uint32_t seat, uint32_t but)
{
    struct manifest_row *r = row_of(m, seat);

    for (uint32_t i = 0; i < KV_SNAPSHOTS; i++)
        if (get32(&r->snapshot[i]) != but) put32(&r->snapshot[i], 0);
}

static void
put_label(struct manifest *m, const struct kv_label *l)
{
    struct manifest_node *n = node_of(m, l->node), *none = node_of(m, 0);
    _Atomic uint32_t *token = tokens_of(m, n);
    uint64_t priority = 0;

    put32(&n->seq, get32(&n->seq) | 1);
    for (uint32_t g = 0; g < m->h.n_groups; g++) {
        put32(&places_of(n)[2 * g], l->live ? l->at[g] + 1 : 0);
        put32(&places_of(n)[2 * g + 1], l->live ? l->host[g] + 1 : 0);
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
manifest_labels(struct manifest *m, struct kv *kv)
{
    for (uint32_t n = kv_n_labels(kv); n > 0; n--) {
        struct kv_label l;

        kv_label_take(kv, &l);
        put_label(m, &l);
    }
}

/* 1: *ret, its tokens in token[tokens_per_block]; 0: no node, or half edited; -EBADMSG: it cannot be. */
static int
read_label(const struct manifest *m, uint32_t node, token_id *token, struct kv_label *ret)
{
    struct manifest_node *n = node_of(m, node);
    uint64_t priority = get64(&n->priority);

    *ret = (struct kv_label){ .node = node,
                              .parent = get32(&n->parent),
                              .live = true,
                              .key = { get64(&n->key[0]), get64(&n->key[1]) },
                              .n_tokens = get32(&n->n_tokens),
                              .token = token };
    if ((get32(&n->seq) & 1) || !get32(&n->live)) return 0;
    if (ret->n_tokens > m->h.tokens_per_block) return -EBADMSG;
    for (uint32_t i = 0; i < ret->n_tokens; i++) token[i] = (token_id)get32(&tokens_of(m, n)[i]);
    for (uint32_t g = 0; g < m->h.n_groups; g++) {
        ret->at[g] = get32(&places_of(n)[2 * g]) - 1;
        ret->host[g] = get32(&places_of(n)[2 * g + 1]) - 1;
        ret->priority[g] = (uint8_t)(priority >> 8 * g);
    }
    return 1;
}

static bool
is_open(const struct manifest *m, const struct kv *kv, uint32_t node)
{
    return node > 0 && node < m->h.n_nodes && get32(&node_of(m, node)->live) &&
           !kv_label_known(kv, node);
}

/* The highest above the node that is yet to be looked at; 0: there is none, they go round in circles. */
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

/* The node, after all above it: taken, or cleared before its blocks are anybody's. */
static void
adopt_label(struct manifest *m, struct kv *kv, bool host, uint32_t node, struct manifest_adopted *a)
{
    token_id token[KV_MAX_TOKENS];
    struct kv_label l;

    while (is_open(m, kv, node)) {
        uint32_t top = top_of(m, kv, node), at = top ? top : node;
        int r = top ? read_label(m, at, token, &l) : -EBADMSG;
        bool whole = r > 0;

        if (whole) r = kv_label_adopt(kv, &l, host);
        a->labels += whole && r == 0;
        a->no_labels += r == -EBADMSG;
        if (!whole || r < 0) put_label(m, &(struct kv_label){ .node = at });
    }
}

static void
adopt_labels(struct manifest *m, struct kv *kv, bool host, struct manifest_adopted *a)
{
    uint32_t n = m->h.n_nodes ? MIN(get32(&node_of(m, 0)->parent), m->h.n_nodes - 1) : 0;

    for (uint32_t i = 1; i <= n; i++) adopt_label(m, kv, host, i, a);
}

struct manifest_adopted
manifest_adopt(struct manifest *m, struct kv *kv, bool host, struct manifest_found *found,
               slice_id *room)
{
    struct manifest_adopted a = { 0 };

    for (uint32_t seat = 0; seat < m->h.n_seats; seat++) {
        int r = manifest_read(m, seat, room, &found[seat]);

        if (r > 0) r = kv_adopt(kv, &found[seat].row);
        if (r < 0 && r != -ENODATA) a.no_rows++;
        if (r == 0 && kv_live(kv, seat)) {
            found[seat].resume = kv_row_resume(kv, &found[seat].row);
            forget_snapshots(m, seat, found[seat].resume);
            a.rows++;
        } else {
            found[seat].owner.id = 0;
            clear(m, seat);
        }
    }
    adopt_labels(m, kv, host, &a);
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
is_of(const struct manifest_owner *o, const token_id *token, const token_id *source,
      uint32_t n_source)
{
    return same_tokens(token, o->n_tokens, o->tokens_hash) && o->n_cross == n_source &&
           same_tokens(source, n_source, o->source_hash);
}

int
manifest_claim(struct manifest_found *found, uint32_t n_seats, req_id id, uint32_t member,
               const token_id *token, uint32_t n, const token_id *source, uint32_t n_source,
               uint32_t *resume)
{
    for (uint32_t seat = 0; seat < n_seats; seat++) {
        struct manifest_owner *o = &found[seat].owner;

        if (o->id != id || o->member != member) continue;
        *resume = 0;
        if (o->n_tokens <= n && is_of(o, token, source, n_source)) *resume = found[seat].resume;
        if (*resume >= n) *resume = found[seat].resume == found[seat].row.committed ? n - 1 : 0;
        o->id = 0;
        return (int)seat;
    }
    return -ENOENT;
}

uint32_t
manifest_claim_search(struct manifest_found *found, uint32_t n_seats, req_id id, uint32_t n_beams,
                      const token_id *token, uint32_t n, const token_id *source, uint32_t n_source,
                      uint32_t *seat)
{
    uint32_t n_turns = 0;

    for (uint32_t i = 0; i < n_beams; i++) {
        const struct manifest_owner *o;

        for (seat[i] = 0; seat[i] < n_seats; seat[i]++) {
            o = &found[seat[i]].owner;
            if (o->id == id && o->member == i && o->n_beams == n_beams) break;
        }
        if (seat[i] == n_seats) return 0;
        o = &found[seat[i]].owner;
        if (o->n_tokens != n || !is_of(o, token, source, n_source)) return 0;
        if (i == 0) n_turns = found[seat[i]].n_turns;
        if (n_turns == 0 || found[seat[i]].resume < n - 1 + n_turns) return 0;
    }
    for (uint32_t i = 0; i < n_beams; i++) found[seat[i]].owner.id = 0;
    return n_turns;
}

int
manifest_forget(struct manifest_found *found, uint32_t n_seats, req_id id)
{
    for (uint32_t seat = 0; seat < n_seats; seat++) {
        if (found[seat].owner.id != id) continue;
        found[seat].owner.id = 0;
        return (int)seat;
    }
    return -ENOENT;
}

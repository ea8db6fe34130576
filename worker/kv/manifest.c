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
    };
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
    h->bytes = h->row_at + (uint64_t)h->row_bytes * h->n_seats;
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

    bool held = false; /* also by nobody: what is not to be taken over is written down all the same */

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
        .owner = { .seat = seat,
                   .n_tokens = get32(&r->n_tokens),
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

/* All but the one that is gone on from: their blocks are free. */
static void
forget_snapshots(struct manifest *m, uint32_t seat, uint32_t but)
{
    struct manifest_row *r = row_of(m, seat);

    for (uint32_t i = 0; i < KV_SNAPSHOTS; i++)
        if (get32(&r->snapshot[i]) != but) put32(&r->snapshot[i], 0);
}

uint32_t
manifest_adopt(struct manifest *m, struct kv *kv, struct manifest_found *found, slice_id *room,
               uint32_t *n_refused)
{
    uint32_t n = 0;

    *n_refused = 0;
    for (uint32_t seat = 0; seat < m->h.n_seats; seat++) {
        int r = manifest_read(m, seat, room, &found[seat]);

        if (r > 0) r = kv_adopt(kv, &found[seat].row);
        if (r < 0 && r != -ENODATA) ++*n_refused;
        if (r == 0 && kv_live(kv, seat)) {
            found[seat].resume = kv_row_resume(kv, &found[seat].row);
            forget_snapshots(m, seat, found[seat].resume);
            n++;
        } else {
            found[seat].owner.id = 0;
            clear(m, seat);
        }
    }
    kv_adopt_end(kv);
    return n;
}

static bool
same_tokens(const token_id *token, uint32_t n, const uint64_t hash[2])
{
    uint64_t here[2];

    manifest_hash(token, n, here);
    return here[0] == hash[0] && here[1] == hash[1];
}

int
manifest_claim(struct manifest_found *found, uint32_t n_seats, req_id id, const token_id *token,
               uint32_t n, const token_id *source, uint32_t n_source, uint32_t *resume)
{
    for (uint32_t seat = 0; seat < n_seats; seat++) {
        struct manifest_owner *o = &found[seat].owner;

        if (o->id != id) continue;
        *resume = 0;
        if (o->n_tokens <= n && same_tokens(token, o->n_tokens, o->tokens_hash) &&
            o->n_cross == n_source && same_tokens(source, n_source, o->source_hash))
            *resume = found[seat].resume;
        if (*resume >= n) *resume = found[seat].resume == found[seat].row.committed ? n - 1 : 0;
        o->id = 0;
        return (int)seat;
    }
    return -ENOENT;
}

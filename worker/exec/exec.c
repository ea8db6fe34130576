/* exec.c - opens the executor, starts and finishes steps; see exec.h. */
#include "worker/exec/exec.h"

#include "base/clock.h"
#include "worker/exec/exec_internal.h"

#include <poll.h>
#include <unistd.h>

/* LOGITS_BYTES: limit of the logits computed at a time (x->piece logit rows). The weights of the
 * head are read once per piece, so a piece has a row for every slot if that stays below the limit.
 * LEAST_PIECE: least x->piece. */
enum { DEFAULT_EDITS = 4096, LOGITS_BYTES = 512 << 20, LEAST_PIECE = 64 };

/* Refuses a KV dtype that does not fit the slices of the group: ops would read wrong K and V. */
static int
check_kv_dtype(const struct exec *x, const struct kv_config *kv, const struct layer_shape *s,
               struct err *e)
{
    const struct kv_group *g = &kv->group[s->group];
    uint64_t bytes = dtype_bytes(x->c.kv_dtype,
                                 (size_t)s->n_kv_heads * kv->tokens_per_block * s->head_dim);

    if (s->mixer != MIX_ATTENTION) return 0;
    check(s->group < kv->n_groups);
    if (ROUND_UP(bytes, 128) == g->slice_bytes) return 0;
    return err_set(e, -EINVAL,
                   "KV group %u has slices of %u bytes, but %u KV heads * head size %u * %u tokens "
                   "in %s need %llu bytes (internal error)",
                   s->group, g->slice_bytes, s->n_kv_heads, s->head_dim, kv->tokens_per_block,
                   dtype_name(x->c.kv_dtype), (unsigned long long)ROUND_UP(bytes, 128));
}

/* Sets x->per[group], with which kv_moves.c copies only the used tokens of a block, unless layers
 * of the group have different layouts. */
static void
set_token_layout(struct exec *x, const struct kv_config *kv, uint32_t group)
{
    size_t head = 0, token = 0;

    for (uint32_t i = 0; i < x->m->shape.n_layers; i++) {
        const struct layer_shape *s = &x->m->shape.layer[i];

        if (s->mixer != MIX_ATTENTION || s->group != group) continue;
        if (token && token != dtype_bytes(x->c.kv_dtype, s->head_dim)) return;
        token = dtype_bytes(x->c.kv_dtype, s->head_dim);
        head = token * kv->tokens_per_block;
        if (head % 16 || head * s->n_kv_heads != kv->group[group].slice_bytes) return;
    }
    x->per[group].head = head;
    x->per[group].token = token;
}

static struct kv_view
kv_view(const struct exec *x, const struct kv_config *kv, const struct arena *blocks,
        const struct layer_shape *s, uint32_t in_group)
{
    const struct kv_group *g = &kv->group[s->group];

    if (s->mixer == MIX_NONE) return (struct kv_view){ 0 };
    check(in_group < g->n_layers);
    if (s->mixer == MIX_STATE)
        return (struct kv_view){ .base = blocks->base,
                                 .table = x->tables.table[s->group] + in_group,
                                 .table_stride = x->tables.stride[s->group],
                                 .slice_bytes = g->slice_bytes };
    return (struct kv_view){
        .base = (char *)blocks->base + (uint64_t)in_group * g->n_parts * g->slice_bytes,
        .table = x->tables.table[s->group],
        .table_stride = x->tables.stride[s->group],
        .slice_bytes = g->slice_bytes,
        .n_parts = g->n_parts,
        .tokens_per_block = kv->tokens_per_block,
        .n_kv_heads = s->n_kv_heads,
        .head_dim = s->head_dim,
        .dtype = x->c.kv_dtype,
        .k_scale = 1,
        .v_scale = 1,
    };
}

static void
set_kv_views(struct exec *x, struct exec_lane *l, const struct kv_config *kv,
             const struct arena *blocks)
{
    const struct model_shape *s = &x->m->shape;

    for (uint32_t i = 0; i < s->n_layers; i++) {
        l->step.kv[i] = kv_view(x, kv, blocks, &s->layer[i], s->layer[i].in_group);
        if (s->n_encoder_layers)
            l->step.cross_kv[i] = kv_view(x, kv, blocks, &s->cross, s->cross.in_group + i);
    }
}

void
exec_blocks(struct exec *x, const struct kv_config *kv, const struct arena *blocks)
{
    x->kv = blocks->base;
    for (uint32_t i = 0; i < x->c.n_lanes; i++) set_kv_views(x, &x->lane[i], kv, blocks);
}

void
exec_host(struct exec *x, const struct host_memory *host)
{
    x->host_kv = host->base;
}

static void
set_sizes(struct exec *x, const struct exec_config *c, const struct model *m,
          const struct kv_config *kv)
{
    const struct model_shape *s = &m->shape;
    uint32_t most = (uint32_t)(LOGITS_BYTES / (sizeof(float) * s->vocab));

    check(c->n_lanes && c->n_lanes <= MAX_LANES && c->max_tokens && kv->n_slots);
    x->m = m;
    x->c = *c;
    if (!c->max_edits) x->c.max_edits = DEFAULT_EDITS;
    if (!c->max_copies) x->c.max_copies = kv->n_slots * kv->n_groups;
    if (!s->n_encoder_layers) x->c.max_enc_tokens = 0;
    x->n_slots = kv->n_slots;
    x->scratch_rows = MAX(x->c.max_tokens, x->c.max_enc_tokens);
    x->piece = MIN(MAX(MIN(most, x->n_slots), (uint32_t)LEAST_PIECE), x->c.max_tokens);
    x->top_most = MIN(s->vocab, (uint32_t)MAX_TOP);
}

static int
open_lane(struct exec *x, struct exec_lane *l, uint32_t units, const struct kv_config *kv,
          struct err *e)
{
    int r;

    l->units = MAX(units, 1u);
    TRY(x->op->lane.open(x->gpu, l->units, &l->lane, e));
    memcpy(l->step.scratch, l->scratch, sizeof l->step.scratch);
    l->step.lane = l->lane;
    /* Until exec_blocks() any mapped memory is valid: the warm-up is padding and reads no block. */
    set_kv_views(x, l, kv, &x->arena);
    if (!gpu_facts(x->gpu).graphs) return 0;
    r = warm_up(x, l);
    if (r < 0) return err_set(e, r, "the first run of the kernels failed: %s", gpu_why(x->gpu));
    l->graphs.capacity = x->c.graphs_memory / x->c.n_lanes;
    return 0;
}

int
exec_open(struct exec **ret, const struct exec_config *c, struct gpu *g, const struct model *m,
          const struct kv_config *kv, struct err *e)
{
    CLEAN(exec_close_at) struct exec *x = calloc(1, sizeof *x);
    const struct model_shape *s = &m->shape;
    int r;

    if (!x) return err_set(e, -ENOMEM, "cannot allocate the executor: no memory");
    x->gpu = g;
    x->op = gpu_ops(g);
    set_sizes(x, c, m, kv);
    for (uint32_t i = 0; i < s->n_layers; i++) TRY(check_kv_dtype(x, kv, &s->layer[i], e));
    if (s->n_encoder_layers) TRY(check_kv_dtype(x, kv, &s->cross, e));
    TRY(scratch_open(x, kv, e));
    for (uint32_t i = 0; i < kv->n_groups; i++) {
        x->bytes.slice[i] = kv->group[i].slice_bytes;
        x->bytes.block[i] = kv_block_bytes(&kv->group[i]);
        set_token_layout(x, kv, i);
    }
    for (uint32_t i = 0; i < c->n_lanes; i++)
        TRY(open_lane(x, &x->lane[i],
                      c->lane_units[i] ? c->lane_units[i] : gpu_facts(g).units / c->n_lanes, kv,
                      e));
    r = exec_partition_open(x);
    if (r < 0) return err_set(e, r, "%s", gpu_why(g));
    *ret = TAKE(x);
    return 0;
}

/* Closes a lane. Waits for its steps in flight, because a running graph must not be dropped. */
static void
close_lane(struct exec *x, struct exec_lane *l)
{
    if (!l->lane) return;
    if (l->graphs.n && l->finished < l->started)
        gpu_wait(l->lane, l->outcome[(l->started - 1) % OUTCOMES].r.step, UINT64_MAX);
    drop_graphs(x, l, GRAPHS_ALL);
    x->op->lane.close(l->lane);
}

struct exec *
exec_close(struct exec *x)
{
    if (!x) return NULL;
    for (unsigned i = 0; i < MAX_LANES; i++) close_lane(x, &x->lane[i]);
    scratch_close(x);
    free(x);
    return NULL;
}

void
exec_set_sampling(struct exec *x, uint32_t slot, const struct sampling *s)
{
    check(slot < x->n_slots && s->n_eos <= ARRAY_LEN(s->eos));
    x->slot[slot] = *s;
}

void
exec_mark_tokens(struct exec *x, uint32_t slot, const token_id *token, uint32_t n)
{
    const struct token_history *h = &x->initial;
    uint32_t *bits = h->seen + (size_t)slot * h->seen_words;

    check(n <= h->stride);
    x->n_initial[slot] = wants_history(&x->slot[slot]) ? n : 0;
    if (!x->n_initial[slot]) return;
    memset(bits, 0, h->seen_words * sizeof *bits);
    for (uint32_t i = 0; i < n; i++) bits[(uint32_t)token[i] / 32] |= UINT32_C(1) << token[i] % 32;
    memcpy(h->token + (size_t)slot * h->stride, token, n * sizeof *token);
}

/* Returns true if every segment has one token and one logit row to sample from. */
static bool
decodes_only(const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_segments; i++)
        if (b->segment[i].n_tokens != 1 || b->segment[i].first_logit != i ||
            (b->segment[i].flags & SEGMENT_BEAM))
            return false;
    return b->n_logits == b->n_segments;
}

/* Returns the number of segments from the first segment with several tokens on. */
static uint32_t
n_longer_segments(const struct batch *b)
{
    uint32_t i = 0;

    while (i < b->n_segments && b->segment[i].n_tokens == 1) i++;
    return b->n_segments - i;
}

/* Returns the kind of graph that can run the decoder of a batch. */
static enum graphs_kind
kind_of(const struct batch *b)
{
    uint32_t n_sources = 0, n_tokens = 0;

    if (decodes_only(b)) return GRAPHS_DECODE;
    if (n_longer_segments(b)) return GRAPHS_PREFILL;
    for (uint32_t i = 0; i < b->n_segments; i++) {
        bool first = !(b->segment[i].flags & SEGMENT_SAME_SOURCE);

        n_sources += first;
        n_tokens = first ? 1 : n_tokens + 1;
        if (n_tokens > GRAPHS_BEAM_ROWS) return GRAPHS_PREFILL;
    }
    return n_sources <= b->n_segments / 2 ? GRAPHS_BEAMS : GRAPHS_PREFILL;
}

/* Stages the arrays of a step, padded to the bucket if the decoder may run as a graph. */
static void
stage_step(struct exec *x, struct exec_lane *l, struct stage *st, const struct batch *b,
           struct outcome *o, struct todo *t)
{
    enum graphs_kind kind = kind_of(b);

    if (b->bucket && l->graphs.capacity && n_longer_segments(b) <= graphs_segments(b->bucket) &&
        (kind != GRAPHS_PREFILL || b->bucket <= GRAPHS_PREFILL_ROWS) &&
        !(kind == GRAPHS_DECODE && tensor_output_wanted(x, b)))
        t->decode = graphs_use(&l->graphs, kind, b->bucket, b->partition, b->step);
    if (t->decode) t->n_single_token = MIN(b->bucket, x->n_slots);
    st->step.used = st->encode.used = st->project.used = 0;
    stage_decoder(x, l, st, b, t);
    sampling_stage(x, st, b, o, t);
    tensor_output_stage(x, b, o, t);
    stage_marked(x, &st->step, b, t);
    stage_moves(x, &st->step, b, t);
    if (x->c.max_enc_tokens) stage_sources(x, l, st, b, t);
    o->r.step = b->step;
    o->r.lane = b->lane;
}

int
exec_start(struct exec *x, const struct batch *b, struct err *e)
{
    struct exec_lane *l = &x->lane[b->lane];
    struct stage *st = &l->stage[l->started % STAGES];
    struct outcome *o = &l->outcome[l->started % OUTCOMES];
    struct todo t = { 0 };
    int r;

    check(b->lane < x->c.n_lanes && l->started - l->finished < STAGES);
    check(b->partition < MAX_PARTITIONS);
    TRY(stage_refuse(x, b, e));
    x->op->profile.range_begin(l->lane, batch_phase(b->work));
    x->op->profile.range_begin(l->lane, "stage");
    stage_step(x, l, st, b, o, &t);
    x->op->profile.range_end(l->lane);
    if (l->started == l->finished) l->since = clock_now();
    r = exec_partition_take(x, l, &x->part[b->partition][b->lane]);
    if (r == 0) r = queue_step(x, l, st, b, &t, o);
    x->op->profile.range_end(l->lane);
    if (r < 0)
        return err_set(e, r, "cannot start step %llu of lane %u: %s", (unsigned long long)b->step,
                       b->lane, gpu_why(x->gpu));
    l->started++;
    return 0;
}

int
exec_fd(const struct exec *x, unsigned lane)
{
    return x->op->lane.fd(x->lane[lane].lane);
}

void
exec_gaps(struct exec *x, uint64_t *n, uint64_t *ns)
{
    *n = *ns = 0;
    for (unsigned i = 0; i < x->c.n_lanes; i++) {
        uint64_t gaps, of;

        x->op->profile.lane_gaps(x->lane[i].lane, &gaps, &of);
        *n += gaps;
        *ns += of;
    }
}

uint64_t
exec_done(const struct exec *x, unsigned lane)
{
    return x->op->lane.done(x->lane[lane].lane);
}

static bool
is_done(const struct exec *x, const struct exec_lane *l)
{
    return l->finished < l->started &&
           (x->op->lane.done(l->lane) >= l->outcome[l->finished % OUTCOMES].r.step ||
            x->op->lane.error(l->lane) < 0);
}

/* Returns true if the oldest step is done; otherwise the fd is drained. A step may end between the
 * first check and the drain: the second check sees that step. */
static bool
is_done_or_fd_empty(const struct exec *x, const struct exec_lane *l)
{
    struct pollfd p = { .fd = x->op->lane.fd(l->lane), .events = POLLIN };
    uint64_t n;

    if (is_done(x, l)) return true;
    if (p.fd >= 0 && poll(&p, 1, 0) == 1 && read(p.fd, &n, sizeof n) == sizeof n)
        return is_done(x, l);
    return false;
}

int
exec_finish(struct exec *x, unsigned lane, const struct batch_result **r)
{
    struct exec_lane *l = &x->lane[lane];
    struct outcome *o;
    nsec now;

    check(lane < x->c.n_lanes);
    if (!is_done_or_fd_empty(x, l)) return -EAGAIN;
    o = &l->outcome[l->finished++ % OUTCOMES];
    now = clock_now();
    l->step_ns = l->step_ns ? (7 * l->step_ns + (now - l->since)) / 8 : now - l->since;
    l->since = now;
    o->r.status = x->op->lane.error(l->lane) < 0 ? -EIO : 0;
    if (!o->r.status) sampling_finish(o);
    *r = &o->r;
    return 0;
}

uint64_t
exec_scratch_bytes(const struct exec *x)
{
    return x->arena.bytes;
}

uint64_t
exec_scratch_need(const struct exec_config *c, const struct model *m, const struct kv_config *kv)
{
    struct exec *x = calloc(1, sizeof *x);
    uint64_t bytes = 0;

    if (x) {
        set_sizes(x, c, m, kv);
        bytes = scratch_size(x, kv);
        bytes += x->host_bytes;
    }
    free(x);
    return bytes;
}

void
exec_graphs(const struct exec *x, uint64_t *n, uint64_t *bytes)
{
    *n = *bytes = 0;
    for (uint32_t i = 0; i < x->c.n_lanes; i++) {
        const struct graphs *g = &x->lane[i].graphs;

        *bytes += g->bytes;
        for (uint32_t k = 0; k < g->n; k++) *n += g->slot[k].graph != NULL;
    }
}

/* sim_config.c - see sim_config.h. */
#include "sim/sim_config.h"

#include "base/opt.h"

#include <errno.h>
#include <string.h>

struct group_args {
    struct kv_group g;
    uint32_t kind;
    double share, attend;
};
struct sched_args {
    struct scheduler_limits l;
    uint32_t policy, chunks, enc_layers, n_enc_layers;
    char enc_batch[100];
};

/* clang-format off */
static const struct opt cache_opts[] = {
    { "block", OPT_U32, OPT_AT(kv_config, tokens_per_block), .min = 1, .max = 1024, .arg = "TOKENS",
      .sentence = "tokens a block" },
    { "arena", OPT_BYTES, OPT_AT(kv_config, arena_bytes), .arg = "BYTES", .sentence = "bytes of the arena" },
    { "host", OPT_BYTES, OPT_AT(kv_config, host_bytes), .arg = "BYTES", .sentence = "of the host, for what is evicted" },
    { "slab", OPT_U32, OPT_AT(kv_config, slab_bytes), .arg = "BYTES",
      .sentence = "what a pool draws at a time; 0: as the worker chooses" },
    { "slots", OPT_U32, OPT_AT(kv_config, n_slots), .min = 1, .max = 65536, .arg = "N",
      .sentence = "rows of the block tables" },
    { "fifo", OPT_BOOL, OPT_AT(kv_config, fifo), .sentence = "blocks are used again strictly in the order they were freed" },
    { "reuse", OPT_BOOL, OPT_AT(kv_config, reuse), .sentence = "what one computed others find" },
    { "copy_partial", OPT_BOOL, OPT_AT(kv_config, copy_partial), .sentence = "a part of a block that others hold is copied" },
    { "events", OPT_U32, OPT_AT(kv_config, max_events), .max = 1 << 20, .arg = "N", .sentence = "kept for readers" },
    { "extra_ids", OPT_BOOL, OPT_AT(kv_config, extra_ids), .sentence = "tokens have extra ids" },
    { 0 }
};
static const struct opt group_opts[] = {
    { "window", OPT_U32, OPT_AT(group_args, g.window), .arg = "TOKENS", .sentence = "of a window group: what a query sees" },
    { "sinks", OPT_U32, OPT_AT(group_args, g.sinks), .arg = "TOKENS", .sentence = "of a window group: the first ones stay" },
    { "interval", OPT_U32, OPT_AT(group_args, g.interval), .arg = "TOKENS", .sentence = "of a state group: from one snapshot to the next; 0: none" },
    { "layers", OPT_U32, OPT_AT(group_args, g.n_layers), "1", .min = 1, .max = 4096, .arg = "N", .sentence = "layers of the group" },
    { "parts", OPT_U32, OPT_AT(group_args, g.n_parts), "2", .min = 1, .max = 2, .arg = "N", .sentence = "2: K and V" },
    { "slice", OPT_U32, OPT_AT(group_args, g.slice_bytes), "128", .min = 128, .max = 1 << 28, .arg = "BYTES",
      .sentence = "one layer's K of one block" },
    { "max", OPT_U32, OPT_AT(group_args, g.max_blocks), .arg = "BLOCKS", .sentence = "blocks at most; 0: what the arena has" },
    { "share", OPT_F64, OPT_AT(group_args, share), .min = 0, .max = 1, .arg = "X", .sentence = "of the arena, a soft target" },
    { "attend", OPT_F64, OPT_AT(group_args, attend), .min = 0, .max = 1e15, .arg = "FLOP", .sentence = "a row and key" },
    { 0 }
};
static const struct opt limit_opts[] = {
    { "seqs", OPT_U32, OPT_AT(sched_args, l.max_seqs), .min = 1, .max = 65536, .arg = "N", .sentence = "requests at once" },
    { "rows", OPT_U32, OPT_AT(sched_args, l.max_tokens), .min = 1, .max = 1 << 24, .arg = "N", .sentence = "decoder rows in a step" },
    { "len", OPT_U32, OPT_AT(sched_args, l.max_len), .min = 1, .max = 1 << 24, .arg = "TOKENS", .sentence = "of one request, prompt and answer" },
    { "unit", OPT_U32, OPT_AT(sched_args, l.chunk_unit), .arg = "TOKENS", .sentence = "chunks are multiples of it; 0: as the worker chooses" },
    { "sources", OPT_U32, OPT_AT(sched_args, l.max_enc_tokens), .arg = "TOKENS", .sentence = "source tokens that are encoded at once" },
    { "encoder_layers", OPT_U32, OPT_AT(sched_args, n_enc_layers), .max = 1000, .arg = "N", .sentence = "0: decoder-only" },
    { "encoder_slice", OPT_U32, OPT_AT(sched_args, enc_layers), .max = 1000, .arg = "N", .sentence = "encoder layers a step; 0: all" },
    { "policy", OPT_ENUM, OPT_AT(sched_args, policy), .choices = "no_evict|max_utilization|static|max_requests",
      .arg = "NAME", .sentence = "who is admitted, and whether one that runs may be preempted for another" },
    { "chunk", OPT_U32, OPT_AT(sched_args, l.max_chunk), .arg = "TOKENS", .sentence = "of one prompt in a step, at most; 0: as many as there are" },
    { "chunks", OPT_ENUM, OPT_AT(sched_args, chunks), .choices = "first_come|equal", .arg = "NAME",
      .sentence = "rows for prompts: the first takes what it can, or each a unit in turn" },
    { "quantum", OPT_U32, OPT_AT(sched_args, l.quantum), .arg = "TOKENS", .sentence = "a turn of each client; 0: by arrival alone" },
    { "pages", OPT_U32, OPT_AT(sched_args, l.pages), .arg = "N", .sentence = "of the device, for adapters" },
    { "encoder_work", OPT_U64, OPT_AT(sched_args, l.enc_work), .arg = "N", .sentence = "rows times layers of sources in a step that generates; 0: no bound" },
    { "encoder_batch", OPT_STR, OPT_AT(sched_args, enc_batch), .arg = "LIST", .sentence = "sources wait, beside somebody who generates, until so many can start" },
    { "encoder_wait", OPT_NSEC, OPT_AT(sched_args, l.enc_wait), .arg = "TIME", .sentence = "no longer than that; an iteration of a scenario is 1ns" },
    { "prompt_batch", OPT_U32, OPT_AT(sched_args, l.prefill_batch_tokens), .arg = "TOKENS", .sentence = "prompts wait, beside somebody who generates, until they are that many tokens" },
    { "prompt_wait", OPT_NSEC, OPT_AT(sched_args, l.prompt_wait), .arg = "TIME", .sentence = "no longer than that" },
    { 0 }
};
static const struct opt cost_opts[] = {
    { "weights", OPT_BYTES, OPT_AT(sim_cost, work.weights), .arg = "BYTES", .sentence = "that a step with decoder rows reads" },
    { "encoder_weights", OPT_BYTES, OPT_AT(sim_cost, work.encoder_weights), .arg = "BYTES", .sentence = "that a step with source rows reads" },
    { "row_flops", OPT_F64, OPT_AT(sim_cost, work.row_flops), .min = 0, .max = 1e18, .arg = "FLOP", .sentence = "a decoder row, attention aside" },
    { "encoder_flops", OPT_F64, OPT_AT(sim_cost, work.encoder_flops), .min = 0, .max = 1e18, .arg = "FLOP", .sentence = "a source row" },
    { "bandwidth", OPT_F64, OPT_AT(sim_cost, bandwidth), .min = 1, .max = 1e18, .arg = "BYTES", .sentence = "a second, as measured" },
    { "peak", OPT_F64, OPT_AT(sim_cost, peak), .min = 1, .max = 1e20, .arg = "FLOP", .sentence = "a second, as measured" },
    { "launch", OPT_NSEC, OPT_AT(sim_cost, launch), .arg = "TIME", .sentence = "of every step, whatever is in it" },
    { "ends", OPT_NSEC, OPT_AT(sim_cost, ends), .arg = "TIME", .sentence = "of a step of prompts on a part: so much longer than its rows it takes, if it is long" },
    { "tile", OPT_U32, OPT_AT(sim_cost, tile), .max = 1 << 16, .arg = "ROWS", .sentence = "products of more rows take as long as of its next multiple; 0: of any as they are" },
    { "burst", OPT_F64, OPT_AT(sim_cost, burst), .min = 0, .max = 1e20, .arg = "FLOP", .sentence = "a second, of products if the peak were no limit; 0: they always have the peak" },
    { "few", OPT_F64, OPT_AT(sim_cost, few), .min = 0, .max = 1e6, .arg = "ROWS", .sentence = "whose products have half of the burst" },
    { "guess", OPT_F64, OPT_AT(sim_cost, guess), .min = 0.1, .max = 10, .arg = "X", .sentence = "what auto thinks at first of a part's bandwidth, of what co_run says" },
    { 0 }
};
static const struct opt divide_opts[] = {
    { "mode", OPT_ENUM, OPT_AT(sim_division, mode), .choices = "off|auto|fixed", .arg = "NAME", .sentence = "prompts and answers in one lane, as it pays, or on parts of their own" },
    { "context_sm", OPT_STR, OPT_AT(sim_division, context_sm), .arg = "N", .sentence = "with fixed: units for prompts, or a share (0.5)" },
    { "units", OPT_U32, OPT_AT(sim_division, units), .min = 1, .max = 4096, .arg = "N", .sentence = "of the device: SMs" },
    { "least", OPT_U32, OPT_AT(sim_division, least), .min = 1, .max = 4096, .arg = "N", .sentence = "units of a part" },
    { "grain", OPT_U32, OPT_AT(sim_division, grain), .min = 1, .max = 4096, .arg = "N", .sentence = "a part is a multiple of it, or the rest" },
    { "target", OPT_NSEC, OPT_AT(sim_division, target), .arg = "TIME", .sentence = "with auto: from one token to the next" },
    { 0 }
};
static const struct opt co_run_opts[] = {
    { "context", OPT_U32, OPT_AT(co_run, context), .min = 1, .max = 4096, .arg = "N", .sentence = "units for prompts" },
    { "generation", OPT_U32, OPT_AT(co_run, generation), .min = 1, .max = 4096, .arg = "N", .sentence = "units for answers" },
    { "compute", OPT_F64, OPT_AT(co_run, compute), .min = 1e-3, .max = 1, .arg = "X", .sentence = "of the whole device's arithmetic, that prompts then have" },
    { "read", OPT_F64, OPT_AT(co_run, read), .min = 1e-3, .max = 1, .arg = "X", .sentence = "of the whole device's bandwidth, that answers then have" },
    { 0 }
};
/* clang-format on */

void
setting_defaults(struct sim_config *st)
{
    *st = (struct sim_config){
        .kv = { .n_slots = 64, .tokens_per_block = 10, .arena_bytes = 1 << 20 },
        .sched = { .max_seqs = 64, .max_tokens = 100000, .max_len = 5000, .chunk_unit = 1 },
        .cost = { .bandwidth = 1e12, .peak = 1e14, .launch = 1000, .guess = 1 },
        .divide = { .units = 1, .least = 1, .grain = 1 },
    };
}

static int
add_group(struct sim_config *st, const struct script *s, const struct script_line *l, struct err *e)
{
    struct group_args a = { { 0 }, 0, 0, 0 };

    if (st->kv.n_groups == MAX_GROUPS)
        return script_err(s, l, e, -EINVAL, "more than %d groups", MAX_GROUPS);
    if (l->n_words < 2)
        return script_err(s, l, e, -EINVAL, "group full, window, cross or state: which?");
    while (a.kind < KV_KINDS && strcmp(l->word[1], kv_kind_name(a.kind)) != 0) a.kind++;
    if (a.kind == KV_KINDS)
        return script_err(s, l, e, -EINVAL, "no kind of group is called %s", l->word[1]);
    opt_defaults(group_opts, &a);
    TRY(script_pairs(s, l, 2, group_opts, &a, e));
    a.g.kind = (enum kv_kind)a.kind;
    a.g.share = (float)a.share;
    if (a.g.kind == KV_WINDOW && a.g.window == 0)
        return script_err(s, l, e, -EINVAL, "a window group has a window");
    if (a.g.kind == KV_STATE) a.g.n_parts = 1;
    if (a.g.kind == KV_CROSS && st->sched.n_enc_layers == 0) st->sched.n_enc_layers = 1;
    st->cost.work.attend[st->kv.n_groups] = a.attend;
    st->kv.group[st->kv.n_groups++] = a.g;
    return 0;
}

static int
add_lane(struct sim_config *st, const struct script *s, const struct script_line *l, struct err *e)
{
    static const char *const works[] = { "encoder", "context", "generation" };
    struct scheduler_limits *to = &st->sched;

    if (to->n_lanes == MAX_LANES)
        return script_err(s, l, e, -EINVAL, "more than %d lanes", MAX_LANES);
    for (uint32_t i = 1; i < l->n_words; i++) {
        unsigned k = 0;

        while (k < ARRAY_LEN(works) && strcmp(l->word[i], works[k]) != 0) k++;
        if (k == ARRAY_LEN(works))
            return script_err(s, l, e, -EINVAL,
                              "%s is no work: encoder, context and generation are", l->word[i]);
        to->lane_work[to->n_lanes] |= (uint8_t)(1u << k);
    }
    to->n_lanes++;
    return 0;
}

static int
set_limits(struct sim_config *st, const struct script *s, const struct script_line *l,
           struct err *e)
{
    struct sched_args a = {
        st->sched, st->sched.policy, st->sched.chunks, st->sched.enc_layers, st->sched.n_enc_layers,
        ""
    };
    int64_t batch[ARRAY_LEN(a.l.enc_batch)];
    int n;

    TRY(script_pairs(s, l, 1, limit_opts, &a, e));
    if (a.enc_batch[0]) {
        n = script_numbers(a.enc_batch, batch, ARRAY_LEN(batch));
        for (int i = 0; i < n; i++) {
            if (batch[i] <= (i ? batch[i - 1] : 0)) n = -EINVAL;
            if (n > 0) a.l.enc_batch[i] = (uint32_t)batch[i];
        }
        if (n < 0)
            return script_err(s, l, e, -EINVAL, "encoder_batch %s: at most %zu numbers that grow",
                              a.enc_batch, ARRAY_LEN(batch));
        a.l.n_enc_batches = (uint32_t)n;
    }
    st->sched = a.l;
    st->sched.policy = (enum policy)a.policy;
    st->sched.chunks = (enum chunks)a.chunks;
    st->sched.enc_layers = (uint16_t)a.enc_layers;
    st->sched.n_enc_layers = (uint16_t)a.n_enc_layers;
    return 0;
}

int
setting_line(struct sim_config *st, const struct script *s, const struct script_line *l,
             struct err *e)
{
    const char *what = l->word[0];

    if (strcmp(what, "group") == 0) {
        TRY(add_group(st, s, l, e));
    } else if (strcmp(what, "lane") == 0) {
        TRY(add_lane(st, s, l, e));
    } else if (strcmp(what, "limits") == 0) {
        TRY(set_limits(st, s, l, e));
    } else if (strcmp(what, "cache") == 0) {
        TRY(script_pairs(s, l, 1, cache_opts, &st->kv, e));
    } else if (strcmp(what, "cost") == 0) {
        TRY(script_pairs(s, l, 1, cost_opts, &st->cost, e));
    } else if (strcmp(what, "split") == 0) {
        TRY(script_pairs(s, l, 1, divide_opts, &st->divide, e));
    } else if (strcmp(what, "co_run") == 0) {
        if (st->cost.n_co_runs == MAX_CO_RUNS)
            return script_err(s, l, e, -EINVAL, "more than %d lines of co_run", MAX_CO_RUNS);
        TRY(script_pairs(s, l, 1, co_run_opts, &st->cost.co_run[st->cost.n_co_runs++], e));
    } else {
        return 0;
    }
    if (l->n_want > 0)
        return script_err(s, l, e, -EINVAL, "a setting prints nothing that could be expected");
    return 1;
}

void
setting_close(struct sim_config *st)
{
    struct scheduler_limits *l = &st->sched;

    if (l->n_lanes == 0 && st->divide.mode != DIVIDE_OFF) {
        l->lane_work[l->n_lanes++] = WORK_ENCODER | WORK_PREFILL;
        l->lane_work[l->n_lanes++] = WORK_DECODE;
    }
    if (l->n_lanes == 0) l->lane_work[l->n_lanes++] = WORK_ENCODER | WORK_PREFILL | WORK_DECODE;
    st->kv.n_lanes = l->n_lanes;
    st->cost.work.n_enc_layers = l->n_enc_layers;
    if (l->n_enc_layers > 0 && l->max_enc_tokens == 0) l->max_enc_tokens = l->max_len;
    for (uint32_t i = 0; i < st->kv.n_groups; i++) {
        struct kv_group *g = &st->kv.group[i];
        uint32_t reach = g->kind == KV_CROSS ? l->max_enc_tokens : l->max_len;

        g->max_entries = CEIL_DIV(reach, st->kv.tokens_per_block);
        if (g->kind == KV_STATE) g->max_entries = g->n_layers * (1 + KV_SNAPSHOTS);
    }
}

void
setting_divide(struct sim_config *st, uint32_t mode, const char *context_sm)
{
    st->divide.mode = mode;
    snprintf(st->divide.context_sm, sizeof st->divide.context_sm, "%s", context_sm);
    memset(st->sched.lane_work, 0, sizeof st->sched.lane_work);
    st->sched.n_lanes = 0;
    setting_close(st);
}

int
setting_read(struct sim_config *st, const char *path, struct err *e)
{
    CLEAN(script_free_at) struct script *s = NULL;

    TRY(script_read(&s, path, e));
    setting_defaults(st);
    for (uint32_t i = 0; i < s->n_lines; i++) {
        int r = setting_line(st, s, &s->line[i], e);

        if (r < 0) return r;
        if (r == 0)
            return script_err(s, &s->line[i], e, -EINVAL, "%s is no setting", s->line[i].word[0]);
    }
    setting_close(st);
    return 0;
}

void
setting_help(FILE *out)
{
    static const struct {
        const char *line;
        const struct opt *table;
    } rows[] = {
        { "cache KEY VALUE...", cache_opts },
        { "group full|window|cross|state KEY VALUE...", group_opts },
        { "limits KEY VALUE...", limit_opts },
        { "cost KEY VALUE...", cost_opts },
        { "split KEY VALUE...", divide_opts },
        { "co_run KEY VALUE...", co_run_opts },
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        fprintf(out, "\n%s\n", rows[i].line);
        for (const struct opt *o = rows[i].table; o->key; o++)
            fprintf(out, "  %-16s %-7s %s\n", o->key, o->arg ? o->arg : "", o->sentence);
    }
    fputs("\nlane encoder|context|generation...\n"
          "  a lane of its own for that work; without any, everything is on one\n",
          out);
}

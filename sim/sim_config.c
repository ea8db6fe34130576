/* sim_config.c - parses the settings of a simulated worker: see sim_config.h. */
#include "sim/sim_config.h"

#include "base/opt.h"

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
    { "block", OPT_U32, OPT_AT(kv_config, tokens_per_block), .min = 1, .max = 1024, .arg = "TOKENS", .sentence = "tokens in each KV block" },
    { "arena", OPT_BYTES, OPT_AT(kv_config, arena_bytes), .arg = "BYTES", .sentence = "size of the device memory for KV blocks" },
    { "host", OPT_BYTES, OPT_AT(kv_config, host_bytes), .arg = "BYTES", .sentence = "size of the host memory for evicted KV blocks; 0: none" },
    { "slab", OPT_U32, OPT_AT(kv_config, slab_bytes), .arg = "BYTES", .sentence = "unit in which pools take memory from the arena; 0: as in a worker" },
    { "slots", OPT_U32, OPT_AT(kv_config, n_slots), .min = 1, .max = 65536, .arg = "N", .sentence = "maximum number of sequences with KV blocks" },
    { "fifo", OPT_BOOL, OPT_AT(kv_config, fifo), .sentence = "reuse freed blocks in the order in which they were freed" },
    { "reuse", OPT_BOOL, OPT_AT(kv_config, reuse), .sentence = "enable the prefix cache" },
    { "copy_partial", OPT_BOOL, OPT_AT(kv_config, copy_partial), .sentence = "prefix cache: copy the matching first part of a block that another sequence uses" },
    { "events", OPT_U32, OPT_AT(kv_config, max_events), .max = 1 << 20, .arg = "N", .sentence = "number of the latest KV events that are kept for the command events" },
    { "extra_ids", OPT_BOOL, OPT_AT(kv_config, extra_ids), .sentence = "tokens have extra ids, which distinguish equal token ids" },
    { 0 }
};
static const struct opt group_opts[] = {
    { "window", OPT_U32, OPT_AT(group_args, g.window), .arg = "TOKENS", .sentence = "window group: number of positions that a query attends to" },
    { "sinks", OPT_U32, OPT_AT(group_args, g.sinks), .arg = "TOKENS", .sentence = "window group: number of first positions that stay in the cache (attention sinks)" },
    { "interval", OPT_U32, OPT_AT(group_args, g.interval), .arg = "TOKENS", .sentence = "state group: positions between two snapshots; 0: no snapshots" },
    { "layers", OPT_U32, OPT_AT(group_args, g.n_layers), "1", .min = 1, .max = 4096, .arg = "N", .sentence = "number of layers of the group" },
    { "parts", OPT_U32, OPT_AT(group_args, g.n_parts), "2", .min = 1, .max = 2, .arg = "N", .sentence = "2: a block has separate K and V; 1: one tensor for both" },
    { "slice", OPT_U32, OPT_AT(group_args, g.slice_bytes), "128", .min = 128, .max = 1 << 28, .arg = "BYTES", .sentence = "size of the K of one layer in one block" },
    { "max", OPT_U32, OPT_AT(group_args, g.max_blocks), .arg = "BLOCKS", .sentence = "maximum number of blocks of the group; 0: limited by the arena only" },
    { "share", OPT_F64, OPT_AT(group_args, share), .min = 0, .max = 1, .arg = "X", .sentence = "target share of the arena, from 0 to 1" },
    { "attend", OPT_F64, OPT_AT(group_args, attend), .min = 0, .max = 1e15, .arg = "FLOP", .sentence = "FLOP of attention for each pair of query and key" },
    { 0 }
};
static const struct opt limit_opts[] = {
    { "seqs", OPT_U32, OPT_AT(sched_args, l.max_seqs), .min = 1, .max = 65536, .arg = "N", .sentence = "maximum number of running sequences" },
    { "max_num_batched_tokens", OPT_U32, OPT_AT(sched_args, l.max_tokens), .min = 1, .max = 1 << 24, .arg = "N", .sentence = "maximum number of decoder tokens in a step" },
    { "len", OPT_U32, OPT_AT(sched_args, l.max_len), .min = 1, .max = 1 << 24, .arg = "TOKENS", .sentence = "maximum number of tokens of a request, prompt and output together" },
    { "unit", OPT_U32, OPT_AT(sched_args, l.chunk_unit), .arg = "TOKENS", .sentence = "the part of a prompt computed in a step is a multiple of this number; 0: as in a worker" },
    { "sources", OPT_U32, OPT_AT(sched_args, l.max_enc_tokens), .arg = "TOKENS", .sentence = "maximum number of encoder input tokens whose encoder state is kept" },
    { "encoder_layers", OPT_U32, OPT_AT(sched_args, n_enc_layers), .max = 1000, .arg = "N", .sentence = "encoder layers of the model; 0: decoder-only" },
    { "encoder_slice", OPT_U32, OPT_AT(sched_args, enc_layers), .max = 1000, .arg = "N", .sentence = "number of encoder layers computed in a step; 0: all" },
    { "policy", OPT_ENUM, OPT_AT(sched_args, policy), .choices = "no_evict|max_utilization|static|max_requests", .arg = "NAME", .sentence = "no_evict, max_utilization, static or max_requests, as the model option policy" },
    { "chunk", OPT_U32, OPT_AT(sched_args, l.max_chunk), .arg = "TOKENS", .sentence = "maximum number of tokens of one prompt in a step; 0: no limit" },
    { "chunk_policy", OPT_ENUM, OPT_AT(sched_args, chunks), .choices = "fcfs|equal_progress", .arg = "NAME", .sentence = "fcfs: the first prompt gets as many tokens of a step as it needs; equal_progress: one unit each in rotation" },
    { "fairness_quantum", OPT_U32, OPT_AT(sched_args, l.quantum), .arg = "TOKENS", .sentence = "tokens granted to each client per scheduling round; 0: order of arrival" },
    { "pages", OPT_U32, OPT_AT(sched_args, l.pages), .arg = "N", .sentence = "number of device pages for LoRA adapters" },
    { "encoder_work", OPT_U64, OPT_AT(sched_args, l.enc_work), .arg = "N", .sentence = "maximum of encoder tokens times encoder layers in a step with decode; 0: no limit" },
    { "encoder_batch", OPT_STR, OPT_AT(sched_args, enc_batch), .arg = "LIST", .sentence = "during decode, encoder inputs wait until one of these batch sizes is reached" },
    { "encoder_wait", OPT_NSEC, OPT_AT(sched_args, l.enc_wait), .arg = "TIME", .sentence = "longest wait for encoder_batch; in a scenario an iteration takes 1ns" },
    { "prefill_batch_tokens", OPT_U32, OPT_AT(sched_args, l.prefill_batch_tokens), .arg = "TOKENS", .sentence = "during decode, prompts wait until they have this number of tokens together; 0: no wait" },
    { "prefill_wait", OPT_NSEC, OPT_AT(sched_args, l.prompt_wait), .arg = "TIME", .sentence = "longest wait for prefill_batch_tokens" },
    { 0 }
};
static const struct opt cost_opts[] = {
    { "weights", OPT_BYTES, OPT_AT(sim_cost, work.weights), .arg = "BYTES", .sentence = "bytes of weights that a step with decoder tokens reads" },
    { "encoder_weights", OPT_BYTES, OPT_AT(sim_cost, work.encoder_weights), .arg = "BYTES", .sentence = "bytes of weights that a step with encoder tokens reads" },
    { "row_flops", OPT_F64, OPT_AT(sim_cost, work.row_flops), .min = 0, .max = 1e18, .arg = "FLOP", .sentence = "FLOP of one decoder token, without attention" },
    { "encoder_flops", OPT_F64, OPT_AT(sim_cost, work.encoder_flops), .min = 0, .max = 1e18, .arg = "FLOP", .sentence = "FLOP of one encoder token" },
    { "bandwidth", OPT_F64, OPT_AT(sim_cost, bandwidth), .min = 1, .max = 1e18, .arg = "BYTES", .sentence = "measured memory bandwidth, in bytes per second" },
    { "peak", OPT_F64, OPT_AT(sim_cost, peak), .min = 1, .max = 1e20, .arg = "FLOP", .sentence = "measured maximum FLOP per second" },
    { "launch", OPT_NSEC, OPT_AT(sim_cost, launch), .arg = "TIME", .sentence = "time that every step takes in addition to its work" },
    { "ends", OPT_NSEC, OPT_AT(sim_cost, ends), .arg = "TIME", .sentence = "extra time of a long prefill step if the device is divided" },
    { "tile", OPT_U32, OPT_AT(sim_cost, tile), .max = 1 << 16, .arg = "TOKENS", .sentence = "matrix products compute a multiple of this number of tokens; 0: exactly the tokens" },
    { "burst", OPT_F64, OPT_AT(sim_cost, burst), .min = 0, .max = 1e20, .arg = "FLOP", .sentence = "FLOP per second that large matrix products approach, up to peak; 0: always peak" },
    { "few", OPT_F64, OPT_AT(sim_cost, few), .min = 0, .max = 1e6, .arg = "TOKENS", .sentence = "number of tokens at which matrix products reach half of burst" },
    { "initial_read", OPT_F64, OPT_AT(sim_cost, initial_read), .min = 0.1, .max = 10, .arg = "X", .sentence = "mode auto: first estimate of the bandwidth of a part of the device, divided by the value of co_run" },
    { 0 }
};
static const struct opt divide_opts[] = {
    { "mode", OPT_ENUM, OPT_AT(sim_division, mode), .choices = "off|auto|fixed", .arg = "NAME", .sentence = "division between prefill and decode. off: none; auto: from measured step times; fixed: by context_sm" },
    { "context_sm", OPT_STR, OPT_AT(sim_division, context_sm), .arg = "N", .sentence = "mode fixed: number of units for prefill (64), or their share (0.5)" },
    { "units", OPT_U32, OPT_AT(sim_division, units), .min = 1, .max = 4096, .arg = "N", .sentence = "number of units (SMs) of the device" },
    { "min_units", OPT_U32, OPT_AT(sim_division, least), .min = 1, .max = 4096, .arg = "N", .sentence = "smallest number of units of a part" },
    { "granularity", OPT_U32, OPT_AT(sim_division, grain), .min = 1, .max = 4096, .arg = "N", .sentence = "the units of one part are a multiple of this number" },
    { "target", OPT_NSEC, OPT_AT(sim_division, target), .arg = "TIME", .sentence = "mode auto: longest acceptable time between two tokens of an output; 0: no limit" },
    { 0 }
};
static const struct opt co_run_opts[] = {
    { "prefill", OPT_U32, OPT_AT(co_run, context), .min = 1, .max = 4096, .arg = "N", .sentence = "number of units for prefill" },
    { "decode", OPT_U32, OPT_AT(co_run, generation), .min = 1, .max = 4096, .arg = "N", .sentence = "number of units for decode" },
    { "compute", OPT_F64, OPT_AT(co_run, compute), .min = 1e-3, .max = 1, .arg = "X", .sentence = "share of the FLOP rate of the device that prefill reaches on this division" },
    { "read", OPT_F64, OPT_AT(co_run, read), .min = 1e-3, .max = 1, .arg = "X", .sentence = "share of the memory bandwidth of the device that decode reaches on this division" },
    { 0 }
};
/* clang-format on */

void
setting_defaults(struct sim_config *st)
{
    *st = (struct sim_config){
        .kv = { .n_slots = 64, .tokens_per_block = 10, .arena_bytes = 1 << 20 },
        .sched = { .max_seqs = 64, .max_tokens = 100000, .max_len = 5000, .chunk_unit = 1 },
        .cost = { .bandwidth = 1e12, .peak = 1e14, .launch = 1000, .initial_read = 1 },
        .divide = { .units = 1, .least = 1, .grain = 1 },
    };
}

static int
add_group(struct sim_config *st, const struct script_line *l, struct err *e)
{
    struct group_args a = { { 0 }, 0, 0, 0 };

    if (st->kv.n_groups == MAX_GROUPS) return script_err(l, e, "over %d group lines", MAX_GROUPS);
    if (l->n_words < 2) return script_err(l, e, "group needs a kind: full, window, cross or state");
    while (a.kind < KV_KINDS && strcmp(l->words[1], kv_kind_name(a.kind)) != 0) a.kind++;
    if (a.kind == KV_KINDS)
        return script_err(l, e, "unknown group kind %s; use full, window, cross or state",
                          l->words[1]);
    opt_defaults(group_opts, &a);
    TRY(script_pairs(l, 2, group_opts, &a, e));
    a.g.kind = (enum kv_kind)a.kind;
    a.g.share = (float)a.share;
    if (a.g.kind == KV_WINDOW && a.g.window == 0)
        return script_err(l, e, "a window group needs window TOKENS");
    if (a.g.kind == KV_STATE) a.g.n_parts = 1;
    if (a.g.kind == KV_CROSS && st->sched.n_enc_layers == 0) st->sched.n_enc_layers = 1;
    st->cost.work.attend[st->kv.n_groups] = a.attend;
    st->kv.group[st->kv.n_groups++] = a.g;
    return 0;
}

static int
add_lane(struct sim_config *st, const struct script_line *l, struct err *e)
{
    static const char *const works[] = { "encoder", "prefill", "decode" };
    struct scheduler_limits *to = &st->sched;

    if (to->n_lanes == MAX_LANES) return script_err(l, e, "over %d lane lines", MAX_LANES);
    for (uint32_t i = 1; i < l->n_words; i++) {
        unsigned k = 0;

        while (k < ARRAY_LEN(works) && strcmp(l->words[i], works[k]) != 0) k++;
        if (k == ARRAY_LEN(works))
            return script_err(l, e, "unknown lane work %s; use encoder, prefill or decode",
                              l->words[i]);
        to->lane_work[to->n_lanes] |= (uint8_t)(1u << k);
    }
    to->n_lanes++;
    return 0;
}

static int
set_limits(struct sim_config *st, const struct script_line *l, struct err *e)
{
    struct sched_args a = {
        st->sched, st->sched.policy, st->sched.chunks, st->sched.enc_layers, st->sched.n_enc_layers,
        ""
    };
    int64_t batch[ARRAY_LEN(a.l.enc_batch)];
    int n;

    TRY(script_pairs(l, 1, limit_opts, &a, e));
    if (a.enc_batch[0]) {
        n = script_numbers(a.enc_batch, batch, ARRAY_LEN(batch));
        for (int i = 0; i < n; i++) {
            if (batch[i] <= (i ? batch[i - 1] : 0)) n = -EINVAL;
            if (n > 0) a.l.enc_batch[i] = (uint32_t)batch[i];
        }
        if (n < 0)
            return script_err(l, e, "encoder_batch %s: at most %zu ascending numbers are allowed",
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

static int
add_co_run(struct sim_config *st, const struct script_line *l, struct err *e)
{
    if (st->cost.n_co_runs == MAX_CO_RUNS)
        return script_err(l, e, "more than %d co_run lines", MAX_CO_RUNS);
    return script_pairs(l, 1, co_run_opts, &st->cost.co_run[st->cost.n_co_runs++], e);
}

/* The kinds of settings. add() applies a line. If it is NULL, the line's keys, listed in `table`,
 * set fields of the struct at offset `at` of struct sim_config. */
static const struct {
    const char *name, *operands;
    const struct opt *table;
    size_t at;
    int (*add)(struct sim_config *st, const struct script_line *l, struct err *e);
} settings[] = {
    { "cache", "KEY VALUE...", cache_opts, offsetof(struct sim_config, kv), NULL },
    { "group", "full|window|cross|state KEY VALUE...", group_opts, 0, add_group },
    { "limits", "KEY VALUE...", limit_opts, 0, set_limits },
    { "cost", "KEY VALUE...", cost_opts, offsetof(struct sim_config, cost), NULL },
    { "split", "KEY VALUE...", divide_opts, offsetof(struct sim_config, divide), NULL },
    { "co_run", "KEY VALUE...", co_run_opts, 0, add_co_run },
    { "lane",
      "encoder|prefill|decode...\n  adds a lane for that work; default: one lane for all work",
      NULL, 0, add_lane },
};

int
setting_line(struct sim_config *st, const struct script_line *l, struct err *e)
{
    size_t i = 0;

    while (i < ARRAY_LEN(settings) && strcmp(l->words[0], settings[i].name) != 0) i++;
    if (i == ARRAY_LEN(settings)) return 0;
    TRY(settings[i].add ? settings[i].add(st, l, e)
                        : script_pairs(l, 1, settings[i].table, (char *)st + settings[i].at, e));
    if (l->n_want > 0)
        return script_err(l, e, "a setting has no output, so it has no expected lines");
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
        int r = setting_line(st, &s->line[i], e);

        if (r < 0) return r;
        if (r == 0) return script_err(&s->line[i], e, "unknown setting %s", s->line[i].words[0]);
    }
    setting_close(st);
    return 0;
}

void
setting_help(FILE *out)
{
    for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
        fprintf(out, "\n%s %s\n", settings[i].name, settings[i].operands);
        for (const struct opt *o = settings[i].table; o && o->key; o++)
            fprintf(out, "  %-16s %-7s %s\n", o->key, o->arg ? o->arg : "", o->sentence);
    }
}

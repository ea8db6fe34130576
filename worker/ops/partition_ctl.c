/* partition_ctl.c - see partition_ctl.h. */
#include "worker/ops/partition_ctl.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>

enum { CONTEXT_LANE, GENERATION_LANE };
/* On a host nothing is known of its memory and arithmetic: of a core, until steps have been
 * measured. */
static const double BANDWIDTH = 5e9, PEAK = 2e10;
/* Of what parts do by themselves, what they do beside each other: attention and products on an
 * H200 have 0.75 to 0.9. */
static const double BESIDE = 0.8;
/* What is believed of a measurement: any device reads and multiplies so much, a part has SLOWEST
 * of its share by units and more, and no more than FASTEST of the whole. An H200's parts had
 * 0.46 of their share and more, and 1.16 of the whole at most; a model of a few KiB says
 * anything. */
static const double LEAST = 1e6, MOST = 1e18, SLOWEST = 0.1, FASTEST = 2;
/* On a GPU 627 rows take as long as 768 (one H200). */
enum { TILE = 256 };

/* The parts of a partition, for the lanes: a lane of sources has those of prompts. */
static void
parts_of(const struct partition *r, struct exec_part part[MAX_LANES])
{
    for (unsigned i = 0; i < MAX_LANES; i++) part[i] = (struct exec_part){ 0, r->prefill_units };
    part[GENERATION_LANE] = (struct exec_part){ r->prefill_units, r->decode_units };
}

int
partition_ctl_plan(struct partition_ctl *s, const struct model_options *k, struct gpu_parts parts,
                   uint32_t units, struct scheduler_limits *l, struct exec_config *x, struct err *e)
{
    bool own = k->split_encoder == SPLIT_ENCODER_OWN && l->n_enc_layers > 0;
    struct partition_ctl_state *state = &s->state;

    *s = (struct partition_ctl){ .lock = PTHREAD_MUTEX_INITIALIZER };
    state->mode = k->split_mode;
    if (k->split_mode != SPLIT_OFF && parts.grain == 0 && parts.why)
        return err_set(e, -ENOTSUP, "split.mode: %s", parts.why);
    partition_list_make(&state->partition_list, units, parts.least, parts.grain);
    if (k->split_mode == SPLIT_FIXED) {
        TRY(partition_list_fixed(&state->partition_list, k->split_context_sm, &state->partition,
                                 e));
        if (state->partition == 0) state->mode = SPLIT_OFF;
    } else if (k->split_mode == SPLIT_AUTO && state->partition_list.n == 1) {
        return err_set(e, -EINVAL, "split.mode: the device's %u units cannot be divided", units);
    }
    s->lanes = state->mode != SPLIT_OFF;
    l->n_lanes = 0;
    l->lane_work[l->n_lanes++] = (uint8_t)(WORK_PREFILL | (s->lanes ? 0 : WORK_DECODE) |
                                           (own ? 0 : WORK_ENCODER));
    if (s->lanes) {
        l->lane_work[l->n_lanes++] = WORK_DECODE;
        l->lane_tokens[CONTEXT_LANE] = (uint32_t)MAX(k->split_context_max_tokens, 0);
        l->lane_seqs[CONTEXT_LANE] = (uint32_t)MAX(k->split_context_max_seqs, 0);
    }
    if (own) l->lane_work[l->n_lanes++] = WORK_ENCODER;
    x->n_lanes = l->n_lanes;
    for (unsigned i = 0; i < l->n_lanes; i++) x->lane_units[i] = units;
    x->n_partitions = s->lanes ? state->partition_list.n : 0;
    for (unsigned r = 1; r < x->n_partitions; r++)
        parts_of(&state->partition_list.partition[r], x->part[r]);
    return 0;
}

static void
take(struct partition_ctl *s, struct partition_mode way)
{
    if (way.partition != s->state.partition) {
        pthread_mutex_lock(&s->lock);
        s->state.partition = way.partition;
        s->state.n_changes++;
        pthread_mutex_unlock(&s->lock);
    }
    scheduler_set_partition(s->sched, way.partition, way.rows);
}

static struct part_share
by_units(uint32_t n, uint32_t units)
{
    return (struct part_share){ (double)n / units, (double)n / units };
}

/* NaN is not. */
static bool
is_rate(double x)
{
    return x >= LEAST && x <= MOST;
}

static bool
believable(const struct exec_rate *part, const struct exec_rate *all, uint32_t n, uint32_t units)
{
    double least = SLOWEST * n / units;

    return part->read >= least * all->read && part->read <= FASTEST * all->read &&
           part->compute >= least * all->compute && part->compute <= FASTEST * all->compute;
}

/* What was measured of a partition, into its times: beside each other parts have BESIDE of what each
 * has by itself, and prompts read what answers leave. A partition that is thought worse than it is
 * would never be tried; one that is thought better is soon found out. What cannot be is not
 * taken: parts have their shares by units then. */
static void
take_rates(struct partition_ctl *s, unsigned partition, const struct exec_rate *all)
{
    const struct partition_list *l = &s->state.partition_list;
    const struct partition *r = &l->partition[partition];
    struct exec_rate context = exec_rate(s->exec, partition, CONTEXT_LANE),
                     generation = exec_rate(s->exec, partition, GENERATION_LANE);
    bool good = is_rate(all->read) && is_rate(all->compute) &&
                believable(&context, all, r->prefill_units, l->units) &&
                believable(&generation, all, r->decode_units, l->units);
    double read = BESIDE * MIN(generation.read / all->read, 1.);

    if (good)
        step_time_set_partition(
            &s->split.time, partition,
            (struct part_share){ 1 - read, BESIDE * MIN(context.compute / all->compute, 1.) },
            (struct part_share){ read, BESIDE * MIN(generation.compute / all->compute, 1.) });
    log_info(
        "%u and %u of the device's %u units: they read %.2f and %.2f of %.2f TB/s, multiply at "
        "%.0f and %.0f of %.0f TFLOP/s%s",
        r->prefill_units, r->decode_units, l->units, context.read / 1e12, generation.read / 1e12,
        all->read / 1e12, context.compute / 1e12, generation.compute / 1e12, all->compute / 1e12,
        good ? "" : ", which cannot be: they are taken for their shares of its units");
}

void
partition_ctl_open(struct partition_ctl *s, struct exec *x, struct scheduler *sched,
                   const struct kv_config *kv, const struct step_costs *costs,
                   const struct scheduler_limits *l, nsec target)
{
    const struct partition_list *partition_list = &s->state.partition_list;
    const struct exec_rate all = exec_rate(x, 0, CONTEXT_LANE);
    const bool measured = all.read != 0 || all.compute != 0;
    const struct partition_choose_limits limits = { MIN(kv->tokens_per_block, l->max_tokens),
                                                    l->max_tokens, target, measured ? TILE : 0 };
    const struct exec_partition_times d = exec_partition_times(x);

    s->exec = x;
    s->sched = sched;
    s->state.target = target;
    partition_choose_init(&s->split, &limits, partition_list, costs, kv,
                          is_rate(all.read) ? all.read : BANDWIDTH * partition_list->units,
                          is_rate(all.compute) ? all.compute : PEAK * partition_list->units);
    if (!s->lanes) return;
    for (unsigned r = 1; r < partition_list->n && measured; r++) take_rates(s, r, &all);
    if (measured)
        log_info("divided the device %u ways in %.0f ms and %.0f MiB, measured them in %.0f ms",
                 partition_list->n - 1, (double)d.made / NSEC_MS, (double)d.bytes / (1 << 20),
                 (double)d.measured / NSEC_MS);
    take(s, (struct partition_mode){ s->state.partition, 0 });
}

/* An operator's partition, which may have other parts than it had. */
static int
change_partition(struct partition_ctl *s, unsigned partition)
{
    const struct partition_list *l = &s->state.partition_list;
    struct exec_part part[MAX_LANES];
    struct err e;
    int r;

    parts_of(&l->partition[partition], part);
    r = exec_set_partition(s->exec, partition, part, &e);
    if (r < 0) log_warn("the device stays undivided: %s", e.text);
    if (r == 0) /* 1: it has the parts it had */
        step_time_set_partition(&s->split.time, partition,
                                by_units(l->partition[partition].prefill_units, l->units),
                                by_units(l->partition[partition].decode_units, l->units));
    return r;
}

static void
take_wish(struct partition_ctl *s)
{
    const struct partition *wish = &s->wish_partition;
    unsigned partition = 0;
    struct err e;

    pthread_mutex_lock(&s->lock);
    atomic_store_explicit(&s->wished, false, memory_order_relaxed);
    s->state.mode = s->wish;
    if (s->wish == SPLIT_FIXED)
        check(partition_list_set(&s->state.partition_list, wish->prefill_units, wish->decode_units,
                                 &partition, &e) == 0);
    pthread_mutex_unlock(&s->lock);
    if (partition && change_partition(s, partition) < 0) partition = 0;
    log_info("the device is divided as an operator asked: %s", s->state.mode == SPLIT_AUTO ? "auto"
                                                               : s->state.mode == SPLIT_OFF
                                                                   ? "off"
                                                                   : "fixed");
    if (s->state.mode != SPLIT_AUTO) take(s, (struct partition_mode){ partition, 0 });
    partition_choose_start(&s->split, s->state.partition);
}

void
partition_ctl_turn(struct partition_ctl *s)
{
    if (!s->lanes) return;
    if (atomic_load_explicit(&s->wished, memory_order_acquire)) take_wish(s);
    if (s->state.mode != SPLIT_AUTO) return;
    take(s, partition_choose(&s->split, &s->state.partition_list, s->sched));
}

void
partition_ctl_began(struct partition_ctl *s, const struct batch *b, nsec now)
{
    partition_choose_launched(&s->split, b, now);
}

void
partition_ctl_ended(struct partition_ctl *s, const struct batch *b, nsec now)
{
    struct partition_ctl_count *c = &s->count[step_kind(b->work)];

    c->n++;
    c->ns += (uint64_t)partition_choose_retired(&s->split, b, now);
}

int
partition_ctl_wish(struct partition_ctl *s, uint32_t mode, uint32_t context, uint32_t generation,
                   struct err *e)
{
    struct partition_list copy;
    unsigned partition;
    int r = 0;

    if (!s->lanes && mode == SPLIT_OFF) return 0; /* it is */
    if (!s->lanes)
        return err_set(e, -ENOTSUP,
                       "split.mode is off here, and there is one lane: set it to fixed or auto in "
                       "the configuration, then `laganctl daemon reexec`");
    pthread_mutex_lock(&s->lock);
    copy = s->state.partition_list;
    if (mode == SPLIT_FIXED) r = partition_list_set(&copy, context, generation, &partition, e);
    if (r == 0) {
        s->wish = mode;
        s->wish_partition = (struct partition){ context, generation };
        atomic_store_explicit(&s->wished, true, memory_order_release);
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}

struct partition_ctl_state
partition_ctl_state(struct partition_ctl *s)
{
    struct partition_ctl_state state;

    pthread_mutex_lock(&s->lock);
    state = s->state;
    pthread_mutex_unlock(&s->lock);
    return state;
}

void
partition_ctl_stats(const struct partition_ctl *s, struct stats *ret)
{
    static const enum stat_id first[STEP_KINDS] = { STAT_prefill_steps, STAT_decode_steps,
                                                    STAT_mixed_steps };
    const struct partition *partition = &s->state.partition_list.partition[s->state.partition];
    uint64_t *v = ret->v;

    for (unsigned k = 0; k < STEP_KINDS; k++) { /* n and ns are neighbours */
        v[first[k]] = s->count[k].n;
        v[first[k] + 1] = s->count[k].ns;
    }
    v[STAT_partition_prefill_units] = s->state.partition ? partition->prefill_units : 0;
    v[STAT_partition_decode_units] = s->state.partition ? partition->decode_units : 0;
    v[STAT_partition_changes] = s->state.n_changes;
}

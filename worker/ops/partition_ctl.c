/* partition_ctl.c - the partition controller: see partition_ctl.h. A part is the range of device
 * units of one lane; its share is the fraction of the device's speed that it has. */
#include "worker/ops/partition_ctl.h"

#include "base/clock.h"
#include "base/log.h"

enum { PREFILL_LANE, DECODE_LANE };
/* Estimated bytes and operations per second of one host core, used until steps are measured. */
static const double CORE_BANDWIDTH = 5e9, CORE_FLOPS = 2e10;
/* Fraction of its speed that a part keeps while the other part runs: 0.75 to 0.9 on an H200. */
static const double CONCURRENT_SHARE = 0.8;
/* Limits of a plausible measurement, because models of a few KiB give random values. A rate is from
 * MIN_RATE to MAX_RATE. The rate of a part is at most MAX_SHARE x the whole device's rate, and at
 * least MIN_SHARE x the part's fraction of the units x the whole device's rate. On an H200 these
 * two factors were at most 1.16 and at least 0.46. */
static const double MIN_RATE = 1e6, MAX_RATE = 1e18, MIN_SHARE = 0.1, MAX_SHARE = 2;
/* A GPU computes batched tokens in tiles: 627 take as long as 768 (measured on one H200). */
enum { TILE = 256 };

/* Fills in the part of each lane. An encoder lane has the same part as the prefill lane. */
static void
fill_lane_parts(const struct partition *r, struct exec_part part[MAX_LANES])
{
    for (unsigned i = 0; i < MAX_LANES; i++) part[i] = (struct exec_part){ 0, r->prefill_units };
    part[DECODE_LANE] = (struct exec_part){ r->prefill_units, r->decode_units };
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
        return err_set(e, -EINVAL, "the %u device units cannot be divided; set split.mode to off",
                       units);
    }
    s->lanes = state->mode != SPLIT_OFF;
    l->n_lanes = 0;
    l->lane_work[l->n_lanes++] = (uint8_t)(WORK_PREFILL | (s->lanes ? 0 : WORK_DECODE) |
                                           (own ? 0 : WORK_ENCODER));
    if (s->lanes) {
        l->lane_work[l->n_lanes++] = WORK_DECODE;
        l->lane_tokens[PREFILL_LANE] = (uint32_t)MAX(k->split_context_max_tokens, 0);
        l->lane_seqs[PREFILL_LANE] = (uint32_t)MAX(k->split_context_max_seqs, 0);
    }
    if (own) l->lane_work[l->n_lanes++] = WORK_ENCODER;
    x->n_lanes = l->n_lanes;
    for (unsigned i = 0; i < l->n_lanes; i++) x->lane_units[i] = units;
    x->n_partitions = s->lanes ? state->partition_list.n : 0;
    for (unsigned r = 1; r < x->n_partitions; r++)
        fill_lane_parts(&state->partition_list.partition[r], x->part[r]);
    return 0;
}

static void
use_partition(struct partition_ctl *s, struct partition_mode mode)
{
    if (mode.partition != s->state.partition) {
        pthread_mutex_lock(&s->lock);
        s->state.partition = mode.partition;
        s->state.n_changes++;
        pthread_mutex_unlock(&s->lock);
    }
    scheduler_set_partition(s->sched, mode.partition, mode.rows);
}

static struct part_share
share_of_units(uint32_t n, uint32_t units)
{
    return (struct part_share){ (double)n / units, (double)n / units };
}

/* Returns true if a measured rate is possible; false for NaN. */
static bool
is_rate(double x)
{
    return x >= MIN_RATE && x <= MAX_RATE;
}

static bool
is_plausible(const struct exec_rate *part, const struct exec_rate *all, uint32_t n, uint32_t units)
{
    double least = MIN_SHARE * n / units;

    return part->read >= least * all->read && part->read <= MAX_SHARE * all->read &&
           part->compute >= least * all->compute && part->compute <= MAX_SHARE * all->compute;
}

/* Sets the shares of a partition in the time model from measured rates: a part has CONCURRENT_SHARE
 * of the speed that it has alone, and prefill the memory bandwidth that decode leaves. Too high
 * shares are corrected by the first measured steps, but a partition with too low ones would never
 * be tried. If a rate is implausible, both parts keep their fractions of the units. */
static void
take_rates(struct partition_ctl *s, unsigned partition, const struct exec_rate *all)
{
    const struct partition_list *l = &s->state.partition_list;
    const struct partition *r = &l->partition[partition];
    struct exec_rate prefill = exec_rate(s->exec, partition, PREFILL_LANE),
                     decode = exec_rate(s->exec, partition, DECODE_LANE);
    bool good = is_rate(all->read) && is_rate(all->compute) &&
                is_plausible(&prefill, all, r->prefill_units, l->units) &&
                is_plausible(&decode, all, r->decode_units, l->units);
    double read = CONCURRENT_SHARE * MIN(decode.read / all->read, 1.);

    if (good)
        step_time_set_partition(
            &s->split.time, partition,
            (struct part_share){ 1 - read,
                                 CONCURRENT_SHARE * MIN(prefill.compute / all->compute, 1.) },
            (struct part_share){ read, CONCURRENT_SHARE * MIN(decode.compute / all->compute, 1.) });
    log_info("partition of %u prefill and %u decode units of %u: memory %.2f and %.2f of %.2f "
             "TB/s, arithmetic %.0f and %.0f of %.0f TFLOP/s%s",
             r->prefill_units, r->decode_units, l->units, prefill.read / 1e12, decode.read / 1e12,
             all->read / 1e12, prefill.compute / 1e12, decode.compute / 1e12, all->compute / 1e12,
             good ? "" : "; implausible, so speed is assumed proportional to units");
}

void
partition_ctl_open(struct partition_ctl *s, struct exec *x, struct scheduler *sched,
                   const struct kv_config *kv, const struct step_costs *costs,
                   const struct scheduler_limits *l, nsec target)
{
    const struct partition_list *partition_list = &s->state.partition_list;
    const struct exec_rate all = exec_rate(x, 0, PREFILL_LANE);
    const bool measured = all.read != 0 || all.compute != 0;
    const struct partition_limits limits = { MIN(kv->tokens_per_block, l->max_tokens),
                                             l->max_tokens, target, measured ? TILE : 0 };
    const struct exec_partition_times d = exec_partition_times(x);

    s->exec = x;
    s->sched = sched;
    s->state.target = target;
    partition_choose_init(&s->split, &limits, partition_list, costs, kv,
                          is_rate(all.read) ? all.read : CORE_BANDWIDTH * partition_list->units,
                          is_rate(all.compute) ? all.compute : CORE_FLOPS * partition_list->units);
    if (!s->lanes) return;
    for (unsigned r = 1; r < partition_list->n && measured; r++) take_rates(s, r, &all);
    if (measured)
        log_info("made %u partitions in %.0f ms, with %.0f MiB; measured them in %.0f ms",
                 partition_list->n - 1, (double)d.made / NSEC_MS, (double)d.bytes / (1 << 20),
                 (double)d.measured / NSEC_MS);
    use_partition(s, (struct partition_mode){ s->state.partition, 0 });
}

/* Prepares the device for an operator's partition, and resets its shares in the time model if its
 * parts have changed. Negative: the device cannot be partitioned so. */
static int
change_partition(struct partition_ctl *s, unsigned partition)
{
    const struct partition_list *l = &s->state.partition_list;
    struct exec_part part[MAX_LANES];
    struct err e;
    int r;

    fill_lane_parts(&l->partition[partition], part);
    r = exec_set_partition(s->exec, partition, part, &e);
    if (r < 0) log_warn("cannot apply the partition: %s; each lane uses the whole device", e.text);
    if (r == 0) /* 1: the parts are unchanged */
        step_time_set_partition(&s->split.time, partition,
                                share_of_units(l->partition[partition].prefill_units, l->units),
                                share_of_units(l->partition[partition].decode_units, l->units));
    return r;
}

static void
apply_selection(struct partition_ctl *s)
{
    const struct partition *selected = &s->selected_partition;
    unsigned partition = 0;
    struct err e;

    pthread_mutex_lock(&s->lock);
    atomic_store_explicit(&s->selection_pending, false, memory_order_relaxed);
    s->state.mode = s->selected_mode;
    if (s->selected_mode == SPLIT_FIXED)
        check(partition_list_set(&s->state.partition_list, selected->prefill_units,
                                 selected->decode_units, &partition, &e) == 0);
    pthread_mutex_unlock(&s->lock);
    if (partition && change_partition(s, partition) < 0) partition = 0;
    log_info("split mode set by an operator: %s", s->state.mode == SPLIT_AUTO  ? "auto"
                                                  : s->state.mode == SPLIT_OFF ? "off"
                                                                               : "fixed");
    if (s->state.mode != SPLIT_AUTO) use_partition(s, (struct partition_mode){ partition, 0 });
    partition_choose_start(&s->split, s->state.partition);
}

void
partition_ctl_update(struct partition_ctl *s)
{
    if (!s->lanes) return;
    if (atomic_load_explicit(&s->selection_pending, memory_order_acquire)) apply_selection(s);
    if (s->state.mode != SPLIT_AUTO) return;
    use_partition(s, partition_choose(&s->split, &s->state.partition_list, s->sched));
}

void
partition_ctl_launched(struct partition_ctl *s, const struct batch *b, nsec now)
{
    partition_choose_launched(&s->split, b, now);
}

void
partition_ctl_retired(struct partition_ctl *s, const struct batch *b, nsec now)
{
    struct partition_ctl_count *c = &s->count[step_kind(b->work)];

    c->n++;
    c->ns += (uint64_t)partition_choose_retired(&s->split, b, now);
}

/* Sets e to the change of the configuration that a worker with one lane needs for the selection. */
static int
refuse_one_lane(const struct partition_ctl *s, uint32_t mode, uint32_t prefill_units,
                uint32_t decode_units, struct err *e)
{
    uint64_t units = (uint64_t)prefill_units + decode_units;
    char share[48] = "";

    if (s->state.partition_list.n == 1)
        return err_set(e, -ENOTSUP, "the %u units of this worker's device cannot be divided",
                       s->state.partition_list.units);
    if (mode == SPLIT_FIXED && units)
        snprintf(share, sizeof share, " and split.context_sm: %.3f",
                 (double)prefill_units / (double)units);
    return err_set(e, -ENOTSUP,
                   "this worker was started with split.mode: off and has one lane; write "
                   "split.mode: %s%s for its model in the configuration file, then run `laganctl "
                   "daemon reexec`",
                   mode == SPLIT_FIXED ? "fixed" : "auto", share);
}

int
partition_ctl_select(struct partition_ctl *s, uint32_t mode, uint32_t prefill_units,
                     uint32_t decode_units, struct err *e)
{
    struct partition_list copy;
    unsigned partition;
    int r = 0;

    if (!s->lanes && mode == SPLIT_OFF) return 0; /* already off */
    if (!s->lanes) return refuse_one_lane(s, mode, prefill_units, decode_units, e);
    pthread_mutex_lock(&s->lock);
    copy = s->state.partition_list;
    if (mode == SPLIT_FIXED)
        r = partition_list_set(&copy, prefill_units, decode_units, &partition, e);
    if (r == 0) {
        s->selected_mode = mode;
        s->selected_partition = (struct partition){ prefill_units, decode_units };
        atomic_store_explicit(&s->selection_pending, true, memory_order_release);
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

    for (unsigned k = 0; k < STEP_KINDS; k++) { /* the statistic n is followed by ns */
        v[first[k]] = s->count[k].n;
        v[first[k] + 1] = s->count[k].ns;
    }
    v[STAT_partition_prefill_units] = s->state.partition ? partition->prefill_units : 0;
    v[STAT_partition_decode_units] = s->state.partition ? partition->decode_units : 0;
    v[STAT_partition_changes] = s->state.n_changes;
}

/* partition_choose.c - predicts each mode's throughput and selects one: see partition_choose.h. */
#include "worker/partition/partition_choose.h"

#include <math.h>

/* A mode is kept for DWELL selections (one per step). Then another mode must be better by 10 %
 * (BETTER), after 10 * DWELL selections by 1 %: noise must not change the mode, and a slightly
 * worse mode must not stay without limit. */
static const double BETTER = 0.1;
enum { DWELL = 8 };
/* EDGE: advantage in throughput that a partition needs over partition 0, whose times are known
 * better. It needs none if its inter-token time is lower by SOONER and decode is more than WEIGHT
 * of the work. WORTH: advantage in throughput that merged steps longer by LONGER need. */
static const double EDGE = 0.02, SOONER = 0.05, WORTH = 0.03;
/* ns of step time after which an observation counts 37 % (1/e). */
static const double FLOW = 3e9;
/* A merged step has this share of the prompt tokens that would keep all n_there sequences decoding:
 * with the shorter step fewer sequences decode, and each of them is faster. */
static const double ROUND = 0.75;
/* If decode is more than WEIGHT of the work, merged steps have at most MANY times the tokens whose
 * FLOP take as long as reading the weights: longer steps slow decode for the same throughput. */
static const double MANY = 2, WEIGHT = 0.2;
/* Longer merged steps, by this factor, are candidates too: only measurements show their benefit. */
static const double LONGER = 1.25;
/* SHORT, LONGEST: range of the time in ns of a prefill step on a partition. A mode change waits for
 * 2 such steps; decode does not. Short steps are inefficient: while decode runs, a prefill step
 * takes 28 ms more than its tokens need (8B, one H200). A step longer than SHORT has at most 1/FEW
 * of the prompt tokens of all n_there sequences: otherwise many prompts end together, and prefill
 * and decode alternate in waves. */
static const double SHORT = 2e8, LONGEST = 4e8, FEW = 8;
/* Waiting prompt tokens are counted up to QUEUE full steps. */
enum { QUEUE = 4 };
/* Decode steps on the decode part when prefill runs out of prompts: 2, one on average half done. */
static const double OUT = 1.5;
/* Probability that prefill runs out of prompts when a step ends prompts: OFTEN times the share of
 * time without prefill, at most 1. Prefill that is nearly always busy rarely runs out. */
static const double OFTEN = 4;

void
partition_choose_init(struct split *s, const struct partition_limits *l,
                      const struct partition_list *list, const struct step_costs *costs,
                      const struct kv_config *kv, double bandwidth, double peak)
{
    *s = (struct split){ .l = *l, .costs = *costs, .kv = kv };
    check(l->min_tokens >= 1 && l->max_tokens >= l->min_tokens);
    step_time_init(&s->time, list, bandwidth, peak);
    /* initial load: a prompt token without attention, one decoding sequence */
    s->load.row.weights = (double)costs->weights;
    s->load.row.matmul = costs->row_flops;
    s->load.decode = s->load.row;
    s->load.n_decode = 1;
    partition_choose_start(s, 0);
}

/* Returns n times the work of w; the weights are read once. */
static struct step_cost
scale_work(const struct step_cost *w, double n)
{
    return (struct step_cost){ w->weights, n * w->kv, n * w->matmul, n * w->attend };
}

static struct step_cost
prompt_work(const struct partition_load *load, double rows)
{
    return scale_work(&load->row, rows);
}

static struct step_cost
decode_work(const struct partition_load *load, double n)
{
    return scale_work(&load->decode, load->n_decode ? n / load->n_decode : 0);
}

/* Returns the factor by which rounding up to tiles lengthens matrix products on all units. */
static double
tile_padding(const struct split *s, double rows)
{
    return s->l.tile && rows > s->l.tile ? ceil(rows / s->l.tile) * s->l.tile / rows : 1;
}

/* Returns the expected ns of a merged step of n decoding sequences and `rows` prompt tokens. more:
 * the factor tile_padding() by which rounding up to tiles lengthens its matrix products. */
static double
merged_step_ns(const struct split *s, const struct partition_load *load, double n, double rows,
               double more)
{
    struct step_cost some = prompt_work(load, rows), all = decode_work(load, n);

    all.weights = MAX(all.weights, some.weights);
    all.kv += some.kv;
    all.matmul = (all.matmul + some.matmul) * more;
    all.attend += some.attend;
    return step_time_of(&s->time, STEP_BOTH, 0, &all);
}

/* Returns the most prompt tokens with which a merged step is within the target; its time is linear
 * in them once FLOP dominate. A prompt's last tokens attend to twice the mean number of keys. */
static double
rows_in_time(const struct split *s, const struct partition_load *load)
{
    double target = (double)s->l.target, n = load->n_decode, rows = s->l.max_tokens, most, less;
    struct partition_load last = *load;

    last.row.kv *= 2;
    last.row.attend *= 2;
    most = merged_step_ns(s, &last, n, rows, 1);
    less = merged_step_ns(s, &last, n, rows - 1, 1);
    if (s->l.target == 0 || most <= target) return rows;
    if (merged_step_ns(s, &last, n, s->l.min_tokens, 1) >= target) return s->l.min_tokens;
    return MAX(floor(rows - (most - target) / MAX(most - less, 1e-9)), (double)s->l.min_tokens);
}

/* Rounds the number of tokens of a step to an efficient size for matrix products. */
static double
round_to_tiles(const struct split *s, double rows, bool up)
{
    double grain = s->l.tile == 0 ? 1 : rows > s->l.tile ? s->l.tile : s->l.min_tokens;

    return (up ? ceil(rows / grain) : floor(rows / grain)) * grain;
}

/* Returns the ns per prompt token of a step of `rows` prompt tokens without decode tokens. */
static double
row_alone(const struct split *s, unsigned partition, const struct partition_load *load, double rows)
{
    struct step_cost some = prompt_work(load, rows);

    return step_time_of(&s->time, STEP_PREFILL, partition, &some) / rows;
}

static double
decode_step_ns(const struct split *s, unsigned partition, const struct partition_load *load,
               double n)
{
    struct step_cost some = decode_work(load, n);

    return step_time_of(&s->time, STEP_DECODE, partition, &some);
}

/* Returns decode's share of the work (0 .. 1), as if each phase ran alone on the whole device. */
static double
decode_share(const struct split *s, const struct partition_load *load)
{
    double n = load->n_there, tokens = load->tokens * decode_step_ns(s, 0, load, n) / n;

    return tokens / (tokens + row_alone(s, 0, load, s->l.max_tokens));
}

/* Returns the most tokens, decode tokens included, of a merged step within the target. */
static double
rows_at_most(const struct split *s, const struct partition_load *load)
{
    double n = load->n_decode, most = round_to_tiles(s, n + rows_in_time(s, load), false);

    return MIN(MAX(most, n + s->l.min_tokens), (double)s->l.max_tokens);
}

/* Returns the tokens of a merged step: enough that nearly all steps have prompt tokens, and none
 * reads the weights for decode alone. More tokens would only increase the inter-token time. */
static double
rows_together(const struct split *s, const struct partition_load *load)
{
    const double *base = s->time.cell[STEP_BOTH][0].base;
    double least = s->l.min_tokens, round = load->n_there, few;

    if (load->tokens <= 0 || load->n_there == 0) return rows_at_most(s, load);
    few = load->row.weights * base[0] / (load->row.matmul * base[2]);
    round += ceil(ROUND * load->n_there / load->tokens / least) * least;
    if (decode_share(s, load) > WEIGHT) round = MIN(round, MANY * few);
    return MIN(rows_at_most(s, load),
               round_to_tiles(s, MAX(MAX(round, few), load->n_decode + least), true));
}

void
partition_choose_start(struct split *s, unsigned partition)
{
    s->now = (struct partition_mode){ partition, (uint32_t)rows_together(s, &s->load) };
    s->since = DWELL;
}

static double
rows_of_step(const struct partition_load *load, double most)
{
    return MAX(MIN((double)load->n_tokens, most), 1.);
}

/* Returns the throughput in prompt tokens per ns if n sequences decode; the time of their output
 * tokens is included. row: ns per prompt token; token: ns of a decode step during prefill. Model:
 * one of n_there sequences is in prefill while n decode. If decode is slower, prefill runs out of
 * prompts, and the whole device generates the other output tokens; only the `out` decode steps in
 * flight at that moment still take `token` ns. */
static double
rows_per_ns(const struct split *s, const struct partition_load *load, double n, double row,
            double token, double out)
{
    double others = MIN(n, load->n_there - 1.), left = load->tokens - others * row / token, whole,
           rest;

    if (left <= 0) return 1 / row;
    whole = decode_step_ns(s, 0, load, n);
    rest = left * whole / n;
    if (load->prompt > 0) /* waiting prompts follow without an interruption of prefill */
        row += out * MAX(token - whole, 0.) / MAX(load->prompt, (double)load->n_tokens) *
               MIN(OFTEN * rest / (row + rest), 1.);
    return 1 / (row + rest);
}

/* Returns how many sequences decode at the same time: n, the number that prefill supplies, limited
 * by n_there and the target. none, token: ns of a step that decodes 0 and n_decode sequences. */
static double
n_fed(const struct split *s, const struct partition_load *load, double n, double none, double token)
{
    double each = MAX(token - none, 1e-3) / load->n_decode;

    if (s->l.target) n = MIN(n, ((double)s->l.target - none) / each);
    return MAX(MIN(n, (double)load->n_there), 1.);
}

/* Returns the tokens of a prefill step on the prefill part of a partition. */
static double
rows_apart(const struct split *s, unsigned partition, const struct partition_load *load)
{
    double row = row_alone(s, partition, load, s->l.max_tokens),
           rows = MIN(MAX(load->n_there * load->each / FEW, SHORT / row), LONGEST / row);

    rows = round_to_tiles(s, rows, false);
    return MIN(MAX(rows, (double)s->l.min_tokens), (double)s->l.max_tokens);
}

static struct partition_expect
expect_together(const struct split *s, const struct partition_load *load, double rows)
{
    double some = rows_of_step(load, rows - load->n_decode), n, token,
           more = tile_padding(s, load->n_decode + some);
    struct partition_expect x = { .token = merged_step_ns(s, load, load->n_decode, some, more),
                                  .way = { 0, (uint32_t)rows } };

    x.row = x.token / some;
    n = n_fed(s, load, load->tokens * some, merged_step_ns(s, load, 0, some, more), x.token);
    token = merged_step_ns(s, load, n, some, more);
    x.done = rows_per_ns(s, load, n, token / some, token, 0);
    return x;
}

static struct partition_expect
expect_apart(const struct split *s, unsigned partition, const struct partition_load *load)
{
    struct partition_expect x = { .way = { partition, (uint32_t)rows_apart(s, partition, load) } };
    double none = decode_step_ns(s, partition, load, 0), n;

    x.row = row_alone(s, partition, load, rows_of_step(load, x.way.rows));
    x.token = decode_step_ns(s, partition, load, load->n_decode);
    /* In the steady state the prefill of a prompt token takes as long as its output tokens: x.row =
     * tokens * (none + n * more) / n, with `more` ns per decoding sequence. Solved for n: */
    n = x.row - load->tokens * (x.token - none) / load->n_decode;
    n = n_fed(s, load, n > 0 ? load->tokens * none / n : load->n_there, none, x.token);
    x.done = rows_per_ns(s, load, n, x.row, decode_step_ns(s, partition, load, n), OUT);
    return x;
}

struct partition_expect
partition_expect(const struct split *s, unsigned partition, const struct partition_load *load)
{
    struct partition_expect few, more;
    double rows;

    if (partition) return expect_apart(s, partition, load);
    rows = rows_together(s, load);
    few = expect_together(s, load, rows);
    rows = MIN(round_to_tiles(s, rows * LONGER, true), rows_at_most(s, load));
    if (rows <= few.way.rows) return few;
    more = expect_together(s, load, rows);
    return more.done * (1 - WORTH) > few.done ? more : few;
}

static double
edge_of_partition(const struct split *s, const struct partition_load *load,
                  const struct partition_expect *partition, const struct partition_expect *lane)
{
    bool sooner = partition->token < (1 - SOONER) * lane->token;

    return sooner && decode_share(s, load) > WEIGHT ? 0 : EDGE;
}

/* True if a is preferred to b by margin `better`: within the target the higher throughput is
 * preferred, outside it the lower inter-token time. */
static bool
is_preferred(const struct split *s, const struct partition_load *load,
             const struct partition_expect *a, const struct partition_expect *b, double better)
{
    double target = s->l.target ? (double)s->l.target : 1e300;
    bool a_fits = a->token <= target, b_fits = b->token <= target;

    if (a_fits != b_fits) return a_fits;
    if (!a_fits) return a->token < b->token * (1 - better);
    if (a->way.partition && !b->way.partition) better += edge_of_partition(s, load, a, b);
    if (!a->way.partition && b->way.partition) better -= edge_of_partition(s, load, b, a);
    return a->done * (1 - better) > b->done;
}

struct partition_expect
partition_choose_best(const struct split *s, const struct partition_list *list,
                      const struct partition_load *load)
{
    struct partition_expect best = partition_expect(s, 0, load);

    for (unsigned r = 1; r < list->n; r++) {
        struct partition_expect x = partition_expect(s, r, load);

        if (is_preferred(s, load, &x, &best, 0)) best = x;
    }
    return best;
}

struct partition_mode
partition_choose_for(struct split *s, const struct partition_list *list,
                     const struct partition_load *load)
{
    struct partition_expect now, other;

    s->since += s->since < UINT32_MAX;
    /* while one phase is idle or was never measured, modes cannot be compared. The step size still
     * follows the target, so that the next prompt meets it from its first step. */
    if (load->n_decode == 0) return s->now;
    if (s->now.partition == 0) s->now.rows = (uint32_t)rows_together(s, load);
    if (load->n_tokens == 0) return s->now;
    if (step_time_known(&s->time, STEP_PREFILL) + step_time_known(&s->time, STEP_BOTH) == 0 ||
        step_time_known(&s->time, STEP_DECODE) + step_time_known(&s->time, STEP_BOTH) == 0)
        return s->now;
    now = partition_expect(s, s->now.partition, load);
    s->now.rows = now.way.rows;
    if (s->since < DWELL) return s->now;
    other = partition_choose_best(s, list, load);
    if (other.way.partition == s->now.partition ||
        !is_preferred(s, load, &other, &now, BETTER * DWELL / s->since))
        return s->now;
    s->now = other.way;
    s->since = 0;
    s->n_changes++;
    return s->now;
}

/* True if the lane's oldest step has not started, because another lane's step must end first. */
static bool
waits_for_lane(const struct split *s, const struct partition_lane *l)
{
    const struct step_dependency *w = &l->wait[(l->done + 1) % 2];

    return w->step > s->lane[w->lane].done;
}

/* Returns the sum of the busy times of all lanes except `lane`. */
static nsec
others_busy(const struct split *s, unsigned lane, nsec now)
{
    nsec busy = 0;

    for (unsigned i = 0; i < MAX_LANES; i++) {
        const struct partition_lane *l = &s->lane[i];

        if (i != lane) busy += l->busy + (l->n_out && !waits_for_lane(s, l) ? now - l->began : 0);
    }
    return busy;
}

static void
start_oldest_step(struct split *s, unsigned lane, nsec now)
{
    s->lane[lane].began = now;
    s->lane[lane].others = others_busy(s, lane, now);
}

static bool
has_prompts(const struct batch *b)
{
    return b->work & (WORK_PREFILL | WORK_ENCODER);
}

void
partition_choose_launched(struct split *s, const struct batch *b, nsec now)
{
    struct partition_lane *l = &s->lane[b->lane];
    struct step_dependency *w = &l->wait[b->step % 2];

    w->step = 0;
    for (uint32_t i = 0; i < b->n_waits; i++)
        if (b->wait[i].lane != b->lane) *w = b->wait[i];
    l->n_prompts += has_prompts(b);
    if (l->n_out++ == 0) start_oldest_step(s, b->lane, now);
}

/* Updates the cost of a prompt token and of a decode step. b's weight decays from its middle on. */
static void
observe_work(struct split *s, const struct batch *b, nsec took, nsec now)
{
    double keep = exp(-(double)MIN(took, now - s->at) / FLOW), half = exp(-(double)took / 2 / FLOW);
    struct step_cost prompts = step_cost_of(&s->costs, s->kv, b, WORK_PREFILL | WORK_ENCODER);
    struct step_cost *row = &s->load.row;
    uint32_t rows = b->n_tokens, ends = 0;

    s->flow.rows *= keep;
    s->flow.tokens *= keep;
    s->flow.work.kv *= keep;
    s->flow.work.matmul *= keep;
    s->flow.work.attend *= keep;
    if (b->work & WORK_DECODE) s->load.decode = step_cost_of(&s->costs, s->kv, b, WORK_DECODE);
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct batch_segment *segment = &b->segment[i];

        if (segment->work == WORK_DECODE)
            rows -= segment->n_tokens;
        else if (segment->work == WORK_PREFILL && segment->flags & SEGMENT_SAMPLE)
            ends++;
    }
    s->flow.ends = s->flow.ends * keep + half * (ends > 0);
    s->flow.prompts = s->flow.prompts * keep + half * ends;
    s->flow.rows += half * rows;
    s->flow.tokens += half * (b->n_tokens - rows);
    if (b->n_tokens > rows) s->flow.last = b->n_tokens - rows;
    if (rows == 0) return;
    /* The cost per prompt token is a mean of steps: one of few tokens may read as many keys as a
     * step of many. */
    s->flow.work.kv += half * prompts.kv;
    s->flow.work.matmul += half * prompts.matmul;
    s->flow.work.attend += half * prompts.attend;
    row->weights = prompts.weights;
    row->kv = s->flow.work.kv / s->flow.rows;
    row->matmul = s->flow.work.matmul / s->flow.rows;
    row->attend = s->flow.work.attend / s->flow.rows;
}

/* Updates load.tokens (output tokens per prompt token) if b has prefill or no step with prefill is
 * in flight. At other times the decode steps would count, but not the prompt tokens computed
 * meanwhile: the ratio varied by 10 %, and the mode changed back and forth. */
static void
observe_flow(struct split *s, const struct batch *b)
{
    uint32_t out = 0;

    for (unsigned i = 0; i < MAX_LANES; i++) out += s->lane[i].n_prompts;
    if (out == 0 || has_prompts(b))
        s->load.tokens = s->flow.rows > 0 ? s->flow.tokens / s->flow.rows : 0;
}

nsec
partition_choose_retired(struct split *s, const struct batch *b, nsec now)
{
    static const unsigned all = WORK_ENCODER | WORK_PREFILL | WORK_DECODE;
    enum step_kind kind = step_kind(b->work);
    struct partition_lane *l = &s->lane[b->lane];
    struct step_cost w = step_cost_of(&s->costs, s->kv, b, all);
    nsec took = now - l->began;
    double beside = took > 0 ? (double)(others_busy(s, b->lane, now) - l->others) / (double)took
                             : 0;

    beside = MIN(MAX(beside, 0.), 1.);
    observe_work(s, b, took, now);
    if (b->partition == 0 && b->n_encode == 0) w.matmul *= tile_padding(s, b->n_tokens);
    step_time_learn(&s->time, kind, b->partition, &w, took, beside);
    l->busy += took;
    l->n_out--;
    l->n_prompts -= has_prompts(b);
    l->done = b->step;
    start_oldest_step(s, b->lane, now);
    for (unsigned i = 0; i < MAX_LANES; i++) { /* steps that depended on b start now */
        const struct step_dependency *wait = &s->lane[i].wait[(s->lane[i].done + 1) % 2];

        if (s->lane[i].n_out && wait->lane == b->lane && wait->step == b->step)
            start_oldest_step(s, i, now);
    }
    observe_flow(s, b);
    s->at = now;
    s->news = true;
    return took;
}

struct partition_mode
partition_choose(struct split *s, const struct partition_list *list, const struct scheduler *sched)
{
    struct scheduler_load load;

    if (!s->news) return s->now;
    s->news = false;
    load = scheduler_load(sched, QUEUE * s->l.max_tokens);
    s->load.n_decode = load.n_generating;
    /* If all outputs have one token, they are all planned by now and no sequence seems to decode;
     * then count those of the last step, because with n_decode 0 the mode would never change. */
    if (s->load.n_decode == 0 && s->flow.tokens >= 1) s->load.n_decode = s->flow.last;
    s->load.n_there = MAX(load.n_there, s->load.n_decode);
    s->load.prompt = s->flow.ends > 0 ? s->flow.rows / s->flow.ends : 0;
    s->load.each = s->flow.prompts > 0 ? s->flow.rows / s->flow.prompts : 0;
    /* A prompt that fits into two steps is planned completely before the next selection, so
     * n_tokens is at least what recent steps computed: the mode must suit the prompts to come. */
    s->load.n_tokens = MAX((uint64_t)load.prompt_tokens,
                           (uint64_t)MIN(s->load.prompt, (double)s->l.max_tokens));
    return partition_choose_for(s, list, &s->load);
}

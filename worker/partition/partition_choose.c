/* partition_choose.c - see partition_choose.h. */
#include "worker/partition/partition_choose.h"

#include <math.h>

/* DWELL: so many askings, one a step, a way is kept. BETTER: by what part another must beat it
 * then, and after ten times as many by a tenth of that: it is not to be left for noise, nor kept
 * for ever where it is a little worse. */
static const double BETTER = 0.1;
enum { DWELL = 8 };
/* By what part a partition must be better than one lane, whose times are known better and which
 * costs no change, unless tokens come so much SOONER on it and answers have WEIGHT; WORTH: by what
 * part longer steps of both must be better than shorter ones. */
static const double EDGE = 0.02, SOONER = 0.05, WORTH = 0.03;
/* ns of steps until most of what came and went is forgotten. */
static const double FLOW = 3e9;
/* Of the rows that go round, so many do: with fewer, somewhat fewer generate at a time, each of
 * them sooner. */
static const double ROUND = 0.75;
/* No more rows than MANY times those whose arithmetic is done while the weights are read, where
 * answers are WEIGHT of the work or more: as much gets done, by fewer at a time, each of them
 * sooner. Prompts alone want long steps. */
static const double MANY = 2, WEIGHT = 0.2;
/* So much longer steps are looked at, too: whether products of so few rows are worth it shows in
 * steps. */
static const double LONGER = 1.25;
/* ns that a step of prompts alone takes, at most: a change of the way waits for two of them. No
 * token does, and each takes longer than its rows do, by 28 ms beside answers (8B, one H200).
 * Longer than SHORT it is only with less than one in FEW of the rows that all who are there have:
 * else too many prompts end at once, and prompts and answers come in waves. */
static const double SHORT = 2e8, LONGEST = 4e8, FEW = 8;
/* So many steps' rows of prompts that wait are counted: a change costs those few who are there
 * more. */
enum { QUEUE = 4 };
/* Steps of answers that are launched when the last one of prompts ends: two, of which one has
 * begun. */
static const double OUT = 1.5;
/* Prompts that have a part of the time left end so many times as often, a prompt: those that nearly
 * keep up hardly do. */
static const double OFTEN = 4;

void
partition_choose_init(struct split *s, const struct partition_choose_limits *l,
                      const struct partition_list *partition_list, const struct step_costs *costs,
                      const struct kv_config *kv, double bandwidth, double peak)
{
    *s = (struct split){ .l = *l, .costs = *costs, .kv = kv };
    check(l->min_tokens >= 1 && l->max_tokens >= l->min_tokens);
    step_time_init(&s->time, partition_list, bandwidth, peak);
    /* Before there was any: a prompt's rows as its matrices have them, one who generates. */
    s->load.row = (struct step_cost){ .weights = (double)costs->weights,
                                      .matmul = costs->row_flops };
    s->load.decode = s->load.row;
    s->load.n_decode = 1;
    partition_choose_start(s, 0);
}

/* So many rows of prompts. */
static struct step_cost
prompt_work(const struct partition_load *load, double rows)
{
    return (struct step_cost){ load->row.weights, rows * load->row.kv, rows * load->row.matmul,
                               rows * load->row.attend };
}

/* A step of so many who generate. */
static struct step_cost
decode_work(const struct partition_load *load, double n)
{
    double more = load->n_decode ? n / load->n_decode : 0;

    return (struct step_cost){ load->decode.weights, more * load->decode.kv,
                               more * load->decode.matmul, more * load->decode.attend };
}

static struct step_cost
sum_work(const struct step_cost *a, const struct step_cost *b)
{
    return (struct step_cost){ MAX(a->weights, b->weights), a->kv + b->kv, a->matmul + b->matmul,
                               a->attend + b->attend };
}

/* Products of so many rows on the whole device take as long as of so many times as many. */
static double
tile_padding(const struct split *s, double rows)
{
    return s->l.tile && rows > s->l.tile ? ceil(rows / s->l.tile) * s->l.tile / rows : 1;
}

/* more: times the rows, as long as their products take. */
static double
merged_step_ns(const struct split *s, const struct partition_load *load, double n, double rows,
               double more)
{
    struct step_cost some = prompt_work(load, rows), others = decode_work(load, n),
                     all = sum_work(&others, &some);

    all.matmul *= more;
    return step_time_of(&s->time, STEP_BOTH, 0, &all);
}

/* As many rows as keep a step of both within the target: its time is a line in them, level before.
 * A prompt's last rows see twice the keys that all of its rows see on average. */
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

/* Rows of a step, to where products are best: down, or up. */
static double
round_to_tiles(const struct split *s, double rows, bool up)
{
    double grain = s->l.tile == 0 ? 1 : rows > s->l.tile ? s->l.tile : s->l.min_tokens;

    return (up ? ceil(rows / grain) : floor(rows / grain)) * grain;
}

/* A prompt's row in a step of so many, alone in its lane. */
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

/* What answers are of the work, each phase for itself on the whole device. */
static double
weight_of_answers(const struct split *s, const struct partition_load *load)
{
    double n = load->n_there, tokens = load->tokens * decode_step_ns(s, 0, load, n) / n;

    return tokens / (tokens + row_alone(s, 0, load, s->l.max_tokens));
}

/* Of a step of both, those who generate among them: what the target allows. */
static double
rows_at_most(const struct split *s, const struct partition_load *load)
{
    double n = load->n_decode, most = round_to_tiles(s, n + rows_in_time(s, load), false);

    return MIN(MAX(most, n + s->l.min_tokens), (double)s->l.max_tokens);
}

/* As many, or as few as go round, so that every step has some and no answer reads the weights for
 * itself alone; more would only make steps longer. */
static double
rows_together(const struct split *s, const struct partition_load *load)
{
    const double *base = s->time.cell[STEP_BOTH][0].base;
    double least = s->l.min_tokens, round = load->n_there, few;

    if (load->tokens <= 0 || load->n_there == 0) return rows_at_most(s, load);
    few = load->row.weights * base[0] / (load->row.matmul * base[2]);
    round += ceil(ROUND * load->n_there / load->tokens / least) * least;
    if (weight_of_answers(s, load) > WEIGHT) round = MIN(round, MANY * few);
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

/* Rows of prompts a ns, each with its tokens, while n generate: one of those who are there has its
 * prompt computed. row: what one takes, token: a step beside. What is not generated by then is when
 * prompts have ended, on the whole device: but for `out` steps each time, which are launched by
 * then. */
static double
rows_per_ns(const struct split *s, const struct partition_load *load, double n, double row,
            double token, double out)
{
    double others = MIN(n, load->n_there - 1.), left = load->tokens - others * row / token, whole,
           rest;

    if (left <= 0) return 1 / row;
    whole = decode_step_ns(s, 0, load, n);
    rest = left * whole / n;
    if (load->prompt > 0) /* those that wait follow without a preempt */
        row += out * MAX(token - whole, 0.) / MAX(load->prompt, (double)load->n_tokens) *
               MIN(OFTEN * rest / (row + rest), 1.);
    return 1 / (row + rest);
}

/* As many as prompts feed, but no more than there are or the target has time for, where a step of
 * nobody takes `none` and one of all who generate now `token`. */
static double
n_fed(const struct split *s, const struct partition_load *load, double n, double none, double token)
{
    double each = MAX(token - none, 1e-3) / load->n_decode;

    if (s->l.target) n = MIN(n, ((double)s->l.target - none) / each);
    return MAX(MIN(n, (double)load->n_there), 1.);
}

/* Of a step of prompts on its part. */
static double
rows_apart(const struct split *s, unsigned partition, const struct partition_load *load)
{
    double row = row_alone(s, partition, load, s->l.max_tokens),
           rows = MIN(MAX(load->n_there * load->each / FEW, SHORT / row), LONGEST / row);

    rows = round_to_tiles(s, rows, false);
    return MIN(MAX(rows, (double)s->l.min_tokens), (double)s->l.max_tokens);
}

static struct partition_choose_expect
expect_together(const struct split *s, const struct partition_load *load, double rows)
{
    double some = rows_of_step(load, rows - load->n_decode), n, token,
           more = tile_padding(s, load->n_decode + some);
    struct partition_choose_expect x = {
        .token = merged_step_ns(s, load, load->n_decode, some, more), .way = { 0, (uint32_t)rows }
    };

    x.row = x.token / some;
    n = n_fed(s, load, load->tokens * some, merged_step_ns(s, load, 0, some, more), x.token);
    token = merged_step_ns(s, load, n, some, more);
    x.done = rows_per_ns(s, load, n, token / some, token, 0);
    return x;
}

static struct partition_choose_expect
expect_apart(const struct split *s, unsigned partition, const struct partition_load *load)
{
    struct partition_choose_expect x = { .way = { partition,
                                                  (uint32_t)rows_apart(s, partition, load) } };
    double none = decode_step_ns(s, partition, load, 0), n;

    x.row = row_alone(s, partition, load, rows_of_step(load, x.way.rows));
    x.token = decode_step_ns(s, partition, load, load->n_decode);
    /* What a row is followed by is there when the next one is: n = tokens (none + n more) / row. */
    n = x.row - load->tokens * (x.token - none) / load->n_decode;
    n = n_fed(s, load, n > 0 ? load->tokens * none / n : load->n_there, none, x.token);
    x.done = rows_per_ns(s, load, n, x.row, decode_step_ns(s, partition, load, n), OUT);
    return x;
}

struct partition_choose_expect
partition_choose_expect(const struct split *s, unsigned partition,
                        const struct partition_load *load)
{
    struct partition_choose_expect few, more;
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
                  const struct partition_choose_expect *partition,
                  const struct partition_choose_expect *lane)
{
    bool sooner = partition->token < (1 - SOONER) * lane->token;

    return sooner && weight_of_answers(s, load) > WEIGHT ? 0 : EDGE;
}

/* Whether a is to be preferred: within the target, then by what gets done; else by the time between
 * tokens. */
static bool
is_preferred(const struct split *s, const struct partition_load *load,
             const struct partition_choose_expect *a, const struct partition_choose_expect *b,
             double better)
{
    double target = s->l.target ? (double)s->l.target : 1e300;
    bool a_fits = a->token <= target, b_fits = b->token <= target;

    if (a_fits != b_fits) return a_fits;
    if (!a_fits) return a->token < b->token * (1 - better);
    if (a->way.partition && !b->way.partition) better += edge_of_partition(s, load, a, b);
    if (!a->way.partition && b->way.partition) better -= edge_of_partition(s, load, b, a);
    return a->done * (1 - better) > b->done;
}

static struct partition_choose_expect
best_expectation(const struct split *s, const struct partition_list *partition_list,
                 const struct partition_load *load)
{
    struct partition_choose_expect best = partition_choose_expect(s, 0, load);

    for (unsigned r = 1; r < partition_list->n; r++) {
        struct partition_choose_expect x = partition_choose_expect(s, r, load);

        if (is_preferred(s, load, &x, &best, 0)) best = x;
    }
    return best;
}

struct partition_mode
partition_choose_best(const struct split *s, const struct partition_list *partition_list,
                      const struct partition_load *load)
{
    return best_expectation(s, partition_list, load).way;
}

struct partition_mode
partition_choose_for(struct split *s, const struct partition_list *partition_list,
                     const struct partition_load *load)
{
    struct partition_choose_expect now, other;

    s->since += s->since < UINT32_MAX;
    /* With one phase empty there is nothing to choose; of who never ran nothing is known. But the
     * next prompt keeps the target from its first step on. */
    if (load->n_decode == 0) return s->now;
    if (s->now.partition == 0) s->now.rows = (uint32_t)rows_together(s, load);
    if (load->n_tokens == 0) return s->now;
    if (step_time_known(&s->time, STEP_PREFILL) + step_time_known(&s->time, STEP_BOTH) == 0 ||
        step_time_known(&s->time, STEP_DECODE) + step_time_known(&s->time, STEP_BOTH) == 0)
        return s->now;
    now = partition_choose_expect(s, s->now.partition, load);
    s->now.rows = now.way.rows;
    if (s->since < DWELL) return s->now;
    other = best_expectation(s, partition_list, load);
    if (other.way.partition == s->now.partition ||
        !is_preferred(s, load, &other, &now, BETTER * DWELL / s->since))
        return s->now;
    s->now = other.way;
    s->since = 0;
    s->n_changes++;
    return s->now;
}

/* Its oldest step has not begun: it waits for one of another lane. */
static bool
waits_for_lane(const struct split *s, const struct partition_choose_lane *l)
{
    const struct step_dependency *w = &l->wait[(l->done + 1) % 2];

    return w->step > s->lane[w->lane].done;
}

/* How long the lanes beside it were at work, all in all. */
static nsec
others_busy(const struct split *s, unsigned lane, nsec now)
{
    nsec busy = 0;

    for (unsigned i = 0; i < MAX_LANES; i++) {
        const struct partition_choose_lane *l = &s->lane[i];

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
    struct partition_choose_lane *l = &s->lane[b->lane];
    struct step_dependency *w = &l->wait[b->step % 2];

    w->step = 0;
    for (uint32_t i = 0; i < b->n_waits; i++)
        if (b->wait[i].lane != b->lane) *w = b->wait[i];
    l->n_prompts += has_prompts(b);
    if (l->n_out++ == 0) start_oldest_step(s, b->lane, now);
}

/* What a row of a prompt costs, and what a step of all that generate. What it had is counted as if
 * in its middle. */
static void
see_work(struct split *s, const struct batch *b, nsec took, nsec now)
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
    /* A step of few rows may read as many keys as one of many: what a row costs is that of all rows
     * of late. */
    s->flow.work.kv += half * prompts.kv;
    s->flow.work.matmul += half * prompts.matmul;
    s->flow.work.attend += half * prompts.attend;
    *row = (struct step_cost){ prompts.weights, s->flow.work.kv / s->flow.rows,
                               s->flow.work.matmul / s->flow.rows,
                               s->flow.work.attend / s->flow.rows };
}

/* Tokens to a row: taken when a step with prompts is over, or none is out. In between steps of
 * answers are counted, and not yet the prompts that were computed beside them: by a tenth more and
 * less, for which the way was changed to and fro. */
static void
see_flow(struct split *s, const struct batch *b)
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
    struct partition_choose_lane *l = &s->lane[b->lane];
    struct step_cost w = step_cost_of(&s->costs, s->kv, b, all);
    nsec took = now - l->began;
    double beside = took > 0 ? (double)(others_busy(s, b->lane, now) - l->others) / (double)took
                             : 0;

    beside = MIN(MAX(beside, 0.), 1.);
    see_work(s, b, took, now);
    if (b->partition == 0 && b->n_encode == 0) w.matmul *= tile_padding(s, b->n_tokens);
    step_time_learn(&s->time, kind, b->partition, &w, took, beside);
    l->busy += took;
    l->n_out--;
    l->n_prompts -= has_prompts(b);
    l->done = b->step;
    start_oldest_step(s, b->lane, now);
    for (unsigned i = 0; i < MAX_LANES; i++) { /* who has waited for it begins */
        const struct step_dependency *wait = &s->lane[i].wait[(s->lane[i].done + 1) % 2];

        if (s->lane[i].n_out && wait->lane == b->lane && wait->step == b->step)
            start_oldest_step(s, i, now);
    }
    see_flow(s, b);
    s->at = now;
    s->news = true;
    return took;
}

struct partition_mode
partition_choose(struct split *s, const struct partition_list *partition_list,
                 const struct scheduler *sched)
{
    struct scheduler_load load;

    if (!s->news) return s->now;
    s->news = false;
    load = scheduler_load(sched, QUEUE * s->l.max_tokens);
    s->load.n_decode = load.n_generating;
    /* Of answers that are one step long all have it planned by now, so that nobody seems to
     * generate whenever it is asked: a partition would be kept, however bad it was. */
    if (s->load.n_decode == 0 && s->flow.tokens >= 1) s->load.n_decode = s->flow.last;
    s->load.n_there = MAX(load.n_there, s->load.n_decode);
    s->load.prompt = s->flow.ends > 0 ? s->flow.rows / s->flow.ends : 0;
    s->load.each = s->flow.prompts > 0 ? s->flow.rows / s->flow.prompts : 0;
    /* When one comes that fits into two steps, both are planned before the next asking: so the way
     * is that of the next ones, as many as steps ended of late. With nobody there it costs nothing.
     * */
    s->load.n_tokens = MAX((uint64_t)load.prompt_tokens,
                           (uint64_t)MIN(s->load.prompt, (double)s->l.max_tokens));
    return partition_choose_for(s, partition_list, &s->load);
}

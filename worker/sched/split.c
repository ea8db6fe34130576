/* split.c - see split.h. */
#include "worker/sched/split.h"

#include <math.h>

/* DWELL: so many askings, one a step, a way is kept. BETTER: by what part another must beat it then, and after ten times
 * as many by a tenth of that: it is not to be left for noise, nor kept for ever where it is a little worse. */
static const double BETTER = 0.1;
enum { DWELL = 8 };
/* By what part a rung must be better than one lane, whose times are known better and which costs no change, unless tokens
 * come so much SOONER on it and answers have WEIGHT; WORTH: by what part longer steps of both must be better than shorter ones. */
static const double EDGE = 0.02, SOONER = 0.05, WORTH = 0.03;
/* ns of steps until most of what came and went is forgotten. */
static const double FLOW = 3e9;
/* Of the rows that go round, so many do: with fewer, somewhat fewer generate at a time, each of them sooner. */
static const double ROUND = 0.75;
/* No more rows than MANY times those whose arithmetic is done while the weights are read, where answers are WEIGHT of the
 * work or more: as much gets done, by fewer at a time, each of them sooner. Prompts alone want long steps. */
static const double MANY = 2, WEIGHT = 0.2;
/* So much longer steps are looked at, too: whether products of so few rows are worth it shows in steps. */
static const double LONGER = 1.25;
/* ns that a step of prompts alone takes, at most: a change of the way waits for two of them. No token does, and each takes longer
 * than its rows do, by 28 ms beside answers (8B, one H200). Longer than SHORT it is only with less than one in FEW of the rows that
 * all who are there have: else too many prompts end at once, and prompts and answers come in waves. */
static const double SHORT = 2e8, LONGEST = 4e8, FEW = 8;
/* So many steps' rows of prompts that wait are counted: a change costs those few who are there more. */
enum { QUEUE = 4 };
/* Steps of answers that are launched when the last one of prompts ends: two, of which one has begun. */
static const double OUT = 1.5;
/* Prompts that have a part of the time left end so many times as often, a prompt: those that nearly keep up hardly do. */
static const double OFTEN = 4;

void
split_init(struct split *s, const struct split_limits *l, const struct ladder *ladder,
           const struct work_costs *costs, const struct kv_config *kv, double bandwidth,
           double peak)
{
    *s = (struct split){ .l = *l, .costs = *costs, .kv = kv };
    check(l->least_rows >= 1 && l->most_rows >= l->least_rows);
    steptime_init(&s->time, ladder, bandwidth, peak);
    /* Before there was any: a prompt's rows as its matrices have them, one who generates. */
    s->load.row = (struct work_done){ .weights = (double)costs->weights,
                                      .matmul = costs->row_flops };
    s->load.decode = s->load.row;
    s->load.n_decode = 1;
    split_begin(s, 0);
}

/* So many rows of prompts. */
static struct work_done
prompt_work(const struct split_load *load, double rows)
{
    return (struct work_done){ load->row.weights, rows * load->row.kv, rows * load->row.matmul,
                               rows * load->row.attend };
}

/* A step of so many who generate. */
static struct work_done
decode_work(const struct split_load *load, double n)
{
    double more = load->n_decode ? n / load->n_decode : 0;

    return (struct work_done){ load->decode.weights, more * load->decode.kv,
                               more * load->decode.matmul, more * load->decode.attend };
}

static struct work_done
sum_work(const struct work_done *a, const struct work_done *b)
{
    return (struct work_done){ MAX(a->weights, b->weights), a->kv + b->kv, a->matmul + b->matmul,
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
merged_step_ns(const struct split *s, const struct split_load *load, double n, double rows,
               double more)
{
    struct work_done some = prompt_work(load, rows), others = decode_work(load, n),
                     all = sum_work(&others, &some);

    all.matmul *= more;
    return steptime_of(&s->time, STEP_BOTH, 0, &all);
}

/* As many rows as keep a step of both within the target: its time is a line in them, level before. A prompt's last rows see
 * twice the keys that all of its rows see on average. */
static double
rows_in_time(const struct split *s, const struct split_load *load)
{
    double target = (double)s->l.target, n = load->n_decode, rows = s->l.most_rows, most, less;
    struct split_load last = *load;

    last.row.kv *= 2;
    last.row.attend *= 2;
    most = merged_step_ns(s, &last, n, rows, 1);
    less = merged_step_ns(s, &last, n, rows - 1, 1);
    if (s->l.target == 0 || most <= target) return rows;
    if (merged_step_ns(s, &last, n, s->l.least_rows, 1) >= target) return s->l.least_rows;
    return MAX(floor(rows - (most - target) / MAX(most - less, 1e-9)), (double)s->l.least_rows);
}

/* Rows of a step, to where products are best: down, or up. */
static double
round_to_tiles(const struct split *s, double rows, bool up)
{
    double grain = s->l.tile == 0 ? 1 : rows > s->l.tile ? s->l.tile : s->l.least_rows;

    return (up ? ceil(rows / grain) : floor(rows / grain)) * grain;
}

/* A prompt's row in a step of so many, alone in its lane. */
static double
row_alone(const struct split *s, unsigned rung, const struct split_load *load, double rows)
{
    struct work_done some = prompt_work(load, rows);

    return steptime_of(&s->time, STEP_CONTEXT, rung, &some) / rows;
}

static double
decode_step_ns(const struct split *s, unsigned rung, const struct split_load *load, double n)
{
    struct work_done some = decode_work(load, n);

    return steptime_of(&s->time, STEP_GENERATION, rung, &some);
}

/* What answers are of the work, each phase for itself on the whole device. */
static double
weight_of_answers(const struct split *s, const struct split_load *load)
{
    double n = load->n_there, tokens = load->tokens * decode_step_ns(s, 0, load, n) / n;

    return tokens / (tokens + row_alone(s, 0, load, s->l.most_rows));
}

/* Of a step of both, those who generate among them: what the target allows. */
static double
rows_at_most(const struct split *s, const struct split_load *load)
{
    double n = load->n_decode, most = round_to_tiles(s, n + rows_in_time(s, load), false);

    return MIN(MAX(most, n + s->l.least_rows), (double)s->l.most_rows);
}

/* As many, or as few as go round, so that every step has some and no answer reads the weights for itself alone; more would
 * only make steps longer. */
static double
rows_together(const struct split *s, const struct split_load *load)
{
    const double *base = s->time.cell[STEP_BOTH][0].base;
    double least = s->l.least_rows, round = load->n_there, few;

    if (load->tokens <= 0 || load->n_there == 0) return rows_at_most(s, load);
    few = load->row.weights * base[0] / (load->row.matmul * base[2]);
    round += ceil(ROUND * load->n_there / load->tokens / least) * least;
    if (weight_of_answers(s, load) > WEIGHT) round = MIN(round, MANY * few);
    return MIN(rows_at_most(s, load),
               round_to_tiles(s, MAX(MAX(round, few), load->n_decode + least), true));
}

void
split_begin(struct split *s, unsigned rung)
{
    s->now = (struct split_way){ rung, (uint32_t)rows_together(s, &s->load) };
    s->since = DWELL;
}

static double
rows_of_step(const struct split_load *load, double most)
{
    return MAX(MIN((double)load->n_rows, most), 1.);
}

/* Rows of prompts a ns, each with its tokens, while n generate: one of those who are there has its prompt computed. row: what
 * one takes, token: a step beside. What is not generated by then is when prompts have ended, on the whole device: but for
 * `out` steps each time, which are launched by then. */
static double
rows_per_ns(const struct split *s, const struct split_load *load, double n, double row,
            double token, double out)
{
    double others = MIN(n, load->n_there - 1.), left = load->tokens - others * row / token, whole,
           rest;

    if (left <= 0) return 1 / row;
    whole = decode_step_ns(s, 0, load, n);
    rest = left * whole / n;
    if (load->prompt > 0) /* those that wait follow without a pause */
        row += out * MAX(token - whole, 0.) / MAX(load->prompt, (double)load->n_rows) *
               MIN(OFTEN * rest / (row + rest), 1.);
    return 1 / (row + rest);
}

/* As many as prompts feed, but no more than there are or the target has time for, where a step of nobody takes `none` and
 * one of all who generate now `token`. */
static double
n_fed(const struct split *s, const struct split_load *load, double n, double none, double token)
{
    double each = MAX(token - none, 1e-3) / load->n_decode;

    if (s->l.target) n = MIN(n, ((double)s->l.target - none) / each);
    return MAX(MIN(n, (double)load->n_there), 1.);
}

/* Of a step of prompts on its part. */
static double
rows_apart(const struct split *s, unsigned rung, const struct split_load *load)
{
    double row = row_alone(s, rung, load, s->l.most_rows),
           rows = MIN(MAX(load->n_there * load->each / FEW, SHORT / row), LONGEST / row);

    rows = round_to_tiles(s, rows, false);
    return MIN(MAX(rows, (double)s->l.least_rows), (double)s->l.most_rows);
}

static struct split_expect
expect_together(const struct split *s, const struct split_load *load, double rows)
{
    double some = rows_of_step(load, rows - load->n_decode), n, token,
           more = tile_padding(s, load->n_decode + some);
    struct split_expect x = { .token = merged_step_ns(s, load, load->n_decode, some, more),
                              .way = { 0, (uint32_t)rows } };

    x.row = x.token / some;
    n = n_fed(s, load, load->tokens * some, merged_step_ns(s, load, 0, some, more), x.token);
    token = merged_step_ns(s, load, n, some, more);
    x.done = rows_per_ns(s, load, n, token / some, token, 0);
    return x;
}

static struct split_expect
expect_apart(const struct split *s, unsigned rung, const struct split_load *load)
{
    struct split_expect x = { .way = { rung, (uint32_t)rows_apart(s, rung, load) } };
    double none = decode_step_ns(s, rung, load, 0), n;

    x.row = row_alone(s, rung, load, rows_of_step(load, x.way.rows));
    x.token = decode_step_ns(s, rung, load, load->n_decode);
    /* What a row is followed by is there when the next one is: n = tokens (none + n more) / row. */
    n = x.row - load->tokens * (x.token - none) / load->n_decode;
    n = n_fed(s, load, n > 0 ? load->tokens * none / n : load->n_there, none, x.token);
    x.done = rows_per_ns(s, load, n, x.row, decode_step_ns(s, rung, load, n), OUT);
    return x;
}

struct split_expect
split_expect(const struct split *s, unsigned rung, const struct split_load *load)
{
    struct split_expect few, more;
    double rows;

    if (rung) return expect_apart(s, rung, load);
    rows = rows_together(s, load);
    few = expect_together(s, load, rows);
    rows = MIN(round_to_tiles(s, rows * LONGER, true), rows_at_most(s, load));
    if (rows <= few.way.rows) return few;
    more = expect_together(s, load, rows);
    return more.done * (1 - WORTH) > few.done ? more : few;
}

static double
edge_of_rung(const struct split *s, const struct split_load *load, const struct split_expect *rung,
             const struct split_expect *lane)
{
    bool sooner = rung->token < (1 - SOONER) * lane->token;

    return sooner && weight_of_answers(s, load) > WEIGHT ? 0 : EDGE;
}

/* Whether a is to be preferred: within the target, then by what gets done; else by the time between tokens. */
static bool
is_preferred(const struct split *s, const struct split_load *load, const struct split_expect *a,
             const struct split_expect *b, double better)
{
    double target = s->l.target ? (double)s->l.target : 1e300;
    bool a_fits = a->token <= target, b_fits = b->token <= target;

    if (a_fits != b_fits) return a_fits;
    if (!a_fits) return a->token < b->token * (1 - better);
    if (a->way.rung && !b->way.rung) better += edge_of_rung(s, load, a, b);
    if (!a->way.rung && b->way.rung) better -= edge_of_rung(s, load, b, a);
    return a->done * (1 - better) > b->done;
}

static struct split_expect
best_expectation(const struct split *s, const struct ladder *ladder, const struct split_load *load)
{
    struct split_expect best = split_expect(s, 0, load);

    for (unsigned r = 1; r < ladder->n; r++) {
        struct split_expect x = split_expect(s, r, load);

        if (is_preferred(s, load, &x, &best, 0)) best = x;
    }
    return best;
}

struct split_way
split_best(const struct split *s, const struct ladder *ladder, const struct split_load *load)
{
    return best_expectation(s, ladder, load).way;
}

struct split_way
split_ask(struct split *s, const struct ladder *ladder, const struct split_load *load)
{
    struct split_expect now, other;

    s->since += s->since < UINT32_MAX;
    /* With one phase empty there is nothing to choose; of who never ran nothing is known. But the next prompt keeps
     * the target from its first step on. */
    if (load->n_decode == 0) return s->now;
    if (s->now.rung == 0) s->now.rows = (uint32_t)rows_together(s, load);
    if (load->n_rows == 0) return s->now;
    if (steptime_known(&s->time, STEP_CONTEXT) + steptime_known(&s->time, STEP_BOTH) == 0 ||
        steptime_known(&s->time, STEP_GENERATION) + steptime_known(&s->time, STEP_BOTH) == 0)
        return s->now;
    now = split_expect(s, s->now.rung, load);
    s->now.rows = now.way.rows;
    if (s->since < DWELL) return s->now;
    other = best_expectation(s, ladder, load);
    if (other.way.rung == s->now.rung ||
        !is_preferred(s, load, &other, &now, BETTER * DWELL / s->since))
        return s->now;
    s->now = other.way;
    s->since = 0;
    s->n_changes++;
    return s->now;
}

/* Its oldest step has not begun: it waits for one of another lane. */
static bool
waits_for_lane(const struct split *s, const struct split_lane *l)
{
    const struct batch_wait *w = &l->wait[(l->done + 1) % 2];

    return w->step > s->lane[w->lane].done;
}

/* How long the lanes beside it were at work, all in all. */
static nsec
others_busy(const struct split *s, unsigned lane, nsec now)
{
    nsec busy = 0;

    for (unsigned i = 0; i < MAX_LANES; i++) {
        const struct split_lane *l = &s->lane[i];

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
    return b->work & (WORK_CONTEXT | WORK_ENCODER);
}

void
split_began(struct split *s, const struct batch *b, nsec now)
{
    struct split_lane *l = &s->lane[b->lane];
    struct batch_wait *w = &l->wait[b->step % 2];

    w->step = 0;
    for (uint32_t i = 0; i < b->n_waits; i++)
        if (b->wait[i].lane != b->lane) *w = b->wait[i];
    l->n_prompts += has_prompts(b);
    if (l->n_out++ == 0) start_oldest_step(s, b->lane, now);
}

/* What a row of a prompt costs, and what a step of all that generate. What it had is counted as if in its middle. */
static void
see_work(struct split *s, const struct batch *b, nsec took, nsec now)
{
    double keep = exp(-(double)MIN(took, now - s->at) / FLOW), half = exp(-(double)took / 2 / FLOW);
    struct work_done prompts = work_of(&s->costs, s->kv, b, WORK_CONTEXT | WORK_ENCODER);
    struct work_done *row = &s->load.row;
    uint32_t rows = b->n_rows, ends = 0;

    s->flow.rows *= keep;
    s->flow.tokens *= keep;
    s->flow.work.kv *= keep;
    s->flow.work.matmul *= keep;
    s->flow.work.attend *= keep;
    if (b->work & WORK_GENERATION) s->load.decode = work_of(&s->costs, s->kv, b, WORK_GENERATION);
    for (uint32_t i = 0; i < b->n_runs; i++) {
        const struct batch_run *run = &b->run[i];

        if (run->work == WORK_GENERATION)
            rows -= run->n_rows;
        else if (run->work == WORK_CONTEXT && run->flags & RUN_SAMPLE)
            ends++;
    }
    s->flow.ends = s->flow.ends * keep + half * (ends > 0);
    s->flow.prompts = s->flow.prompts * keep + half * ends;
    s->flow.rows += half * rows;
    s->flow.tokens += half * (b->n_rows - rows);
    if (b->n_rows > rows) s->flow.last = b->n_rows - rows;
    if (rows == 0) return;
    /* A step of few rows may read as many keys as one of many: what a row costs is that of all rows of late. */
    s->flow.work.kv += half * prompts.kv;
    s->flow.work.matmul += half * prompts.matmul;
    s->flow.work.attend += half * prompts.attend;
    *row = (struct work_done){ prompts.weights, s->flow.work.kv / s->flow.rows,
                               s->flow.work.matmul / s->flow.rows,
                               s->flow.work.attend / s->flow.rows };
}

/* Tokens to a row: taken when a step with prompts is over, or none is out. In between steps of answers are counted, and not yet
 * the prompts that were computed beside them: by a tenth more and less, for which the way was changed to and fro. */
static void
see_flow(struct split *s, const struct batch *b)
{
    uint32_t out = 0;

    for (unsigned i = 0; i < MAX_LANES; i++) out += s->lane[i].n_prompts;
    if (out == 0 || has_prompts(b))
        s->load.tokens = s->flow.rows > 0 ? s->flow.tokens / s->flow.rows : 0;
}

nsec
split_ended(struct split *s, const struct batch *b, nsec now)
{
    static const unsigned all = WORK_ENCODER | WORK_CONTEXT | WORK_GENERATION;
    enum step_kind kind = step_kind(b->work);
    struct split_lane *l = &s->lane[b->lane];
    struct work_done w = work_of(&s->costs, s->kv, b, all);
    nsec took = now - l->began;
    double beside = took > 0 ? (double)(others_busy(s, b->lane, now) - l->others) / (double)took
                             : 0;

    beside = MIN(MAX(beside, 0.), 1.);
    see_work(s, b, took, now);
    if (b->rung == 0 && b->n_encode == 0) w.matmul *= tile_padding(s, b->n_rows);
    steptime_learn(&s->time, kind, b->rung, &w, took, beside);
    l->busy += took;
    l->n_out--;
    l->n_prompts -= has_prompts(b);
    l->done = b->step;
    start_oldest_step(s, b->lane, now);
    for (unsigned i = 0; i < MAX_LANES; i++) { /* who has waited for it begins */
        const struct batch_wait *wait = &s->lane[i].wait[(s->lane[i].done + 1) % 2];

        if (s->lane[i].n_out && wait->lane == b->lane && wait->step == b->step)
            start_oldest_step(s, i, now);
    }
    see_flow(s, b);
    s->at = now;
    s->news = true;
    return took;
}

struct split_way
split_turn(struct split *s, const struct ladder *ladder, const struct scheduler *sched)
{
    struct scheduler_load load;

    if (!s->news) return s->now;
    s->news = false;
    load = scheduler_load(sched, QUEUE * s->l.most_rows);
    s->load.n_decode = load.n_generating;
    /* Of answers that are one step long all have it planned by now, so that nobody seems to generate whenever it is asked: a rung
     * would be kept, however bad it was. */
    if (s->load.n_decode == 0 && s->flow.tokens >= 1) s->load.n_decode = s->flow.last;
    s->load.n_there = MAX(load.n_there, s->load.n_decode);
    s->load.prompt = s->flow.ends > 0 ? s->flow.rows / s->flow.ends : 0;
    s->load.each = s->flow.prompts > 0 ? s->flow.rows / s->flow.prompts : 0;
    /* When one comes that fits into two steps, both are planned before the next asking: so the way is that of the next
     * ones, as many as steps ended of late. With nobody there it costs nothing. */
    s->load.n_rows = MAX((uint64_t)load.prompt_rows,
                         (uint64_t)MIN(s->load.prompt, (double)s->l.most_rows));
    return split_ask(s, ladder, &s->load);
}

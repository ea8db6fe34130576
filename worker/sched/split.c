/* split.c - see split.h. */
#include "worker/sched/split.h"

/* DWELL: so many askings, one a step, a way is kept. BETTER: by what part another must beat it then, and after ten times
 * as many by a tenth of that: it is not to be left for noise, nor kept for ever where it is a little worse. */
static const double BETTER = 0.1;
enum { DWELL = 8 };
/* The last step's say in what a prompt's row costs, and in how busy the other part is; how fast that is forgotten
 * while there are no parts. */
static const double NEWS = 0.1, BUSY_NEWS = 0.25, BUSY_FADE = 0.002;

void
split_init(struct split *s, const struct split_limits *l, const struct ladder *ladder,
           const struct work_costs *costs, const struct kv_config *kv, double bandwidth,
           double peak)
{
    *s = (struct split){
        .l = *l, .now = { 0, l->most_rows }, .since = DWELL, .busy = 1, .costs = *costs, .kv = kv
    };
    check(l->least_rows >= 1 && l->most_rows >= l->least_rows);
    steptime_init(&s->time, ladder, bandwidth, peak);
}

/* So many rows of prompts. */
static struct work_done
prompt(const struct split_load *load, double rows)
{
    return (struct work_done){ load->row.weights, rows * load->row.kv, rows * load->row.matmul,
                               rows * load->row.attend };
}

static struct work_done
sum(const struct work_done *a, const struct work_done *b)
{
    return (struct work_done){ MAX(a->weights, b->weights), a->kv + b->kv, a->matmul + b->matmul,
                               a->attend + b->attend };
}

static double
together(const struct split *s, const struct split_load *load, double rows)
{
    struct work_done some = prompt(load, rows), all = sum(&load->decode, &some);

    return steptime_of(&s->time, STEP_BOTH, 0, &all);
}

/* As many rows as keep a step of both within the target: its time is a line in them. */
static uint32_t
rows_together(const struct split *s, const struct split_load *load)
{
    double least = together(s, load, s->l.least_rows),
           more = together(s, load, s->l.least_rows + 1.);
    double room;

    if (s->l.target == 0 || load->n_decode == 0) return s->l.most_rows;
    room = ((double)s->l.target - least) / MAX(more - least, 1e-9);
    if (room <= 0) return s->l.least_rows;
    return (uint32_t)MIN(s->l.least_rows + room, (double)s->l.most_rows);
}

/* A prompt's row in a step of so many, alone in its lane. */
static double
row_alone(const struct split *s, unsigned rung, const struct split_load *load, double rows)
{
    struct work_done some = prompt(load, rows);

    return steptime_of(&s->time, STEP_CONTEXT, rung, &some) / rows;
}

static double
rows_of_step(const struct split_load *load, uint32_t most)
{
    return (double)MAX(MIN(load->n_rows, (uint64_t)most), (uint64_t)1);
}

struct split_expect
split_expect(const struct split *s, unsigned rung, const struct split_load *load)
{
    struct split_expect x = { .way = { rung, s->l.most_rows } };

    if (rung == 0) {
        double rows;

        x.way.rows = rows_together(s, load);
        rows = rows_of_step(load, x.way.rows);
        x.token = together(s, load, rows);
        x.row = x.token / rows;
    } else {
        x.row = row_alone(s, rung, load, rows_of_step(load, s->l.most_rows));
        x.token = steptime_of(&s->time, STEP_GENERATION, rung, &load->decode);
    }
    x.done = row_alone(s, 0, load, rows_of_step(load, s->l.most_rows)) / x.row +
             (rung ? s->busy : 1) * steptime_of(&s->time, STEP_GENERATION, 0, &load->decode) /
                 x.token;
    return x;
}

/* Whether a is to be preferred: within the target, then by what gets done; else by the time between tokens. */
static bool
before(const struct split *s, const struct split_expect *a, const struct split_expect *b,
       double better)
{
    double target = s->l.target ? (double)s->l.target : 1e300;
    bool a_fits = a->token <= target, b_fits = b->token <= target;

    if (a_fits != b_fits) return a_fits;
    if (!a_fits) return a->token < b->token * (1 - better);
    return a->done * (1 - better) > b->done;
}

static struct split_expect
best(const struct split *s, const struct ladder *ladder, const struct split_load *load)
{
    struct split_expect best = split_expect(s, 0, load);

    for (unsigned r = 1; r < ladder->n; r++) {
        struct split_expect x = split_expect(s, r, load);

        if (before(s, &x, &best, 0)) best = x;
    }
    return best;
}

struct split_way
split_best(const struct split *s, const struct ladder *ladder, const struct split_load *load)
{
    return best(s, ladder, load).way;
}

struct split_way
split_ask(struct split *s, const struct ladder *ladder, const struct split_load *load)
{
    struct split_expect now, other;

    s->since += s->since < UINT32_MAX;
    /* With one phase empty there is nothing to choose; of who never ran nothing is known. */
    if (load->n_decode == 0 || load->n_rows == 0) return s->now;
    if (steptime_known(&s->time, STEP_CONTEXT) + steptime_known(&s->time, STEP_BOTH) == 0 ||
        steptime_known(&s->time, STEP_GENERATION) + steptime_known(&s->time, STEP_BOTH) == 0)
        return s->now;
    now = split_expect(s, s->now.rung, load);
    s->now.rows = now.way.rows;
    if (s->since < DWELL) return s->now;
    other = best(s, ladder, load);
    if (other.way.rung == s->now.rung || !before(s, &other, &now, BETTER * DWELL / s->since))
        return s->now;
    s->now = other.way;
    s->since = 0;
    s->n_changes++;
    return s->now;
}

/* Its oldest step has not begun: it waits for one of another lane. */
static bool
waits(const struct split *s, const struct split_lane *l)
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

        if (i != lane) busy += l->busy + (l->n_out && !waits(s, l) ? now - l->began : 0);
    }
    return busy;
}

static void
begin(struct split *s, unsigned lane, nsec now)
{
    s->lane[lane].began = now;
    s->lane[lane].others = others_busy(s, lane, now);
}

void
split_began(struct split *s, const struct batch *b, nsec now)
{
    struct split_lane *l = &s->lane[b->lane];
    struct batch_wait *w = &l->wait[b->step % 2];

    w->step = 0;
    for (uint32_t i = 0; i < b->n_waits; i++)
        if (b->wait[i].lane != b->lane) *w = b->wait[i];
    if (l->n_out++ == 0) begin(s, b->lane, now);
}

/* What a row of a prompt costs, and what a step of all that generate. */
static void
see_work(struct split *s, const struct batch *b)
{
    struct work_done prompts = work_of(&s->costs, s->kv, b, WORK_CONTEXT | WORK_ENCODER);
    struct work_done *row = &s->load.row;
    uint32_t rows = b->n_rows;

    if (b->work & WORK_GENERATION) s->load.decode = work_of(&s->costs, s->kv, b, WORK_GENERATION);
    for (uint32_t i = 0; i < b->n_runs; i++)
        if (b->run[i].work == WORK_GENERATION) rows -= b->run[i].n_rows;
    if (rows == 0) return;
    row->weights = prompts.weights;
    row->kv += NEWS * (prompts.kv / rows - row->kv);
    row->matmul += NEWS * (prompts.matmul / rows - row->matmul);
    row->attend += NEWS * (prompts.attend / rows - row->attend);
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
    see_work(s, b);
    steptime_learn(&s->time, kind, b->rung, &w, took, beside);
    if (b->rung && kind == STEP_CONTEXT) s->busy += BUSY_NEWS * (beside - s->busy);
    if (kind == STEP_BOTH) s->busy += BUSY_FADE * (1 - s->busy);
    l->busy += took;
    l->n_out--;
    l->done = b->step;
    begin(s, b->lane, now);
    for (unsigned i = 0; i < MAX_LANES; i++) { /* who has waited for it begins */
        const struct batch_wait *wait = &s->lane[i].wait[(s->lane[i].done + 1) % 2];

        if (s->lane[i].n_out && wait->lane == b->lane && wait->step == b->step) begin(s, i, now);
    }
    s->news = true;
    return took;
}

struct split_way
split_turn(struct split *s, const struct ladder *ladder, const struct scheduler *sched)
{
    struct scheduler_load load;

    if (!s->news) return s->now;
    s->news = false;
    load = scheduler_load(sched, s->l.most_rows);
    s->load.n_decode = load.n_generating;
    s->load.n_rows = load.prompt_rows;
    return split_ask(s, ladder, &s->load);
}

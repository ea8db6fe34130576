/* split.c - see split.h. */
#include "worker/sched/split.h"

/* BETTER: of its time, what a way must save to be taken. DWELL: so many askings, one a step, it is kept then. */
static const double BETTER = 0.1;
enum { DWELL = 16 };
/* Of what a prompt's row costs, the last step's say. */
static const double NEWS = 0.1;

void
split_init(struct split *s, const struct split_limits *l, const struct ladder *ladder,
           const struct work_costs *costs, const struct kv_config *kv, double bandwidth,
           double peak)
{
    *s = (struct split){
        .l = *l, .now = { 0, l->most_rows }, .since = DWELL, .costs = *costs, .kv = kv
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

struct split_expect
split_expect(const struct split *s, unsigned rung, const struct split_load *load)
{
    struct split_expect x = { .way = { rung, s->l.most_rows } };
    double rows;

    if (rung == 0) x.way.rows = rows_together(s, load);
    rows = (double)MAX(MIN(load->n_rows, (uint64_t)x.way.rows), (uint64_t)1);
    if (rung == 0) {
        x.token = together(s, load, rows);
        x.row = x.token / rows;
    } else {
        struct work_done some = prompt(load, rows);

        x.row = steptime_of(&s->time, STEP_CONTEXT, rung, &some) / rows;
        x.token = steptime_of(&s->time, STEP_GENERATION, rung, &load->decode);
    }
    return x;
}

/* Whether a is to be preferred: within the target, then the least time for prompts; else the least for tokens. */
static bool
before(const struct split *s, const struct split_expect *a, const struct split_expect *b,
       double better)
{
    double target = s->l.target ? (double)s->l.target : 1e300;
    bool a_fits = a->token <= target, b_fits = b->token <= target;

    if (a_fits != b_fits) return a_fits;
    if (!a_fits) return a->token < b->token * (1 - better);
    return a->row < b->row * (1 - better);
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

    s->since += s->since < DWELL;
    /* With one phase empty there is nothing to choose; of who never ran nothing is known. */
    if (load->n_decode == 0 || load->n_rows == 0) return s->now;
    if (steptime_known(&s->time, STEP_CONTEXT) + steptime_known(&s->time, STEP_BOTH) == 0 ||
        steptime_known(&s->time, STEP_GENERATION) + steptime_known(&s->time, STEP_BOTH) == 0)
        return s->now;
    now = split_expect(s, s->now.rung, load);
    s->now.rows = now.way.rows;
    if (s->since < DWELL) return s->now;
    other = best(s, ladder, load);
    if (other.way.rung == s->now.rung || !before(s, &other, &now, BETTER)) return s->now;
    s->now = other.way;
    s->since = 0;
    s->n_changes++;
    return s->now;
}

/* How long the lanes beside it were at work, all in all. */
static nsec
others_busy(const struct split *s, unsigned lane, nsec now)
{
    nsec busy = 0;

    for (unsigned i = 0; i < MAX_LANES; i++)
        if (i != lane) busy += s->lane[i].busy + (s->lane[i].n_out ? now - s->lane[i].began : 0);
    return busy;
}

void
split_began(struct split *s, const struct batch *b, nsec now)
{
    struct split_lane *l = &s->lane[b->lane];

    if (l->n_out++ > 0) return;
    l->began = now;
    l->others = others_busy(s, b->lane, now);
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
    struct split_lane *l = &s->lane[b->lane];
    nsec took = now - l->began, others = others_busy(s, b->lane, now);
    double beside = took > 0 ? (double)(others - l->others) / (double)took : 0;

    see_work(s, b);
    if (b->n_waits == 0) { /* else some of it was not its own time */
        struct work_done w = work_of(&s->costs, s->kv, b, all);

        steptime_learn(&s->time, step_kind(b->work), b->rung, &w, took, MIN(MAX(beside, 0.), 1.));
    }
    l->busy += took;
    l->began = now;
    l->others = others;
    l->n_out--;
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

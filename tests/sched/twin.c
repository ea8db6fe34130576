/* twin.c - see twin.h. */
#include "tests/sched/twin.h"

#include <stdlib.h>
#include <string.h>

enum state { WAIT, ENCODE, CONTEXT, GENERATE, LAST, PAUSED, GONE };

struct req {
    req_id id;
    enum state state;
    float priority;
    uint32_t order, prompt, max_new, source, made, out, pos, len, layers, in_flight, pages, n_end,
        min_new, enc_at, client, n_draft;
    uint32_t guesses; /* in flight, counted as taken */
    uint32_t done;    /* positions of steps that are over */
    uint64_t turn;
    unsigned lane; /* of its last step */
    uint64_t step;
    token_id end_id[48];
    uint64_t lora;
    nsec deadline, arrived;
    bool seat, begun, told, encoded, halted;
};
struct purse { /* a client's, in tokens */
    uint64_t spent, turn;
    uint32_t open;
};

struct twin {
    struct kv_config c;
    struct scheduler_limits l;
    struct req req[TWIN_MAX], *list[TWIN_MAX]; /* list: in order, those that are not gone */
    uint32_t n, n_list, n_out[MAX_LANES];
    struct twin_step out[MAX_LANES][2];
    uint64_t planned[MAX_LANES], done[MAX_LANES];
    struct purse purse[8];
    uint64_t turn; /* of the last who got a seat, at least */
    bool closed, halts;
    bool cramped; /* somebody found no room, and somebody there is halted */
};
struct walk { /* one plan */
    struct twin *t;
    struct twin_step *step;
    nsec now;
    uint32_t rows;
    unsigned lane;
    bool generates;
};

struct twin *
twin_new(const struct kv_config *c, const struct scheduler_limits *l)
{
    struct twin *t;

    if (c->reuse) return NULL;
    for (uint32_t g = 0; g < c->n_groups; g++)
        if (c->group[g].kind == KV_WINDOW || !c->group[g].max_blocks) return NULL;
    t = calloc(1, sizeof *t);
    check(t);
    t->c = *c;
    t->l = *l;
    return t;
}

struct twin *
twin_free(struct twin *t)
{
    free(t);
    return NULL;
}

static int
in_order(const void *a, const void *b)
{
    const struct req *const *x = a, *const *y = b;

    if ((*x)->priority != (*y)->priority) return (*x)->priority > (*y)->priority ? -1 : 1;
    if ((*x)->turn != (*y)->turn) return (*x)->turn < (*y)->turn ? -1 : 1;
    return (*x)->order < (*y)->order ? -1 : 1;
}

static void
sort(struct twin *t)
{
    t->n_list = 0;
    for (uint32_t i = 0; i < t->n; i++)
        if (t->req[i].state != GONE || t->req[i].seat) t->list[t->n_list++] = &t->req[i];
    qsort(t->list, t->n_list, sizeof t->list[0], in_order);
}

static struct req *
find(struct twin *t, req_id id)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->req[i].id == id && (t->req[i].state != GONE || t->req[i].seat)) return &t->req[i];
    return NULL;
}

void
twin_add(struct twin *t, const struct seq *q, nsec now)
{
    struct req *r = &t->req[t->n];

    check(t->n < TWIN_MAX && q->client < ARRAY_LEN(t->purse));
    *r = (struct req){ .id = q->id,
                       .priority = q->priority,
                       .order = t->n++,
                       .prompt = q->n_prompt,
                       .max_new = q->max_new,
                       .source = q->n_source,
                       .pages = q->pages,
                       .n_end = q->n_end,
                       .min_new = q->min_new,
                       .lora = q->lora,
                       .client = q->client,
                       .n_draft = q->n_draft,
                       .deadline = q->deadline,
                       .arrived = now,
                       .told = q->prompt_logprobs };
    memcpy(r->end_id, q->end_id, sizeof r->end_id);
    if (t->l.quantum) { /* due in the turn in which its client is allowed all it asked for up to here */
        struct purse *p = &t->purse[q->client];

        if (p->open++ == 0) p->spent = p->turn = 0;
        if (p->spent < t->turn * t->l.quantum) p->spent = t->turn * t->l.quantum;
        p->spent += r->source + r->prompt + r->max_new;
        if (p->turn * t->l.quantum < p->spent) p->turn = CEIL_DIV(p->spent, t->l.quantum);
        r->turn = p->turn;
    }
}

static uint32_t
seats(const struct twin *t)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->n; i++) n += t->req[i].seat;
    return n;
}

static bool
has_seat(const struct twin *t)
{
    return seats(t) < MIN(MIN(t->l.max_seqs, t->l.max_rows), t->c.n_seats);
}

static void
sit(struct twin *t, struct req *q, enum state as)
{
    if (!q->seat) t->turn = MAX(t->turn, q->turn);
    q->seat = true;
    q->state = as;
}

static void
leave(struct req *q)
{
    q->seat = q->begun = q->encoded = false;
    q->len = 0;
    if (q->state != PAUSED) return;
    q->state = WAIT; /* what it has is prompt */
    if (q->made > 0) q->told = false;
    q->prompt += q->made;
    q->max_new -= q->made;
    q->min_new -= MIN(q->min_new, q->made);
    q->made = q->out = q->pos = q->layers = q->guesses = q->done = 0;
}

static void
end(struct twin *t, struct req *q)
{
    struct purse *p = &t->purse[q->client];
    uint64_t unused = q->max_new - q->made;

    q->state = GONE;
    if (t->l.quantum) {
        p->open--;
        p->spent -= MIN(p->spent, unused);
    }
    if (q->in_flight == 0) leave(q);
}

void
twin_halt(struct twin *t, req_id id, bool halted)
{
    struct req *q = find(t, id);

    if (q) q->halted = halted;
    t->halts = t->halts || halted;
}

void
twin_cancel(struct twin *t, req_id id)
{
    struct req *q = find(t, id);

    if (q && q->state != GONE) end(t, q);
}

static void
expire(struct twin *t, nsec now)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->req[i].state != GONE && t->req[i].deadline <= now) end(t, &t->req[i]);
}

static bool
has_pages(const struct twin *t, const struct req *q)
{
    uint32_t used = 0;

    for (uint32_t i = 0; i < t->n; i++) {
        const struct req *r = &t->req[i];
        bool counted = !r->seat || !r->lora;

        if (r->seat && r->lora == q->lora) return true;
        for (uint32_t k = 0; k < i; k++)
            counted = counted || (t->req[k].seat && t->req[k].lora == r->lora);
        if (!counted) used += r->pages;
    }
    return !q->lora || used + q->pages <= t->l.pages;
}

/* Its blocks, for len positions instead of those it has. */
static bool
fits(const struct twin *t, const struct req *q, uint32_t len)
{
    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        bool cross = t->c.group[g].kind == KV_CROSS;
        uint64_t n = CEIL_DIV(cross ? q->source : len, t->c.tokens_per_block);

        for (uint32_t i = 0; i < t->n; i++) {
            const struct req *r = &t->req[i];

            if (r != q && r->len) n += CEIL_DIV(cross ? r->source : r->len, t->c.tokens_per_block);
        }
        if (n > t->c.group[g].max_blocks) return false;
    }
    return true;
}

static bool
may_pause(const struct req *q)
{
    return q->state == GENERATE || (q->state == CONTEXT && q->begun && !q->told);
}

/* The last in the list who stands still, keeps what others want, and could come back with what it has. */
static struct req *
halted_one(struct twin *t)
{
    struct twin *alone;
    struct req *found = NULL;

    if (!t->halts) return NULL;
    alone = calloc(1, sizeof *alone);
    check(alone);
    alone->c = t->c;
    for (uint32_t i = 0; i < t->n; i++) {
        struct req *q = &t->req[i];

        if (!q->seat || !q->halted || q->in_flight || !may_pause(q)) continue;
        if (found && in_order(&(const struct req *){ found }, &(const struct req *){ q }) > 0)
            continue;
        if (fits(alone, q, q->prompt + q->max_new)) found = q;
    }
    free(alone);
    return found;
}

static bool
no_room(struct twin *t)
{
    t->cramped = halted_one(t) != NULL;
    return false;
}

static bool
may_sit(struct twin *t)
{
    return has_seat(t) || no_room(t);
}

/* Between two plans: who stands still makes room for whoever found none. */
static bool
give_up_one(struct twin *t)
{
    struct req *q = t->cramped ? halted_one(t) : NULL;

    if (!q) return t->cramped = false;
    q->state = PAUSED;
    leave(q);
    sort(t);
    return true;
}

static bool
admit(struct twin *t, struct req *q)
{
    bool all = t->l.policy != POLICY_MAX_UTILIZATION;
    uint32_t len = q->prompt + (all ? q->max_new : 0);

    if (q->state == WAIT && !has_seat(t)) return no_room(t);
    if (!fits(t, q, len)) return no_room(t);
    sit(t, q, CONTEXT);
    q->len = len;
    return true;
}

/* ---- who gives way */

static bool
pay(struct twin *t, struct req *q)
{
    uint32_t tokens = t->c.tokens_per_block, len;

    if (q->pos < q->len) return true;
    len = MIN(CEIL_DIV(q->pos + 1, tokens) * tokens, q->prompt + q->max_new);
    if (!fits(t, q, len)) return no_room(t);
    q->len = len;
    return true;
}

static bool
somebody_leaves(const struct twin *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->req[i].seat &&
            (t->req[i].state == LAST || t->req[i].state == PAUSED || t->req[i].state == GONE))
            return true;
    return false;
}

/* What it would do in a step of that lane: one of enum work, or 0. */
static unsigned
wants(const struct twin *t, const struct req *q, unsigned lane, nsec now)
{
    unsigned work = 0;

    if (q->halted || q->deadline <= now) return 0;
    if (q->state == WAIT) work = q->source ? WORK_ENCODER : WORK_CONTEXT;
    if (q->state == ENCODE) work = WORK_ENCODER;
    if (q->state == CONTEXT) work = WORK_CONTEXT;
    if (q->state == GENERATE && q->out < q->max_new) work = WORK_GENERATION;
    return work & t->l.lane_work[lane];
}

static bool
room(struct twin *t, struct req *q, unsigned work, uint32_t *rows)
{
    uint32_t n = MIN(q->prompt - MIN(q->pos, q->prompt), *rows);

    if (q->halted) return true;
    if (q->state == GENERATE) return q->out == q->max_new || pay(t, q);
    if (q->state == WAIT && work && !has_pages(t, q)) return false;
    if (work == WORK_ENCODER) return q->state != WAIT || may_sit(t);
    if (work != WORK_CONTEXT || n == 0) return true;
    if (!q->len && !admit(t, q)) return false;
    *rows -= n;
    return true;
}

static bool
make_room(struct twin *t, unsigned lane, nsec now)
{
    uint32_t rows = t->l.max_rows, last = t->n_list;
    bool paused = false, waiting = true;

    for (uint32_t i = 0; i < last; i++) {
        struct req *q = t->list[i];
        uint32_t v;

        if (q->state == GONE || (!waiting && q->state == WAIT)) continue;
        while (!room(t, q, wants(t, q, lane, now), &rows)) {
            bool no_seat = q->state == WAIT && !has_seat(t);

            if (q->state == WAIT && !has_pages(t, q)) {
                waiting = false;
                break;
            }
            if (give_up_one(t)) { /* from the beginning */
                paused = waiting = true;
                rows = t->l.max_rows;
                i = UINT32_MAX;
                break;
            }
            for (v = t->n_list; v-- > i;)
                if (t->list[v]->seat && may_pause(t->list[v])) break;
            if (v == UINT32_MAX || v < i || somebody_leaves(t)) {
                if (!no_seat) return paused;
                waiting = false;
                break;
            }
            t->list[v]->state = PAUSED;
            last = v;
            if (t->list[v]->in_flight == 0) {
                leave(t->list[v]);
                paused = true;
                if (v == i) return paused;
                continue;
            }
            if (!no_seat) return paused;
            waiting = false;
            break;
        }
    }
    return paused;
}

/* ---- the step */

static void
put(struct walk *w, struct req *q, unsigned work, uint32_t n)
{
    struct twin_run *run = &w->step->run[w->step->n++];

    *run = (struct twin_run){ .id = q->id, .work = work, .n_rows = n };
    q->in_flight++;
    q->lane = w->lane;
    q->step = w->t->planned[w->lane] + 1;
    if (work == WORK_ENCODER) {
        q->layers += n;
        if (q->layers == w->t->l.n_enc_layers) q->state = CONTEXT;
        return;
    }
    q->begun = true;
    q->pos += n;
    w->rows -= n;
    if (q->pos < q->prompt) return;
    run->samples = true;
    run->guesses = work == WORK_GENERATION ? n - 1 : 0;
    q->out += 1 + run->guesses;
    q->guesses += run->guesses;
    w->t->closed = w->t->l.policy == POLICY_STATIC;
    q->state = q->out == q->max_new && !q->guesses ? LAST : GENERATE;
}

static bool
streaming(const struct twin *t, bool prompts)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->req[i].seat && !t->req[i].halted &&
            (t->req[i].state == GENERATE || (prompts && t->req[i].state == CONTEXT)))
            return true;
    return false;
}

static bool
wants_context(const struct walk *w, const struct req *q)
{
    return wants(w->t, q, w->lane, w->now) == WORK_CONTEXT;
}

/* Its last step is another lane's, and not over. */
static bool
waits(const struct walk *w, const struct req *q)
{
    return q->lane != w->lane && q->step > w->t->done[q->lane];
}

/* Everybody's next row first; then guesses in list order, of what is left, beside a prompt of half of it. */
static void
generate(struct walk *w)
{
    struct twin *t = w->t;
    uint32_t n = 0, guesses, alone = 0;
    uint64_t oldest = UINT64_MAX;
    bool prompts = false;

    for (uint32_t i = 0; i < t->n_list; i++) {
        n += t->list[i]->state == GENERATE;
        prompts = prompts || t->list[i]->state == CONTEXT || t->list[i]->state == WAIT;
    }
    guesses = w->rows - n;
    if (prompts && t->l.lane_work[w->lane] & WORK_CONTEXT) guesses /= 2;
    for (int again = 0; again < 2; again++)
        for (uint32_t i = 0; i < t->n_list; i++) {
            struct req *q = t->list[i];
            uint32_t some = MIN(MIN(guesses, q->n_draft), q->max_new - q->out - 1);

            if (wants(t, q, w->lane, w->now) != WORK_GENERATION || q->pos >= q->len) continue;
            if (again ? alone > 0 || q->step > oldest : waits(w, q)) {
                if (!again) oldest = MIN(oldest, q->step);
                continue;
            }
            some = MIN(some, q->len - q->pos - 1);
            guesses -= some;
            put(w, q, WORK_GENERATION, 1 + some);
            alone += !again;
        }
    w->generates = w->step->n > 0;
}

static bool
hold_back(const struct walk *w)
{
    const struct twin *t = w->t;
    nsec oldest = NSEC_NEVER;
    uint64_t rows = 0;

    for (uint32_t i = 0; i < t->n_list; i++)
        if (wants_context(w, t->list[i]) && t->list[i]->state == WAIT) {
            rows += t->list[i]->prompt;
            oldest = MIN(oldest, t->list[i]->arrived);
        }
    if (!t->l.prompt_batch || !(w->generates || streaming(t, false)) || !rows ||
        rows >= t->l.prompt_batch || w->now - oldest >= t->l.prompt_wait)
        return false;
    w->step->until = MIN(w->step->until, oldest + t->l.prompt_wait);
    return true;
}

static void
contexts(struct walk *w)
{
    struct twin *t = w->t;
    uint32_t unit = t->l.chunk_unit, rows = w->rows, take[TWIN_MAX], n = 0, most = UINT32_MAX;
    struct req *who[TWIN_MAX];
    bool full = t->l.policy == POLICY_MAX_UTILIZATION, stopped = false, no_seat = false;
    bool join = !full && !t->closed && !hold_back(w);

    if (!unit) unit = t->c.tokens_per_block <= t->l.max_rows ? t->c.tokens_per_block : 1;
    if (t->l.lane_rows[w->lane]) rows = MIN(rows, t->l.lane_rows[w->lane]);
    if (t->l.lane_seqs[w->lane]) most = t->l.lane_seqs[w->lane];
    for (uint32_t i = 0; i < t->n_list && rows > 0 && n < most; i++) {
        struct req *q = t->list[i];
        uint32_t chunk, room, rest = q->prompt - MIN(q->pos, q->prompt), some;

        if (!wants_context(w, q)) continue;
        if (q->state == WAIT) {
            if (full || no_seat || !join || !has_pages(t, q)) continue;
            if (!may_sit(t)) {
                no_seat = true;
                continue;
            }
        }
        if (!q->len && (full || !admit(t, q))) {
            full = true;
            continue;
        }
        chunk = MIN(q->prompt, t->l.max_rows);
        if (t->l.max_chunk) chunk = MIN(chunk, t->l.max_chunk);
        room = MIN(rows, chunk);
        some = t->l.chunks == CHUNKS_EQUAL ? MIN(unit - q->pos % unit, rest) : rest;
        if (some > room) some = t->l.chunks == CHUNKS_EQUAL ? 0 : (q->pos + room) / unit * unit;
        if (t->l.chunks != CHUNKS_EQUAL && rest > room) some = some > q->pos ? some - q->pos : 0;
        if (some == 0 && n == 0 && !t->l.chunk_unit) some = room;
        if (!q->begun && (stopped || some == 0)) {
            stopped = true;
            continue;
        }
        if (some == 0) continue;
        who[n] = q;
        take[n++] = some;
        rows -= some;
    }
    for (bool more = t->l.chunks == CHUNKS_EQUAL; more;) {
        more = false;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t at = who[i]->pos + take[i], some = MIN(unit - at % unit, who[i]->prompt - at);
            uint32_t chunk = MIN(who[i]->prompt, t->l.max_rows);

            if (t->l.max_chunk) chunk = MIN(chunk, t->l.max_chunk);
            if (some == 0 || some > rows || take[i] + some > chunk) continue;
            take[i] += some;
            rows -= some;
            more = true;
        }
    }
    for (uint32_t i = 0; i < n; i++) put(w, who[i], WORK_CONTEXT, take[i]);
}

/* The first place in the encoder's rows. */
static bool
place(struct twin *t, struct req *q)
{
    for (uint32_t at = 0; at + q->source <= t->l.max_enc_rows; at++) {
        bool free = true;

        for (uint32_t i = 0; i < t->n && free; i++)
            free = !t->req[i].encoded || t->req[i].enc_at + t->req[i].source <= at ||
                   at + q->source <= t->req[i].enc_at;
        q->enc_at = at;
        if (free) return true;
    }
    return false;
}

static uint32_t
released(const struct walk *w)
{
    const struct twin *t = w->t;
    uint32_t n = 0, some = 0;
    uint32_t most = MIN(MIN(t->l.max_seqs, t->l.max_rows), t->c.n_seats) - seats(t);
    nsec oldest = NSEC_NEVER;

    if (!t->l.n_enc_batches || !streaming(t, true)) return UINT32_MAX;
    for (uint32_t i = 0; i < t->n_list; i++)
        if (t->list[i]->state == WAIT && wants(t, t->list[i], w->lane, w->now) == WORK_ENCODER) {
            n++;
            oldest = MIN(oldest, t->list[i]->arrived);
        }
    for (uint32_t i = 0; i < t->l.n_enc_batches; i++)
        if (t->l.enc_batch[i] <= MIN(n, most)) some = t->l.enc_batch[i];
    if (some == t->l.enc_batch[t->l.n_enc_batches - 1] || n == 0) return some;
    if (w->now - oldest >= t->l.enc_wait) return some;
    w->step->until = MIN(w->step->until, oldest + t->l.enc_wait);
    return 0;
}

static void
sources(struct walk *w)
{
    struct twin *t = w->t;
    uint64_t left = t->l.enc_work && w->generates ? t->l.enc_work : UINT64_MAX;
    uint32_t may = released(w), first = w->step->n;

    for (int waiting = 0; waiting < 2; waiting++)
        for (uint32_t i = 0; i < t->n_list; i++) {
            struct req *q = t->list[i];
            uint32_t n;

            if (q->state != (waiting ? WAIT : ENCODE)) continue;
            if (wants(t, q, w->lane, w->now) != WORK_ENCODER) continue;
            if (waiting && (may == 0 || t->closed || !has_pages(t, q))) continue;
            n = t->l.n_enc_layers - q->layers;
            if (t->l.enc_layers) n = MIN(n, t->l.enc_layers);
            n = (uint32_t)MIN((uint64_t)n, MAX(left / q->source, (uint64_t)(w->step->n == first)));
            if (!waiting && n == 0) continue;
            if (n == 0 || (waiting && (!may_sit(t) || !place(t, q)))) return;
            if (waiting) {
                sit(t, q, ENCODE);
                q->encoded = true;
                may--;
            }
            put(w, q, WORK_ENCODER, n);
            left -= MIN(left, (uint64_t)n * q->source);
        }
}

bool
twin_plan(struct twin *t, unsigned lane, nsec now, struct twin_step *ret)
{
    bool paused;

    expire(t, now);
    if (t->n_out[lane] == 2) return false;
    sort(t);
    give_up_one(t);
    do {
        struct walk w = { t, ret, now, t->l.max_rows, lane, false };

        ret->n = 0;
        ret->until = NSEC_NEVER;
        sort(t);
        if (seats(t) == 0) t->closed = false;
        paused = t->l.policy == POLICY_MAX_UTILIZATION && make_room(t, lane, now);
        sort(t);
        generate(&w);
        for (uint32_t i = 0; i < t->n_list && t->l.policy == POLICY_STATIC && !t->closed; i++) {
            struct req *q = t->list[i];

            if (q->state != WAIT || !wants_context(&w, q) || !has_pages(t, q)) continue;
            if (!admit(t, q)) break;
        }
        contexts(&w);
        sources(&w);
    } while (ret->n == 0 && (paused || give_up_one(t)));
    if (ret->n == 0) return false;
    ret->number = ++t->planned[lane];
    t->out[lane][t->n_out[lane]++] = *ret;
    return true;
}

static void
sampled(struct twin *t, struct req *q)
{
    token_id token = fake_token(q->id, q->prompt + q->made);

    q->made++;
    for (uint32_t i = 0; i < q->n_end && q->made > q->min_new; i++)
        if (q->end_id[i] == token) {
            end(t, q);
            return;
        }
    if (q->made == q->max_new) end(t, q);
}

void
twin_commit(struct twin *t, unsigned lane, bool failed, nsec now)
{
    struct twin_step *step = &t->out[lane][0];

    check(t->n_out[lane] > 0);
    t->done[lane] = step->number;
    for (uint32_t i = 0; i < step->n; i++) {
        const struct twin_run *run = &step->run[i];
        struct req *q = find(t, run->id);
        uint32_t taken = run->n_rows;

        check(q && q->in_flight > 0);
        q->in_flight--;
        if (run->work != WORK_ENCODER) q->encoded = false;
        if (run->guesses) {
            taken = failed ? run->n_rows : fake_taken(&t->l, q->id, q->done, run->guesses);
            q->guesses -= run->guesses;
            q->pos -= run->n_rows - taken;
            q->out -= run->n_rows - taken;
            if (q->state == GENERATE && q->out == q->max_new && !q->guesses) q->state = LAST;
        }
        if (run->work != WORK_ENCODER && !failed) q->done += taken;
        if (failed && q->state != GONE) end(t, q);
        for (uint32_t k = 0; run->samples && k < 1 + run->guesses - (run->n_rows - taken); k++)
            if (q->state != GONE) sampled(t, q);
        if (q->in_flight == 0 && q->seat && (q->state == GONE || q->state == PAUSED)) leave(q);
    }
    t->out[lane][0] = t->out[lane][1];
    t->n_out[lane]--;
    expire(t, now);
}

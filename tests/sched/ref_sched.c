/* ref_sched.c - see ref_sched.h. */
#include "tests/sched/ref_sched_internal.h"

struct walk { /* state of one plan */
    struct ref *t;
    struct ref_step *step;
    nsec now;
    uint32_t rows;
    unsigned lane;
    bool generates;
};

struct ref *
ref_new(const struct kv_config *c, const struct scheduler_limits *l)
{
    struct ref *t;

    if (c->reuse) return NULL;
    for (uint32_t g = 0; g < c->n_groups; g++)
        if (c->group[g].kind == KV_WINDOW || !c->group[g].max_blocks) return NULL;
    t = calloc(1, sizeof *t);
    check(t);
    t->c = *c;
    t->l = *l;
    return t;
}

struct ref *
ref_free(struct ref *t)
{
    free(t);
    return NULL;
}

bool
ref_before(const struct req *a, const struct req *b)
{
    if (a->priority != b->priority) return a->priority > b->priority;
    if (a->fair_tag != b->fair_tag) return a->fair_tag < b->fair_tag;
    return a->order < b->order;
}

static int
in_order(const void *a, const void *b)
{
    const struct req *const *x = a, *const *y = b;

    return ref_before(*x, *y) ? -1 : 1;
}

bool
ref_follows(const struct req *q)
{
    return q->first && q->first != q && !q->forked;
}

/* The common prefix of preempted beams, at most all tokens but the last. */
static void
see_alike(struct req *first)
{
    first->n_shared = first->prompt - 1;
    for (uint32_t i = 1; i < first->n_members; i++)
        for (uint32_t k = first->n_shared; k-- > 0;)
            if (first->beam->line[i][k] != first->beam->line[0][k]) first->n_shared = k;
    for (uint32_t i = 0; i < first->n_members; i++) {
        first[i].n_shared = first->n_shared;
        first[i].again = false;
    }
}

void
ref_sort(struct ref *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->req[i].again && t->req[i].state == WAIT && t->req[i].first == &t->req[i])
            see_alike(&t->req[i]);
    t->n_list = 0;
    for (uint32_t i = 0; i < t->n; i++)
        if ((t->req[i].state != GONE || t->req[i].slot) &&
            (t->req[i].state != WAIT || !ref_follows(&t->req[i])))
            t->list[t->n_list++] = &t->req[i];
    qsort(t->list, t->n_list, sizeof t->list[0], in_order);
}

struct req *
ref_find(struct ref *t, req_id id, uint32_t member)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->req[i].id == id && t->req[i].member == member &&
            (t->req[i].state != GONE || t->req[i].slot))
            return &t->req[i];
    return NULL;
}

static void
add(struct ref *t, const struct seq *q, struct req *first, nsec now)
{
    struct req *r = &t->req[t->n];

    check(t->n < REF_MAX && q->client < ARRAY_LEN(t->purse));
    *r = (struct req){ .id = q->id,
                       .name = seq_name(q),
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
                       .wants_logprobs = q->prompt_logprobs,
                       .beam = q->beam };
    memcpy(r->end_id, q->end_id, sizeof r->end_id);
    if (q->first_member) {
        r->member = seq_member(q);
        r->first = r->kin = first ? first : r;
        r->n_members = q->first_member->n_members;
        r->n_shared = q->first_member->n_shared;
    }
    if (t->l.quantum) { /* tag: the round in which its client has been granted all tokens so far */
        struct purse *p = &t->purse[q->client];

        if (p->open++ == 0) p->spent = p->fair_tag = 0;
        if (p->spent < t->fair_tag * t->l.quantum) p->spent = t->fair_tag * t->l.quantum;
        p->spent += r->source + r->prompt + r->max_new;
        if (p->fair_tag * t->l.quantum < p->spent) p->fair_tag = CEIL_DIV(p->spent, t->l.quantum);
        r->fair_tag = first ? first->fair_tag : p->fair_tag;
    }
}

void
ref_add(struct ref *t, const struct seq *q, nsec now)
{
    struct req *first = &t->req[t->n];

    add(t, q, NULL, now);
    for (q = q->next_member; q; q = q->next_member) add(t, q, first, now);
}

void
ref_leave(struct req *q)
{
    q->slot = q->begun = q->encoded = false;
    q->len = 0;
    if (q->state != PREEMPTED) return;
    if (!q->first) q->kin = NULL;
    q->again = q->first && q->forked;
    q->forked = false;
    q->fork_step = 0;
    q->state = WAIT; /* its tokens are prompt now */
    if (q->made > 0) q->wants_logprobs = false;
    q->prompt += q->made;
    q->max_new -= q->made;
    q->min_new -= MIN(q->min_new, q->made);
    q->made = q->out = q->pos = q->layers = q->drafts = q->done = 0;
}

void
ref_leave_preempted(struct req *q)
{
    bool out = q->in_flight > 0;

    for (uint32_t i = 0; q->first && i < q->n_members; i++) out = out || q->first[i].in_flight > 0;
    for (uint32_t i = 0; q->first && i < q->n_members && !out; i++) ref_leave(&q->first[i]);
    if (!q->first && !out) ref_leave(q);
}

void
ref_preempt_all(struct req *q)
{
    for (uint32_t i = 0; q->first && i < q->n_members; i++) q->first[i].state = PREEMPTED;
    q->state = PREEMPTED;
    ref_leave_preempted(q);
}

static void
end_one(struct ref *t, struct req *q)
{
    struct purse *p = &t->purse[q->client];
    uint64_t unused = q->max_new - q->made;

    q->state = GONE;
    if (t->l.quantum) {
        p->open--;
        p->spent -= MIN(p->spent, unused);
    }
    if (q->in_flight == 0) ref_leave(q);
}

void
ref_end(struct ref *t, struct req *q)
{
    if (!q->first) {
        end_one(t, q);
        return;
    }
    for (uint32_t i = 0; i < q->n_members; i++)
        if (q->first[i].state != GONE) end_one(t, &q->first[i]);
}

void
ref_suspend(struct ref *t, req_id id, bool suspended)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->req[i].id == id) t->req[i].suspended = suspended;
}

void
ref_cancel(struct ref *t, req_id id)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->req[i].id == id && t->req[i].state != GONE) ref_end(t, &t->req[i]);
}

void
ref_expire(struct ref *t, nsec now)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->req[i].state != GONE && t->req[i].deadline <= now) ref_end(t, &t->req[i]);
}

/* ---- the step */

/* End limit of its next chunk. */
static uint32_t
goal(const struct req *q)
{
    if (q->first == q && !q->forked && q->pos < q->n_shared) return q->n_shared;
    return q->beam && q->pos + 1 < q->prompt ? q->prompt - 1 : q->prompt;
}

/* The last prompt token of a beam; all beams have it in the same step. */
static bool
rides_next(const struct req *q)
{
    return q->beam && q->pos + 1 == q->prompt;
}

static bool
may_ride(const struct req *q)
{
    if (q->first != q) return false;
    for (uint32_t i = 0; i < q->n_members; i++)
        if (q[i].forked && !rides_next(&q[i])) return false;
    return true;
}

static bool
forks_now(const struct req *q)
{
    return q->first == q && !q->forked && q->pos == q->n_shared;
}

/* Names the unnamed blocks of positions up to n. */
static void
name_blocks(struct ref *t, struct req *q, uint32_t n)
{
    check(ref_entries(t, n) <= ENTRIES);
    for (uint32_t i = ref_entries(t, q->pos); q->kin && i < ref_entries(t, n); i++)
        q->block[i] = ++t->n_blocks;
}

/* The members share the first's full blocks; each has its own partial block. */
static void
fork_kin(struct walk *w, struct req *first)
{
    uint32_t n = first->n_members, full = first->n_shared / w->t->c.tokens_per_block;

    for (uint32_t i = 0; i < n; i++) {
        struct req *q = &first[i];

        q->forked = true;
        if (!q->beam) q->first = NULL;
        if (i == 0) continue;
        name_blocks(w->t, q, q->n_shared);
        memcpy(q->block, first->block, full * sizeof q->block[0]);
        q->pos = q->done = q->n_shared;
        q->lane = q->fork_lane = w->lane;
        q->step = q->fork_step = w->t->planned[w->lane] + 1;
    }
}

/* Each beam continues with its parent's blocks. */
static void
reorder_beams(struct ref *t, struct req *first)
{
    static uint32_t old[MAX_BEAMS][ENTRIES];
    uint32_t full = first->pos / t->c.tokens_per_block;

    for (uint32_t i = 0; i < first->n_members; i++)
        memcpy(old[i], first[i].block, full * sizeof old[i][0]);
    for (uint32_t i = 0; i < first->n_members; i++)
        memcpy(first[i].block, old[first->beam->parent[i]], full * sizeof old[i][0]);
}

static void
put(struct walk *w, struct req *q, unsigned work, uint32_t n)
{
    struct ref_run *run = &w->step->run[w->step->n++];

    *run = (struct ref_run){ .id = q->id, .member = q->member, .work = work, .n_tokens = n };
    if (work != WORK_ENCODER && forks_now(q)) fork_kin(w, q);
    q->in_flight++;
    q->lane = w->lane;
    q->step = w->t->planned[w->lane] + 1;
    if (work == WORK_ENCODER) {
        q->layers += n;
        if (q->layers == w->t->l.n_enc_layers) q->state = CONTEXT;
        return;
    }
    q->begun = true;
    name_blocks(w->t, q, q->pos + n);
    q->pos += n;
    w->rows -= n;
    if (q->pos < q->prompt) return;
    run->samples = true;
    run->drafts = work == WORK_DECODE ? n - 1 : 0;
    q->out += 1 + run->drafts;
    q->drafts += run->drafts;
    w->t->closed = w->t->l.policy == POLICY_STATIC;
    q->state = q->out == q->max_new && !q->drafts ? LAST : GENERATE;
}

static bool
streaming(const struct ref *t, bool prompts)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->req[i].slot && !t->req[i].suspended &&
            (t->req[i].state == GENERATE || (prompts && t->req[i].state == CONTEXT)))
            return true;
    return false;
}

static bool
wants_context(const struct walk *w, const struct req *q)
{
    return ref_wants(w->t, q, w->lane, w->now) == WORK_PREFILL;
}

/* Its last step belongs to another lane and is in flight. */
static bool
waits(const struct walk *w, const struct req *q)
{
    return q->lane != w->lane && q->step > w->t->done[q->lane];
}

/* Only searches decode, few enough for one step, and some are in flight. */
static bool
searches_wait(const struct walk *w)
{
    const struct ref *t = w->t;
    uint32_t n = 0, n_out = 0;

    for (uint32_t i = 0; i < t->n_list; i++) {
        const struct req *q = t->list[i];

        if (q->state != GENERATE || q->suspended) continue;
        if (!q->beam) return false;
        n++;
        n_out += q->in_flight && q->lane == w->lane;
    }
    return n_out && n <= t->l.beam_tokens;
}

/* Decode tokens first; then drafts in list order from the remaining tokens, half of them if prompts
 * wait. */
static void
generate(struct walk *w)
{
    struct ref *t = w->t;
    uint32_t n = 0, drafts, alone = 0;
    uint64_t oldest = UINT64_MAX;
    bool prompts = false;

    if (searches_wait(w)) return;
    for (uint32_t i = 0; i < t->n_list; i++) {
        n += t->list[i]->state == GENERATE;
        prompts = prompts || t->list[i]->state == CONTEXT || t->list[i]->state == WAIT;
    }
    drafts = w->rows - n;
    if (prompts && t->l.lane_work[w->lane] & WORK_PREFILL) drafts /= 2;
    for (int again = 0; again < 2; again++)
        for (uint32_t i = 0; i < t->n_list; i++) {
            struct req *q = t->list[i];
            uint32_t some = MIN(MIN(drafts, q->n_draft), q->max_new - q->out - 1);
            bool all = true;

            if (ref_wants(t, q, w->lane, w->now) != WORK_DECODE || q->pos >= q->len) continue;
            if (again ? alone > 0 || q->step > oldest : waits(w, q)) {
                if (!again) oldest = MIN(oldest, q->step);
                continue;
            }
            some = MIN(some, q->len - q->pos - 1);
            drafts -= some;
            alone += !again;
            if (!q->beam) put(w, q, WORK_DECODE, 1 + some);
            if (!q->beam || q->first != q) continue;
            for (uint32_t k = 0; k < q->n_members; k++) all = all && q[k].pos < q[k].len;
            if (!all) continue;
            reorder_beams(t, q);
            for (uint32_t k = 0; k < q->n_members; k++) put(w, &q[k], WORK_DECODE, 1);
        }
    w->generates = w->step->n > 0;
}

static bool
hold_back(const struct walk *w)
{
    const struct ref *t = w->t;
    nsec oldest = NSEC_NEVER;
    uint64_t rows = 0;

    for (uint32_t i = 0; i < t->n_list; i++)
        if (wants_context(w, t->list[i]) && t->list[i]->state == WAIT) {
            rows += t->list[i]->prompt;
            oldest = MIN(oldest, t->list[i]->arrived);
        }
    if (!t->l.prefill_batch_tokens || !(w->generates || streaming(t, false)) || !rows ||
        rows >= t->l.prefill_batch_tokens || w->now - oldest >= t->l.prompt_wait)
        return false;
    w->step->until = MIN(w->step->until, oldest + t->l.prompt_wait);
    return true;
}

static void
contexts(struct walk *w)
{
    struct ref *t = w->t;
    uint32_t unit = t->l.chunk_unit, rows = w->rows, take[REF_MAX], n = 0, most = UINT32_MAX;
    struct req *who[REF_MAX];
    bool full = t->l.policy == POLICY_MAX_UTILIZATION, stopped = false, no_slot = false;
    bool join = !full && !t->closed && !hold_back(w);

    if (!unit) unit = t->c.tokens_per_block <= t->l.max_tokens ? t->c.tokens_per_block : 1;
    if (t->l.lane_tokens[w->lane]) rows = MIN(rows, t->l.lane_tokens[w->lane]);
    if (t->l.lane_seqs[w->lane]) most = t->l.lane_seqs[w->lane];
    for (uint32_t i = 0; i < t->n_list && rows > 0 && n < most; i++) {
        struct req *q = t->list[i];
        uint32_t chunk, budget, rest, some;

        if (!wants_context(w, q)) continue;
        if (q->state == WAIT) {
            if (full || no_slot || !join || !ref_may_take_pages(t, q)) continue;
            if (!ref_has_slot(t, q)) {
                no_slot = true;
                continue;
            }
        }
        if (!q->len && (full || !ref_admit(t, q))) {
            full = true;
            continue;
        }
        if (rides_next(q) && !may_ride(q)) continue;
        rest = goal(q) - MIN(q->pos, goal(q));
        chunk = MIN(q->prompt, t->l.max_tokens);
        if (t->l.max_chunk) chunk = MIN(chunk, t->l.max_chunk);
        budget = MIN(rows, chunk);
        some = t->l.chunks == CHUNK_POLICY_EQUAL_PROGRESS ? MIN(unit - q->pos % unit, rest) : rest;
        if (some > budget)
            some = t->l.chunks == CHUNK_POLICY_EQUAL_PROGRESS ? 0 : (q->pos + budget) / unit * unit;
        if (t->l.chunks != CHUNK_POLICY_EQUAL_PROGRESS && rest > budget)
            some = some > q->pos ? some - q->pos : 0;
        if (some == 0 && n == 0 && !t->l.chunk_unit) some = budget;
        if (!q->begun && (stopped || some == 0)) {
            stopped = true;
            continue;
        }
        if (some > 0 && rides_next(q)) { /* one token of each beam in this step */
            if (q->n_members > (n ? rows : w->rows)) continue;
            for (uint32_t k = 0; k < q->n_members; k++) {
                who[n] = &q[k];
                take[n++] = 1;
            }
            rows -= MIN(rows, q->n_members);
            continue;
        }
        if (some == 0) continue;
        who[n] = q;
        take[n++] = some;
        rows -= some;
    }
    for (bool more = t->l.chunks == CHUNK_POLICY_EQUAL_PROGRESS; more;) {
        more = false;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t at = who[i]->pos + take[i], some = MIN(unit - at % unit, goal(who[i]) - at);
            uint32_t chunk = MIN(who[i]->prompt, t->l.max_tokens);

            if (t->l.max_chunk) chunk = MIN(chunk, t->l.max_chunk);
            if (ref_follows(who[i]) || rides_next(who[i]) || some == 0 || some > rows ||
                take[i] + some > chunk)
                continue;
            take[i] += some;
            rows -= some;
            more = true;
        }
    }
    for (uint32_t i = 0; i < n; i++) put(w, who[i], WORK_PREFILL, take[i]);
}

/* The first free range of encoder rows. */
static bool
place(struct ref *t, struct req *q)
{
    for (uint32_t at = 0; at + q->source <= t->l.max_enc_tokens; at++) {
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
    const struct ref *t = w->t;
    uint32_t n = 0, some = 0;
    uint32_t most = MIN(MIN(t->l.max_seqs, t->l.max_tokens), t->c.n_slots) - ref_slots(t);
    nsec oldest = NSEC_NEVER;

    if (!t->l.n_enc_batches || !streaming(t, true)) return UINT32_MAX;
    for (uint32_t i = 0; i < t->n_list; i++)
        if (t->list[i]->state == WAIT &&
            ref_wants(t, t->list[i], w->lane, w->now) == WORK_ENCODER) {
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
    struct ref *t = w->t;
    uint64_t left = t->l.enc_work && w->generates ? t->l.enc_work : UINT64_MAX;
    uint32_t may = released(w), first = w->step->n;

    for (int waiting = 0; waiting < 2; waiting++)
        for (uint32_t i = 0; i < t->n_list; i++) {
            struct req *q = t->list[i];
            uint32_t n;

            if (q->state != (waiting ? WAIT : ENCODE)) continue;
            if (ref_wants(t, q, w->lane, w->now) != WORK_ENCODER) continue;
            if (waiting && (may == 0 || t->closed || !ref_may_take_pages(t, q))) continue;
            n = t->l.n_enc_layers - q->layers;
            if (t->l.enc_layers) n = MIN(n, t->l.enc_layers);
            n = (uint32_t)MIN((uint64_t)n, MAX(left / q->source, (uint64_t)(w->step->n == first)));
            if (!waiting && n == 0) continue;
            if (n == 0 || (waiting && (!ref_has_slot(t, q) || !place(t, q)))) return;
            if (waiting) {
                ref_take_slot(t, q, ENCODE);
                q->encoded = true;
                may--;
            }
            put(w, q, WORK_ENCODER, n);
            left -= MIN(left, (uint64_t)n * q->source);
        }
}

bool
ref_plan(struct ref *t, unsigned lane, nsec now, struct ref_step *ret)
{
    bool preempted;

    ref_expire(t, now);
    if (t->n_out[lane] == 2) return false;
    ref_sort(t);
    ref_give_up_one(t);
    do {
        struct walk w = { t, ret, now, t->l.max_tokens, lane, false };

        ret->n = 0;
        ret->until = NSEC_NEVER;
        ref_sort(t);
        if (ref_slots(t) == 0) t->closed = false;
        preempted = t->l.policy == POLICY_MAX_UTILIZATION && ref_reserve_steps(t, lane, now);
        ref_sort(t);
        generate(&w);
        for (uint32_t i = 0; i < t->n_list && t->l.policy == POLICY_STATIC && !t->closed; i++) {
            struct req *q = t->list[i];

            if (q->state != WAIT || !wants_context(&w, q) || !ref_may_take_pages(t, q)) continue;
            if (!ref_admit(t, q)) break;
        }
        contexts(&w);
        sources(&w);
    } while (ret->n == 0 && (preempted || ref_give_up_one(t)));
    if (ret->n == 0) return false;
    ret->number = ++t->planned[lane];
    t->out[lane][t->n_out[lane]++] = *ret;
    return true;
}

/* scheduler.c - see scheduler.h: a sequence comes in, is found, ends, leaves. */
#include "worker/sched/scheduler.h"

#include "include/lagan_wire.h"
#include "worker/sched/core.h"

#include <errno.h>
#include <stdlib.h>

static int
check_limits(const struct scheduler_limits *l, const struct kv_config *kv, struct err *e)
{
    unsigned work = 0, want = WORK_CONTEXT | WORK_GENERATION;

    if (l->policy > POLICY_MAX_REQUESTS)
        return err_set(e, -EINVAL, "there is no policy %d", (int)l->policy);
    if (l->max_seqs == 0 || l->max_rows == 0 || l->max_len == 0)
        return err_set(e, -EINVAL,
                       "max_num_seqs %u, max_num_batched_tokens %u, max_len %u: none may be 0",
                       l->max_seqs, l->max_rows, l->max_len);
    if (l->max_seqs > kv->n_seats)
        return err_set(e, -EINVAL, "max_num_seqs is %u, the block tables have %u rows", l->max_seqs,
                       kv->n_seats);
    if (l->chunk_unit > l->max_rows || (l->max_chunk && l->chunk_unit > l->max_chunk))
        return err_set(
            e, -EINVAL,
            "chunks of a multiple of %u tokens never fit into max_num_batched_tokens %u, "
            "and %u of one prompt",
            l->chunk_unit, l->max_rows, l->max_chunk ? l->max_chunk : l->max_rows);
    if (l->n_enc_layers > 0) want |= WORK_ENCODER;
    if (l->n_enc_layers > 0 && l->max_enc_rows == 0)
        return err_set(e, -EINVAL, "max_source_tokens is 0, and the model has an encoder");
    if (l->n_enc_batches > ARRAY_LEN(l->enc_batch))
        return err_set(e, -EINVAL, "%u sizes of encoder batches, at most 8", l->n_enc_batches);
    for (uint32_t i = 1; i < l->n_enc_batches; i++)
        if (l->enc_batch[i] <= l->enc_batch[i - 1])
            return err_set(e, -EINVAL, "sizes of encoder batches must grow: %u after %u",
                           l->enc_batch[i], l->enc_batch[i - 1]);
    if (l->n_draft > MAX_DRAFT)
        return err_set(e, -EINVAL, "%u guesses a step, at most %d", l->n_draft, MAX_DRAFT);
    for (uint32_t g = 0; g < kv->n_groups; g++)
        if (l->n_draft && kv->group[g].kind == KV_STATE)
            return err_set(e, -EINVAL, "guesses, and a model whose state cannot be taken back");
    for (uint32_t i = 0; i < l->n_draft; i++)
        if (l->draft_back[i] > i)
            return err_set(e, -EINVAL, "guess %u continues the row %u before it", i + 1,
                           1u + l->draft_back[i]);
    if (l->n_buckets > ARRAY_LEN(l->bucket))
        return err_set(e, -EINVAL, "%u graph sizes, at most 64", l->n_buckets);
    for (uint32_t i = 1; i < l->n_buckets; i++)
        if (l->bucket[i] <= l->bucket[i - 1])
            return err_set(e, -EINVAL, "graph sizes must grow: %u after %u", l->bucket[i],
                           l->bucket[i - 1]);
    if (l->n_lanes == 0 || l->n_lanes > kv->n_lanes)
        return err_set(e, -EINVAL, "%u lanes, the block tables are shared by %u", l->n_lanes,
                       kv->n_lanes);
    for (unsigned i = 0; i < l->n_lanes; i++) {
        if (l->lane_work[i] & work)
            return err_set(e, -EINVAL, "lane %u does work that another lane does", i);
        if (l->lane_rows[i] && l->chunk_unit > l->lane_rows[i])
            return err_set(e, -EINVAL,
                           "chunks of a multiple of %u tokens never fit into lane %u's %u",
                           l->chunk_unit, i, l->lane_rows[i]);
        work |= l->lane_work[i];
    }
    if (want & ~work) return err_set(e, -EINVAL, "work %x is on no lane", want & ~work);
    return 0;
}

/* Counting blocks would refuse nobody, so nobody needs to count them. */
static int
check_uncounted(const struct scheduler *s, struct err *e)
{
    const struct scheduler_limits *l = &s->l;
    struct kv_need all = kv_need(s->kv, l->max_len, l->max_enc_rows,
                                 STEPS_OUT * (l->max_rows + 1) + UNTOLD_STEPS * (1u + l->n_draft));

    for (uint32_t g = 0; g < kv_config(s->kv)->n_groups; g++)
        all.n_blocks[g] = (uint32_t)MIN((uint64_t)all.n_blocks[g] * s->max_running,
                                        (uint64_t)UINT32_MAX);
    if (kv_fits_alone(s->kv, &all, l->max_len, l->max_enc_rows, NULL) == 0) return 0;
    return err_set(
        e, -EINVAL,
        "policy max_requests counts no blocks, and %u requests of %u tokens do not fit the "
        "KV cache: take another policy, fewer or shorter ones",
        s->max_running, l->max_len);
}

uint32_t
max_running(const struct scheduler_limits *l)
{
    return MIN(l->max_seqs, l->max_rows);
}

int
scheduler_new(struct scheduler **ret, const struct scheduler_limits *l, struct kv *kv,
              struct err *e)
{
    CLEAN(scheduler_free_at) struct scheduler *s = NULL;
    uint32_t tokens = kv_config(kv)->tokens_per_block;

    TRY(check_limits(l, kv_config(kv), e));
    s = calloc(1, sizeof *s);
    if (!s) return err_set(e, -ENOMEM, "scheduler");
    s->l = *l;
    s->turns.quantum = l->quantum;
    s->kv = kv;
    s->n_seats = kv_config(kv)->n_seats;
    s->max_running = max_running(l);
    s->unit = l->chunk_unit ? l->chunk_unit : tokens <= l->max_rows ? tokens : 1;
    s->unit_strict = l->chunk_unit > 0;
    s->sees[0] = 1;
    for (uint32_t i = 1; i <= l->n_draft; i++) {
        uint32_t parent = i - 1 - l->draft_back[i - 1];

        s->tree = s->tree || l->draft_back[i - 1];
        s->depth[i] = s->depth[parent] + 1;
        s->sees[i] = s->sees[parent] | 1u << i;
    }
    s->reuse = kv_config(kv)->reuse;
    s->next_deadline = NSEC_NEVER;
    for (unsigned i = 0; i < MAX_LANES; i++) s->waited_for[i] = NSEC_NEVER;
    for (unsigned i = 0; i < l->n_lanes; i++) s->work[i] = l->lane_work[i];
    if (l->policy == POLICY_MAX_REQUESTS) TRY(check_uncounted(s, e));
    s->seat = aligned_alloc(CACHE_LINE, s->n_seats * sizeof s->seat[0]);
    s->free_seat = calloc(s->n_seats, sizeof s->free_seat[0]);
    s->enc = calloc(s->n_seats, sizeof s->enc[0]);
    s->chunk = calloc(s->n_seats, sizeof s->chunk[0]);
    s->soon = calloc(2 * (size_t)s->n_seats, sizeof s->soon[0]);
    s->holder = calloc(s->n_seats, sizeof s->holder[0]);
    if (!s->seat || !s->free_seat || !s->enc || !s->chunk || !s->soon || !s->holder)
        return err_set(e, -ENOMEM, "scheduler of %u seats", s->n_seats);
    for (uint32_t i = 0; i < s->n_seats; i++) {
        s->seat[i] = (struct seat){ .kept = kv_live(kv, i) };
        s->n_kept += s->seat[i].kept;
        if (!s->seat[i].kept) s->free_seat[s->n_free++] = i;
    }
    *ret = TAKE(s);
    return 0;
}

struct scheduler *
scheduler_free(struct scheduler *s)
{
    if (s) {
        free(s->seat);
        free(s->free_seat);
        free(s->enc);
        free(s->chunk);
        free(s->soon);
        free(s->holder);
    }
    free(s);
    return NULL;
}

uint32_t
scheduler_edits(const struct scheduler_limits *l, const struct kv_config *c)
{
    uint64_t chunk = l->max_rows / c->tokens_per_block + 2, edits = c->n_seats;

    for (uint32_t g = 0; g < c->n_groups; g++) {
        uint64_t rows = c->group[g].kind == KV_CROSS ? l->max_enc_rows : l->max_rows;

        edits += rows / c->tokens_per_block + 2 * (uint64_t)max_running(l);
        /* behind the window: what the chunks before pushed out, for everyone */
        if (c->group[g].kind == KV_WINDOW) edits += STEPS_OUT * max_running(l) * chunk;
        if (c->group[g].kind == KV_STATE) /* its live state, and a snapshot */
            edits += 2 * (uint64_t)max_running(l) * c->group[g].n_layers;
        /* all that one holds who is adopted, or reuses; that a family is told of */
        edits += (uint64_t)family_edits(l) * c->group[g].max_entries;
    }
    return (uint32_t)MIN(edits, UINT32_MAX);
}

/* A part of a block, in each group, for everybody; what those who begin fetch; and as many that are saved. */
uint32_t
scheduler_copies(const struct scheduler_limits *l, const struct kv_config *c)
{
    uint64_t copies = (uint64_t)max_running(l) * c->n_groups;

    for (uint32_t g = 0; g < c->n_groups;
         g++) /* a state begins with a snapshot, and ends with one */
        if (c->group[g].kind == KV_STATE)
            copies += 2 * (uint64_t)max_running(l) * c->group[g].n_layers;
    if (c->host_bytes == 0) return (uint32_t)MIN(copies, UINT32_MAX);
    for (uint32_t g = 0; g < c->n_groups; g++) copies += c->group[g].max_entries;
    return (uint32_t)MIN(2 * copies, UINT32_MAX);
}

struct batch *
scheduler_batch(const struct scheduler *s)
{
    const struct kv_config *c = kv_config(s->kv);

    return batch_new(s->l.max_rows + s->l.max_enc_rows, s->max_running, scheduler_edits(&s->l, c),
                     scheduler_copies(&s->l, c));
}

/* ended: also one that has, and waits for its last step. */
static struct seq *
find(const struct scheduler *s, req_id id, bool ended)
{
    for (struct seq *q = s->running.first; q; q = q->next)
        if (q->id == id && (ended || q->state != SEQ_ENDED)) return q;
    for (struct seq *q = s->waiting.first; q; q = q->next)
        if (q->id == id) return q;
    return NULL;
}

/* Can they ever sit and fork together? */
static int
check_family(const struct scheduler *s, const struct seq *q, struct err *e)
{
    const struct kv_config *c = kv_config(s->kv);
    uint32_t n = 0, entries = 0;

    for (const struct seq *m = q; m; m = m->next_member, n++) {
        check(m->first_member == q && m->state == SEQ_NEW && m->beam == q->beam);
        check(m->n_prompt > q->n_shared && m->max_new > 0 && m->id == q->id);
        check(m->cap >= (uint64_t)m->n_prompt + m->max_new && (m == q || !m->prompt_logprobs));
    }
    check(n == q->n_members && !q->forked && (!q->beam || q->n_prompt == q->n_shared + 1));
    for (uint32_t g = 0; g < c->n_groups; g++) {
        entries += c->group[g].max_entries;
        if (c->group[g].kind == KV_STATE || c->group[g].sinks)
            return err_set(e, -ENOTSUP, "beams and several outputs need a cache without %s",
                           c->group[g].sinks ? "sink tokens" : "recurrent state");
    }
    if (n > s->max_running)
        return err_set(
            e, -EMSGSIZE,
            "%u beams or outputs need so many sequences at once, and rows in a step; there "
            "are %u",
            n, s->max_running);
    if (!(q->beam && q->next_member->n_adopted) &&
        fork_edits(s, q) > (family_edits(&s->l) - 1) * entries)
        return err_set(e, -EMSGSIZE, "a prompt of %u tokens is too long for %u outputs",
                       q->n_shared + 1, n);
    return 0;
}

static int
check_seq(const struct scheduler *s, const struct seq *q, struct err *e)
{
    struct admission way;

    check(q->state == SEQ_NEW && q->max_new > 0 && q->n_eos <= q->n_end);
    check(q->n_end <= ARRAY_LEN(q->end_id));
    check(q->cap >= (uint64_t)q->n_prompt + q->max_new);
    if (find(s, q->id, /* ended= */ true))
        return err_set(e, -EEXIST, "request %llu is here already", (unsigned long long)q->id);
    if (q->n_prompt == 0) return err_set(e, -EINVAL, "the prompt is empty");
    if (s->l.n_enc_layers == 0 && q->n_source > 0)
        return err_set(e, -EINVAL, "the model has no encoder, the request has a source");
    if (s->l.n_enc_layers > 0 && (q->n_source == 0 || !q->source))
        return err_set(e, -EINVAL, "the model has an encoder, the request has no source");
    if (q->n_source > 0 && q->n_source > s->l.max_enc_rows)
        return err_set(e, -EMSGSIZE, "the source has %u tokens, max_source_tokens is %u",
                       q->n_source, s->l.max_enc_rows);
    if (q->lora && q->pages > s->l.pages)
        return err_set(e, -EMSGSIZE, "the adapter takes %u pages, the device has %u", q->pages,
                       s->l.pages);
    if ((uint64_t)q->n_prompt + q->max_new > s->l.max_len)
        return err_set(e, -EMSGSIZE,
                       "a prompt of %u tokens and %u new ones are more than the %u tokens that one "
                       "sequence may have",
                       q->n_prompt, q->max_new, s->l.max_len);
    if (q->first_member) TRY(check_family(s, q, e));
    /* A pause makes a prompt of all but the last token, at most. */
    return admission(
        s, q, s->l.policy == POLICY_MAX_UTILIZATION ? q->n_prompt + q->max_new - 1 : q->n_prompt,
        &way, e);
}

static void
begin(struct scheduler *s, struct seq *q, nsec now)
{
    q->seat = UINT32_MAX;
    q->n_tokens = q->n_prompt;
    q->n_planned = q->n_done = q->n_out = q->n_guess = q->in_flight = 0;
    q->n_pauses = q->n_passed = 0;
    q->enc_row = q->n_enc_layers = 0;
    q->halted = q->forked = false;
    q->lane = 0;
    q->lane_step = q->fork_step = 0;
    q->reason = LAGAN_NONE;
    q->arrived = now;
    q->ticket = s->ticket++;
    q->n_cached = 0;
    q->cross_there = false;
    q->encodes = q->wants_states;
    q->behind.seat = 0;
    q->turn = fair_queue_give(&s->turns, q->client,
                              (uint64_t)q->n_source + q->n_prompt + q->max_new);
    s->next_deadline = MIN(s->next_deadline, q->deadline);
}

int
scheduler_add(struct scheduler *s, struct seq *q, nsec now, struct err *e)
{
    q->n_draft = q->first_member || q->lockstep ? 0 : MIN(q->n_draft, s->l.n_draft);
    if (q->n_draft && check_seq(s, q, NULL) == -EMSGSIZE) q->n_draft = 0; /* windows hold more */
    TRY(check_seq(s, q, e));
    begin(s, q, now);
    if (s->reuse) kv_space(s->kv, q->salt, q->lora, q->source, q->n_source, &q->space);
    for (struct seq *m = q->next_member; m; m = m->next_member) {
        begin(s, m, now);
        m->turn = q->turn; /* they stay side by side */
        m->space = q->space;
        m->n_draft = 0;
    }
    if (q->first_member) {
        TRY(adopt_family(s, &q));
    } else {
        move(s, q, SEQ_WAITING);
        if (q->n_adopted && admit_adopted(s, q)) return 0;
        if (q->n_adopted) scheduler_unkeep(s, q->adopted_seat);
        q->n_adopted = 0;
    }
    if (q) seq_insert(&s->waiting, q);
    return 0;
}

void
scheduler_unkeep(struct scheduler *s, uint32_t seat)
{
    check(seat < s->n_seats);
    if (!s->seat[seat].kept) return;
    kv_drop(s->kv, seat);
    s->seat[seat].kept = false;
    s->free_seat[(s->first_free + s->n_free++) % s->n_seats] = seat;
    s->n_kept--;
}

void
scheduler_keep_prompt(struct scheduler *s, uint32_t seat, uint32_t n_prompt, uint32_t n_source)
{
    struct kv_need n;

    check(seat < s->n_seats);
    if (!s->seat[seat].kept || n_prompt > s->l.max_len) return;
    n = kv_need(s->kv, n_prompt, n_source, MIN(s->unit, n_prompt));
    (void)(kv_raise(s->kv, seat, &n) < 0);
}

void
scheduler_unkeep_all(struct scheduler *s)
{
    for (uint32_t i = 0; i < s->n_seats && s->n_kept > 0; i++) scheduler_unkeep(s, i);
    s->cramped = false;
}

void
scheduler_keep(struct scheduler *s, nsec until)
{
    s->keep_until = until;
}

bool
give_up_one(struct scheduler *s, nsec now)
{
    struct seq *halted = s->cramped ? halted_one(s, /* pages= */ false) : NULL;
    uint32_t seat = 0;

    if (!halted && s->no_pages) halted = halted_one(s, /* pages= */ true);
    s->no_pages = false;
    if (halted) pause_one(s, halted);
    if (halted || !s->cramped || now < s->keep_until) return halted;
    s->cramped = false;
    if (s->n_kept == 0) return false;
    while (!s->seat[seat].kept) seat++;
    scheduler_unkeep(s, seat);
    return true;
}

void
leave_seat(struct scheduler *s, struct seq *q)
{
    bool paused = q->state == SEQ_PAUSED;

    check((paused || q->state == SEQ_ENDED) && q->in_flight == 0 && s->seat[q->seat].seq == q);
    free_enc_rows(s, q->seat);
    give_pages(s, q->seat);
    /* What a family has forked is of use to nobody else. */
    if (s->reuse && q->n_done > 0 && q->reason != LAGAN_E_INTERNAL && !q->forked) {
        struct kv_text t = text_of(q, q->n_tokens);

        kv_release(s->kv, q->seat, &t, MIN(q->n_done, q->n_tokens));
    } else {
        kv_drop(s->kv, q->seat);
    }
    s->seat[q->seat] = (struct seat){ 0 };
    s->free_seat[(s->first_free + s->n_free++) % s->n_seats] = q->seat;
    seq_remove(&s->running, q);
    if (!paused) {
        seq_append(&s->ended, q);
        return;
    }
    unwind(q);
    if (q->first_member && q->first_member != q) {
        move(s, q, SEQ_NEW); /* the first brings it again */
        return;
    }
    move(s, q, SEQ_WAITING);
    seq_insert(&s->waiting, q);
}

static void
end_one(struct scheduler *s, struct seq *q, uint16_t reason)
{
    bool waited = q->state == SEQ_WAITING, brought = q->state == SEQ_NEW;

    if (q->state == SEQ_ENDED) return;
    q->reason = reason;
    move(s, q, SEQ_ENDED);
    fair_queue_end(&s->turns, q->client, q->n_prompt + q->max_new - q->n_tokens);
    if (waited) seq_remove(&s->waiting, q);
    if (waited || brought) {
        seq_append(&s->ended, q);
    } else if (q->in_flight == 0) {
        leave_seat(s, q);
    }
}

void
end_seq(struct scheduler *s, struct seq *q, uint16_t reason)
{
    struct seq *m = q->first_member ? q->first_member : q, *next;

    if (q->state == SEQ_ENDED) return; /* so have the others, and may be gone */
    for (; m; m = next) {
        next = m->next_member;
        end_one(s, m, reason);
    }
}

static bool
expire_list(struct scheduler *s, const struct seq_list *l, nsec now)
{
    bool ended = false;

    for (struct seq *q = l->first, *next; q; q = next) {
        next = q->next;
        if (q->state == SEQ_ENDED) continue;
        if (q->deadline <= now) {
            bool family = q->first_member;

            end_seq(s, q, LAGAN_E_DEADLINE);
            ended = true;
            if (family) next = l->first; /* the others have gone with it */
        } else {
            s->next_deadline = MIN(s->next_deadline, q->deadline);
        }
    }
    return ended;
}

bool
expire(struct scheduler *s, nsec now)
{
    bool ended;

    if (now < s->next_deadline) return false;
    s->next_deadline = NSEC_NEVER;
    ended = expire_list(s, &s->running, now);
    return expire_list(s, &s->waiting, now) || ended;
}

void
scheduler_cancel(struct scheduler *s, req_id id, uint16_t reason)
{
    struct seq *q;

    while ((q = find(s, id, /* ended= */ false))) end_seq(s, q, reason);
}

void
scheduler_end(struct scheduler *s, struct seq *q, uint16_t reason)
{
    end_seq(s, q, reason);
}

void
scheduler_halt(struct scheduler *s, req_id id, bool halted)
{
    for (struct seq *q = s->running.first; q; q = q->next)
        if (q->id == id) q->halted = halted;
    for (struct seq *q = s->waiting.first; q; q = q->next)
        for (struct seq *m = q; m && q->id == id; m = m->next_member) m->halted = halted;
    s->halts |= halted;
}

nsec
scheduler_wake(const struct scheduler *s)
{
    nsec wake = s->next_deadline;
    bool out = false; /* its end will wake whoever asks */

    for (unsigned l = 0; l < s->l.n_lanes; l++) {
        wake = MIN(wake, s->waited_for[l]);
        out = out || s->planned[l] != s->done[l];
    }
    if (out) return wake;
    if (s->cramped) wake = MIN(wake, s->keep_until);
    return s->ask ? 0 : wake;
}

struct seq *
scheduler_reap(struct scheduler *s)
{
    struct seq *q = s->ended.first;

    if (!q) return NULL;
    seq_remove(&s->ended, q);
    move(s, q, SEQ_NEW);
    return q;
}

struct seq *
scheduler_seat(const struct scheduler *s, uint32_t seat)
{
    check(seat < s->n_seats);
    return s->seat[seat].seq;
}

uint32_t
scheduler_n_running(const struct scheduler *s)
{
    return s->running.n;
}

uint32_t
scheduler_n_waiting(const struct scheduler *s)
{
    return s->waiting.n;
}

uint64_t
scheduler_n_pauses(const struct scheduler *s)
{
    return s->n_pauses;
}

static void
check_list(const struct seq_list *l, bool ordered)
{
    const struct seq *prev = NULL;
    uint32_t n = 0;

    for (const struct seq *q = l->first; q; prev = q, q = q->next) {
        check(q->prev == prev && ++n <= l->n);
        check(!ordered || !prev || seq_before(prev, q));
    }
    check(l->last == prev && n == l->n);
}

static uint32_t
n_seqs(const struct scheduler *s)
{
    uint32_t n = 0;

    for (unsigned i = SEQ_WAITING; i <= SEQ_ENDED; i++) n += s->n_in[i];
    return n;
}

static void
check_pages(const struct scheduler *s)
{
    uint32_t pages = 0, users = 0, holding = 0;

    for (uint32_t i = 0; i < s->n_holders; i++) {
        pages += s->holder[i].n_users ? s->holder[i].pages : 0;
        users += s->holder[i].n_users;
    }
    for (uint32_t i = 0; i < s->n_seats; i++) {
        const struct seat *seat = &s->seat[i];

        holding += seat->pages > 0;
        check((seat->pages > 0) == (seat->seq && seat->seq->lora));
        check(!seat->pages || s->holder[seat->pages - 1].lora == seat->seq->lora);
    }
    check(pages == s->pages_used && pages <= s->l.pages && users == holding);
}

void
scheduler_check(const struct scheduler *s)
{
    uint32_t seated = 0, kept = 0, end = 0;

    check_list(&s->waiting, true);
    check_list(&s->running, true);
    check_list(&s->ended, false);
    for (const struct seq *q = s->waiting.first; q; q = q->next)
        check(q->state == SEQ_WAITING && q->in_flight == 0 && q->n_planned == 0);
    for (const struct seq *q = s->ended.first; q; q = q->next)
        check(q->state == SEQ_ENDED && q->in_flight == 0 && q->reason != LAGAN_NONE);
    for (const struct seq *q = s->running.first; q; q = q->next) {
        check(q->seat < s->n_seats && s->seat[q->seat].seq == q);
        check(q->state >= SEQ_ENCODER && (q->state != SEQ_ENDED || q->in_flight > 0));
        check(q->state != SEQ_LAST || (q->in_flight > 0 && q->n_out == q->max_new));
        check(q->n_guess <= q->n_out && (q->n_guess == 0 || q->in_flight > 0));
        check(q->in_flight <= 2u * s->l.n_lanes && q->n_out <= q->max_new);
        check(q->n_planned <= s->seat[q->seat].len);
        check(q->state != SEQ_PAUSED || q->first_member || q->in_flight > 0);
        check(q->n_planned == (q->n_out ? q->n_prompt + q->n_out - 1 : q->n_planned));
        check(q->n_tokens <= q->n_prompt + q->n_out && q->n_done <= q->n_planned);
        check(q->state != SEQ_ENCODER || s->seat[q->seat].encoded);
    }
    for (uint32_t i = 0; i < s->n_seats; i++) {
        seated += s->seat[i].seq != NULL;
        kept += s->seat[i].kept;
        check(!s->seat[i].kept || (!s->seat[i].seq && kv_live(s->kv, i)));
    }
    check(s->running.n + s->waiting.n + s->ended.n == n_seqs(s));
    check(seated == s->running.n && seated + s->n_free + kept == s->n_seats && kept == s->n_kept);
    check(seated <= s->max_running);
    for (uint32_t i = 0; i < s->n_enc; i++) {
        check(s->enc[i].n > 0 && s->enc[i].first >= end && s->seat[s->enc[i].seat].encoded);
        end = s->enc[i].first + s->enc[i].n;
    }
    check(end <= s->l.max_enc_rows);
    check_pages(s);
    for (unsigned l = 0; l < s->l.n_lanes; l++)
        check(s->done[l] <= s->planned[l] && s->planned[l] - s->done[l] <= 2);
    kv_check(s->kv);
}

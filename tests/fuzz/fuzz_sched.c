/* fuzz_sched.c - the scheduler on the strict fake device of tests/sched/sched_harness.h.
 *
 * The first bytes choose groups, limits and lanes; then every few bytes are one call: add, plan,
 * commit, cancel, suspend, fail, let time pass, or die and resume with what is left. The device
 * checks each step. Checked here: every request ends once, with the tokens that its length and end
 * ids demand; all sequences are reaped within as many steps as there is work; for groups that keep
 * all positions a reference plans the same steps; and a second run of the same calls gives the same
 * batches.
 */
#include "tests/fuzz/fuzz.h"

#include "tests/sched/ref_sched.h"
#include "tests/sched/sched_harness.h"
#include "worker/sched/sched_internal.h"

#include "include/lagan_wire.h"

enum { MAX_REQUESTS = 48, MAX_SEQ_GROUP = 4 };

uint64_t fuzz_operations;

struct request {
    req_id id;
    struct seq *seq[MAX_SEQ_GROUP]; /* [n]: itself, or its beams or samples; NULL: reaped */
    uint32_t n, n_open, n_shared;
    bool meddled; /* cancelled, late or failed: any length is right */
    bool was_suspended;
    uint32_t n_seen[MAX_SEQ_GROUP]; /* tokens at the last check: their number only grows */
};
struct world {
    struct sched_fixture r;
    struct request request[MAX_REQUESTS];
    uint32_t n;
    uint64_t trace;            /* of every batch */
    struct ref *ref;           /* NULL: not covered by the reference */
    uint64_t wrote[RUN_SLOTS]; /* occupant() of finished steps: before, no manifest names it */
};
struct left { /* a slot of a dead process */
    struct kv_entry_found row;
    slice_id entry[MAX_GROUPS][RUN_ENTRIES];
};
static struct left left[RUN_SLOTS];
static uint32_t n_left;
static struct world *meant; /* argument of the hooks */

/* Identifies the sequence and its admission. */
static uint64_t
occupant(const struct seq *q)
{
    return q->id | (uint64_t)(q->n_preemptions + 1) << 56;
}

/* A step is done, this one or one that it waited for. */
static void
finishing(struct sched_fixture *r, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_segments; i++)
        meant->wrote[b->segment[i].slot] = occupant(scheduler_seq_at(r->s, b->segment[i].slot));
    if (meant->ref) ref_commit(meant->ref, b->lane, r->failing, r->now);
}

static void
begin(struct world *w, struct in *in)
{
    struct sched_fixture *r = &w->r;
    uint32_t shape = byte(in), n = 1 + shape % 3;
    bool encoder = shape & 8, counted = byte(in) % 2;

    run_defaults(r);
    r->l.policy = (enum policy)((shape >> 4) % 3);
    r->c.tokens_per_block = 1 + byte(in) % 12;
    r->c.n_slots = 1 + byte(in) % 9;
    for (uint32_t g = 0; g < n; g++) { /* one byte a line: arguments have no order */
        uint32_t window = 1 + byte(in) % 20, bytes = 128u << byte(in) % 3;
        uint32_t blocks = !counted && byte(in) % 3 ? 0 : 20 + byte(in) % 30;

        r->c.group[g] = run_group(g > 0 && !counted ? KV_WINDOW : KV_FULL, window, bytes, blocks);
    }
    if (encoder) {
        r->c.group[n++] = run_group(KV_CROSS, 0, 128u << byte(in) % 3, counted ? 60 : 0);
        r->l.n_enc_layers = (uint16_t)(1 + byte(in) % 5);
        r->l.enc_layers = (uint16_t)(byte(in) % 4);
        r->l.max_enc_tokens = 1 + byte(in) % 60;
    }
    r->c.n_groups = n;
    r->c.arena_bytes = (uint64_t)(2 * n + byte(in) % 40) * kv_slab_bytes(&r->c);
    if (counted) r->c.arena_bytes = 1 << 20;
    r->l.max_seqs = 1 + byte(in) % r->c.n_slots;
    r->l.max_tokens = 1 + byte(in) % 50;
    r->l.chunk_unit = byte(in) % 3 ? 0 : 1 + byte(in) % r->l.max_tokens;
    r->l.max_len = 20 + byte(in);
    switch (byte(in) % 4) {
    case 0: /* one lane, the default */
        break;
    case 1:
        r->l.n_lanes = 2;
        r->l.lane_work[0] = WORK_ENCODER | WORK_PREFILL;
        r->l.lane_work[1] = WORK_DECODE;
        break;
    case 2:
        r->l.n_lanes = 2;
        r->l.lane_work[0] = WORK_PREFILL | WORK_DECODE;
        r->l.lane_work[1] = WORK_ENCODER;
        break;
    default:
        r->l.n_lanes = 3;
        r->l.lane_work[0] = WORK_DECODE;
        r->l.lane_work[1] = WORK_PREFILL;
        r->l.lane_work[2] = WORK_ENCODER;
    }
    r->c.n_lanes = r->l.n_lanes;
    shape = byte(in);
    r->c.reuse = shape & 128 && !counted;
    r->c.copy_partial = shape & 64;
    r->l.chunks = shape & 1 ? CHUNK_POLICY_EQUAL_PROGRESS : CHUNK_POLICY_FCFS;
    if (shape & 2) r->l.max_chunk = MAX(r->l.chunk_unit, 1 + byte(in) % r->l.max_tokens);
    for (unsigned i = 0; i < r->l.n_lanes && shape & 2; i++) {
        r->l.lane_tokens[i] = byte(in) % 2 ? MAX(r->l.chunk_unit, 1 + byte(in) % 20) : 0;
        r->l.lane_seqs[i] = byte(in) % 4;
    }
    if (shape & 4) r->l.quantum = 1 + byte(in);
    if (shape & 8) r->l.enc_work = 1 + byte(in);
    if (shape & 16) r->l.pages = byte(in) % 8;
    if (shape & 32) {
        r->l.enc_batch[0] = 1 + byte(in) % 4;
        r->l.n_enc_batches = 1;
        r->l.enc_wait = byte(in);
    }
    if (shape & 64) {
        r->l.prefill_batch_tokens = byte(in);
        r->l.prompt_wait = byte(in);
    }
    shape = byte(in);
    if (shape & 16) r->l.beam_tokens = shape % 16;
    if (shape % 3 == 0) {
        r->l.n_draft = byte(in) % (MAX_DRAFT + 1);
        for (uint32_t i = 0; i < r->l.n_draft; i++)
            r->l.draft_back[i] = (uint8_t)(byte(in) % 2 ? 0 : byte(in) % (i + 1));
    }
    run_open(r);
    if (counted) w->ref = ref_new(&r->c, &r->l);
    meant = w;
    r->finishing = finishing;
}

static void
forget(struct request *k)
{
    for (uint32_t i = 0; i < k->n; i++)
        if (k->seq[i]) seq_free(k->seq[i]);
    k->n = k->n_open = 0;
}

/* Adds a request, or a group with a common prompt. */
static void
add(struct world *w, struct in *in, uint32_t n, bool beams)
{
    struct sched_fixture *r = &w->r;
    uint32_t n_prompt = 1 + byte(in) % 60, max_new = 1 + byte(in) % 40, what = byte(in);
    uint32_t n_source = r->l.n_enc_layers ? 1 + byte(in) % 60 : 0, stem = 0;
    struct request *k = &w->request[w->n];
    struct seq *first;
    nsec deadline = NSEC_NEVER;
    struct err e;

    if (w->n == MAX_REQUESTS) return;
    if (r->c.reuse && what % 4) stem = 1 + byte(in) % 2; /* mostly with a common prefix */
    if (n_source && stem == 1) n_source = 1 + r->l.max_enc_tokens / 3;
    k->id = w->n;
    if (n > 1) {
        k->id = run_ref(w->n, stem ? stem : 3 + w->n, n_prompt);
    } else if (stem) {
        k->id = run_ref(w->n, stem, byte(in));
    }
    if (what & 32) deadline = r->now + 1 + byte(in);
    first = n > 1 ? seq_group_of(k->id, n, beams, n_prompt, max_new, n_source)
                  : seq_new(k->id, n_prompt, max_new, n_source);
    first->prompt_logprobs = what & 64;
    k->n_shared = first->n_shared;
    for (struct seq *q = first; q; q = q->next_member) {
        k->seq[k->n] = q;
        k->n_seen[k->n++] = 0;
        q->priority = (float)(what % 3) / 2;
        q->n_draft = what % (MAX_DRAFT + 3);
        q->client = what % 5;
        if (r->l.pages) q->lora = what % 4;
        q->pages = (uint32_t)q->lora;
        q->deadline = deadline;
        if (beams) continue;
        q->min_new = what / 3 % 5;
        if (!(what & 128)) continue;
        q->n_end = 2;
        q->n_eos = 1;
        q->end_id[0] = fake_token(seq_name(q), n_prompt + byte(in) % 40);
        q->end_id[1] = fake_token(seq_name(q), n_prompt + byte(in) % 40);
    }
    w->n++; /* ids are not used twice */
    if (scheduler_add(r->s, first, r->now, &e) < 0) {
        check(e.text[0] && first->state == SEQ_NEW);
        forget(k);
        return;
    }
    k->n_open = k->n;
    if (w->ref) ref_add(w->ref, first, r->now);
}

/* Tokens of an undisturbed request: up to the first valid end id, or all. */
static uint32_t
natural_end(const struct seq *q, uint16_t *reason)
{
    for (uint32_t i = 0; i < q->max_new; i++) {
        token_id t = fake_token(seq_name(q), q->n_prompt + i);

        if (i < q->min_new) continue;
        for (uint32_t k = 0; k < q->n_end; k++) {
            if (q->end_id[k] != t) continue;
            *reason = k < q->n_eos ? LAGAN_FINISH_EOS : LAGAN_FINISH_STOP;
            return q->n_prompt + i + 1;
        }
    }
    *reason = LAGAN_FINISH_LENGTH;
    return q->n_prompt + q->max_new;
}

static void
reap(struct world *w)
{
    for (struct seq *q; (q = scheduler_reap(w->r.s));) {
        struct request *k = &w->request[(uint32_t)q->id];
        uint32_t i = seq_member(q);
        uint16_t reason;
        uint32_t n = natural_end(q, &reason);

        check(i < k->n && k->seq[i] == q && q->reason != LAGAN_NONE);
        check(q->n_tokens <= n && q->n_tokens >= k->n_seen[i]);
        if (q->reason == reason && !k->meddled) check(q->n_tokens == n);
        if (!k->meddled && q->deadline == NSEC_NEVER) check(q->reason == reason);
        if (q->reason == LAGAN_E_DEADLINE) check(q->deadline <= w->r.now);
        check(q->reason != LAGAN_E_TOO_LONG); /* scheduler_add() detects it */
        if (w->r.l.policy != POLICY_MAX_UTILIZATION && !k->was_suspended)
            check(q->n_preemptions == 0);
        run_check_tokens(q);
        k->n_open--;
        seq_free(q);
        k->seq[i] = NULL;
    }
}

static void
look(struct world *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        struct request *k = &w->request[i];

        for (uint32_t m = 0; m < k->n; m++) {
            if (!k->seq[m]) continue;
            check(k->seq[m]->n_tokens >= k->n_seen[m]);
            k->n_seen[m] = k->seq[m]->n_tokens;
        }
    }
}

/* Compares sequences, work and tokens or layers, in order. */
static void
compare(const struct world *w, const struct batch *b, const struct ref_step *ref)
{
    uint32_t i = 0;

    for (; b && i < b->n_segments; i++) {
        const struct batch_segment *run = &b->segment[i];

        const struct seq *q = scheduler_seq_at(w->r.s, run->slot);

        check(i < ref->n && q->id == ref->run[i].id && seq_member(q) == ref->run[i].member);
        check(run->work == ref->run[i].work && run->n_tokens == ref->run[i].n_tokens);
    }
    for (uint32_t k = 0; b && k < b->n_encode; k++, i++) {
        const struct batch_encode *c = &b->encode[k];

        check(i < ref->n && scheduler_seq_at(w->r.s, c->slot)->id == ref->run[i].id);
        check(ref->run[i].work == WORK_ENCODER && c->n_layers == ref->run[i].n_tokens);
    }
    check(i == ref->n);
    check(scheduler_wake(w->r.s) <= ref->until); /* a batching wait ends in time */
}

static const struct batch *
plan(struct world *w, unsigned lane)
{
    static uint8_t bytes[1 << 18];
    static struct ref_step step;
    const struct batch *b = run_plan(&w->r, lane);
    int n = b ? batch_pack(b, bytes, sizeof bytes) : 0;

    step.n = 0;
    step.until = NSEC_NEVER;
    if (w->ref) ref_plan(w->ref, lane, w->r.now, &step);
    if (w->ref) compare(w, b, &step);

    check(n >= 0);
    for (uint32_t i = 0; b && i < b->n_segments; i++)
        check(!scheduler_seq_at(w->r.s, b->segment[i].slot)->is_suspended);
    for (int i = 0; i < n; i++) w->trace = (w->trace ^ bytes[i]) * UINT64_C(0x100000001b3);
    return b;
}

/* The members that a replacement can resume: beams after a decision, whose rows their steps have
 * left; a sample that forked in a finished step, or the one that computes for all. */
static bool
goes_on(const struct world *w, const struct seq *q)
{
    if (q->fork_step > w->r.done[q->fork_lane]) return false;
    if (!q->beam) return q->has_forked || q->first_member == q;
    return q->has_forked && !q->beam->over && q->beam->n_new > 0 && q->state == SEQ_DECODE &&
           q->n_done + 1 == q->n_tokens;
}

/* What finished steps have written; a step that copies a block for a slot must be done. */
static void
leave(struct world *w)
{
    struct kv *kv = w->r.kv;

    n_left = 0;
    for (uint32_t i = 0; i < w->r.c.n_slots; i++) {
        const struct seq *q = scheduler_seq_at(w->r.s, i);
        struct left *l = &left[n_left];

        if (q && (q->first_member || q->has_forked) && !goes_on(w, q)) continue;
        if (!q || !q->n_done || (!q->n_adopted && w->wrote[i] != occupant(q))) continue;
        n_left++;
        l->row = (struct kv_entry_found){ q->id, i, q->n_done, q->n_source, { 0 }, { 0 } };
        for (uint32_t g = 0; g < w->r.c.n_groups; g++) {
            uint32_t first, n = kv_held(kv, i, g, &first);

            l->row.entry[g] = l->entry[g];
            l->row.n_entries[g] = n ? first + n : 0;
            for (uint32_t k = 0; k < first + n; k++) l->entry[g][k] = kv_entry(kv, i, g, k);
        }
    }
}

static void
adopt(struct sched_fixture *r)
{
    for (uint32_t i = 0; i < n_left; i++)
        if (kv_adopt(r->kv, &left[i].row) < 0) left[i].row.id = UINT64_MAX;
    kv_adopt_end(r->kv);
    kv_check(r->kv);
}

static const struct left *
left_of(const struct seq *q)
{
    for (uint32_t i = 0; i < n_left; i++)
        if (left[i].row.id == q->id && left[i].row.slot == q->slot) return &left[i];
    return NULL;
}

/* Adds a group again with its tokens so far: a search if all its beams were adopted, samples if
 * none has ended. */
static bool
family_again(struct world *w, struct request *k)
{
    struct seq *first = k->seq[0];
    struct err e;

    for (uint32_t i = 0; i < k->n; i++) {
        const struct seq *q = k->seq[i];

        if (!q || q->state == SEQ_ENDED || (q->beam && !left_of(q))) return false;
    }
    for (uint32_t i = 0; i < k->n; i++) {
        struct seq *q = k->seq[i];
        const struct left *l = left_of(q);
        struct seq old = *q;
        uint32_t made = q->n_tokens - q->n_prompt;

        *q = (struct seq){ .id = old.id,
                           .token = old.token,
                           .cap = old.cap,
                           .n_prompt = old.n_tokens,
                           .max_new = old.max_new - made,
                           .min_new = old.min_new - MIN(old.min_new, made),
                           .n_end = old.n_end,
                           .n_eos = old.n_eos,
                           .source = old.source,
                           .n_source = old.n_source,
                           .priority = old.priority,
                           .client = old.client,
                           .lora = old.lora,
                           .pages = old.pages,
                           .deadline = old.deadline,
                           .plan_after_commit = old.plan_after_commit,
                           .beam = old.beam,
                           .owner = old.owner,
                           .first_member = first,
                           .next_member = i + 1 < k->n ? k->seq[i + 1] : NULL,
                           .n_adopted = l ? MIN(l->row.committed, old.n_tokens - 1) : 0,
                           .adopted_slot = old.slot };
        memcpy(q->end_id, old.end_id, sizeof q->end_id);
    }
    first->n_members = k->n;
    first->n_shared = first->beam ? first->n_prompt - 1 : k->n_shared;
    return scheduler_add(w->r.s, first, w->r.now, &e) == 0;
}

/* Adds a request again with its tokens so far, on its old slot if that was adopted and `claims`. */
static void
again(struct world *w, struct request *k, bool claims)
{
    struct seq *old = k->seq[0], *q;
    uint32_t made;
    struct err e;

    if (k->n > 1) {
        if (!claims || !family_again(w, k)) forget(k);
        return;
    }
    made = old->n_tokens - old->n_prompt;
    q = seq_new(old->id, old->n_tokens, old->max_new - made, old->n_source);

    q->priority = old->priority;
    q->n_draft = old->n_draft;
    q->client = old->client;
    q->lora = old->lora;
    q->pages = old->pages;
    q->deadline = old->deadline;
    q->min_new = old->min_new - MIN(old->min_new, made);
    q->n_end = old->n_end;
    q->n_eos = old->n_eos;
    memcpy(q->end_id, old->end_id, sizeof q->end_id);
    for (uint32_t i = 0; i < n_left && claims; i++) {
        if (left[i].row.id != q->id) continue;
        q->n_adopted = MIN(left[i].row.committed, q->n_prompt - 1);
        q->adopted_slot = left[i].row.slot;
    }
    seq_free(old);
    k->seq[0] = q;
    if (q->max_new == 0 || scheduler_add(w->r.s, q, w->r.now, &e) < 0)
        forget(k); /* a longer prompt than the smallest pool holds */
}

static void
die(struct world *w, struct in *in)
{
    uint32_t claims = byte(in);

    reap(w);
    leave(w);
    w->ref = ref_free(w->ref);
    run_die(&w->r);
    w->r.adopt = adopt;
    run_again(&w->r);
    if (claims & 32) scheduler_keep(w->r.s, w->r.now + 40 * (claims >> 6));
    for (uint32_t i = 0; i < w->n; i++) {
        struct request *k = &w->request[i];

        if (!k->n_open) continue;
        if (k->seq[0] && k->seq[0]->state == SEQ_ENDED) k->meddled = true; /* end unreported */
        again(w, k, (claims >> i % 4 & 1) != 0);
    }
    if (claims & 16) scheduler_unkeep_all(w->r.s);
}

static void
call(struct world *w, struct in *in)
{
    struct sched_fixture *r = &w->r;
    uint32_t what = byte(in);

    switch (what % 16) {
    case 0:
    case 1:
    case 2:
        add(w, in, 1, false);
        break;
    case 3:
        if (w->n == 0) break;
        what = byte(in) % w->n;
        w->request[what].meddled = true;
        if (!w->request[what].n_open) break;
        scheduler_cancel(r->s, w->request[what].id, LAGAN_E_CANCELLED);
        if (w->ref) ref_cancel(w->ref, w->request[what].id);
        break;
    case 4:
        if (what & 128 && w->n) {
            struct request *k = &w->request[byte(in) % w->n];

            if (!k->n_open) break;
            k->was_suspended = true;
            scheduler_suspend(r->s, k->id, what & 64);
            if (w->ref) ref_suspend(w->ref, k->id, what & 64);
        } else if (what & 64 && !w->ref && r->l.n_lanes > 1) {
            r->divided = true;
            scheduler_set_partition(r->s, what / 16 % 4, byte(in) % 32);
        } else {
            r->now += byte(in);
        }
        break;
    case 5:
        r->failing = byte(in) % 8 == 0;
        for (uint32_t i = 0; r->failing && i < w->n; i++) /* all of the step */
            for (uint32_t m = 0; m < w->request[i].n; m++)
                if (w->request[i].seq[m] && (w->request[i].seq[m]->in_flight > 0 ||
                                             w->request[i].seq[m]->state == SEQ_PREFILL))
                    w->request[i].meddled = true;
        run_commit(r, what / 16 % r->l.n_lanes);
        r->failing = false;
        break;
    case 6:
    case 7:
    case 8:
    case 9:
    case 10:
        plan(w, what / 16 % r->l.n_lanes);
        break;
    case 15:
        if (what / 16 % 4 == 0) {
            die(w, in);
        } else {
            add(w, in, 1 + what / 16 % 4, what & 128);
        }
        break;
    default:
        run_commit(r, what / 16 % r->l.n_lanes);
    }
    scheduler_check(r->s);
    look(w);
    if (what & 16) reap(w);
}

/* Each round makes progress, until none is possible. */
static void
settle(struct world *w)
{
    uint32_t rounds = 0;

    for (bool more = true; more;) {
        more = false;
        for (unsigned l = 0; l < w->r.l.n_lanes; l++) more = plan(w, l) != NULL || more;
        for (unsigned l = 0; l < w->r.l.n_lanes; l++) more = run_commit(&w->r, l) || more;
        if (!more && scheduler_wake(w->r.s) != NSEC_NEVER) {
            w->r.now = MAX(w->r.now, scheduler_wake(w->r.s));
            more = true;
        }
        check(++rounds < 200 * MAX_REQUESTS);
    }
    reap(w);
}

/* A suspended request with resources that cannot be reclaimed: encoder rows, partly reported
 * logprobs, blocks that the device does not know yet. */
static bool
holds(const struct world *w, const struct seq *q)
{
    if (!q->is_suspended || q->state == SEQ_WAITING) return false;
    if (q->n_source || q->prompt_logprobs || q->n_adopted || q->n_done == 0) return true;
    return q->state == SEQ_PREFILL && !q->has_forked && !w->r.s->slot[q->slot].chunk_planned;
}

/* Suspended requests stop others only by what cannot be reclaimed. Then every request ends. */
static void
drain(struct world *w)
{
    bool held = w->r.l.policy == POLICY_STATIC;

    scheduler_keep(w->r.s, 0);
    settle(w);
    for (uint32_t g = 0; g < w->r.c.n_groups; g++) /* its tokens may not fit as a prompt */
        held = held || w->r.c.group[g].kind == KV_WINDOW;
    for (uint32_t i = 0; i < w->n; i++)
        for (uint32_t m = 0; m < w->request[i].n; m++)
            held = held || (w->request[i].seq[m] && holds(w, w->request[i].seq[m]));
    for (uint32_t i = 0; i < w->n; i++) {
        struct request *k = &w->request[i];

        if (!k->n_open) continue;
        for (uint32_t m = 0; m < k->n; m++) check(held || !k->seq[m] || k->seq[m]->is_suspended);
        scheduler_suspend(w->r.s, k->id, false);
        if (w->ref) ref_suspend(w->ref, k->id, false);
    }
    settle(w);
    scheduler_unkeep_all(w->r.s);
    for (uint32_t i = 0; i < w->n; i++) check(!w->request[i].n_open);
    check(scheduler_counts(w->r.s).running == 0 && scheduler_counts(w->r.s).waiting == 0);
    check(run_used(&w->r) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t trace = 0;

    for (int round = 0; round < 2; round++) {
        struct world *w = calloc(1, sizeof *w);
        struct in in = { data, data + size };

        check(w);
        begin(w, &in);
        for (; in.p < in.end; fuzz_operations += round == 0) call(w, &in);
        drain(w);
        run_close(&w->r);
        ref_free(w->ref);
        check(round == 0 || trace == w->trace);
        trace = w->trace;
        free(w);
    }
    return 0;
}

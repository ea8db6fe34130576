/* beam_search.c - the decisions of a beam search: beam_search.h. Source: transformers'
 * _beam_search(), with the same comparisons, for one request; scores are fp32 as there.
 */
#include "worker/sched/beam_search.h"

#include "include/lagan_wire.h"

#include <math.h>

/* Makes a score rank last: of beams 1 .. at the start, which are equal to beam 0, and of ended
 * continuations, which continue only if too few others exist. */
static const float LOW = -1e9f;

enum { MAX_WIDTH = 1024 };

uint32_t
beam_width(uint32_t n_beams, uint32_t n_end)
{
    return MIN(n_beams * MAX(2u, 1 + n_end), (uint32_t)MAX_WIDTH);
}

void
beam_start(struct beam *b, uint32_t n_new, float score)
{
    check(b->n_beams > 0 && b->n_beams <= MAX_BEAMS && n_new < b->max_new);
    b->n_new = b->n_common = n_new;
    b->n_done = 0;
    b->over = false;
    for (uint32_t i = 0; i < b->n_beams; i++) {
        b->order[i] = b->parent[i] = (uint8_t)i;
        b->score[i] = i ? LOW : score;
        b->done[i].token = b->done_token[i];
        b->done[i].total = b->done_total[i];
        b->done[i].row_slot = b->done_row_slot[i];
        memset(b->row_slot[i], BEAM_NO_ROW, n_new);
    }
}

static uint16_t
reason_of(const struct beam *b, uint32_t slot, token_id t)
{
    for (uint32_t i = 0; i < b->n_end && b->n_new >= b->min_new; i++)
        if (b->end_id[i] == t) return i < b->n_eos ? LAGAN_FINISH_EOS : LAGAN_FINISH_STOP;
    if (b->stops && b->stops(b->stops_arg, b, slot, t)) return LAGAN_FINISH_STOP;
    return b->n_new + 1 == b->max_new ? LAGAN_FINISH_LENGTH : 0;
}

/* Stores the n best continuations of all beams in ret, best first; returns their number. Each
 * beam's list is sorted, so only the first unused element of each list is compared. */
static uint32_t
merge_lists(const struct beam *b, const struct beam_list *list, struct beam_move *ret, uint32_t n)
{
    uint32_t at[MAX_BEAMS] = { 0 };

    for (uint32_t k = 0; k < n; k++) {
        uint32_t from = MAX_BEAMS;
        float best = 0;

        for (uint32_t r = 0; r < b->n_beams; r++) {
            uint32_t slot = b->order[r];
            const struct batch_top *t = &list[slot].top[at[slot]];
            float score;

            if (at[slot] == list[slot].n || t->id < 0) continue;
            score = b->score[slot] + t->logprob;
            if (from < MAX_BEAMS && !(score > best)) continue;
            from = slot;
            best = score;
        }
        if (from == MAX_BEAMS) return k;
        ret[k] = (struct beam_move){ .score = best,
                                     .token = list[from].top[at[from]].id,
                                     .slot = (uint8_t)from };
        ret[k].reason = reason_of(b, from, ret[k].token);
        at[from]++;
    }
    return n;
}

static float
penalised_score(const struct beam *b, float score, uint32_t n)
{
    return score / (float)pow((double)n, (double)b->length_penalty);
}

/* Inserts an ended hypothesis into done[] if it is among the n_beams best so far. */
static void
keep_hypothesis(struct beam *b, const struct beam_move *c)
{
    float score = penalised_score(b, c->score, b->n_new + 1);
    uint32_t at = b->n_done;
    struct beam_done d;

    if (b->n_done == b->n_beams) {
        at--;
        if (!(score > b->done[at].score)) return;
    } else {
        b->n_done++;
    }
    d = b->done[at]; /* its storage is reused */
    for (; at > 0 && score > b->done[at - 1].score; at--) b->done[at] = b->done[at - 1];
    d.score = score;
    d.n = b->n_new + 1;
    d.reason = c->reason;
    memcpy(d.token, b->line[c->slot] + b->first, b->n_new * sizeof(token_id));
    d.token[b->n_new] = c->token;
    memcpy(d.total, b->total[c->slot], b->n_new * sizeof(float));
    d.total[b->n_new] = c->score;
    memcpy(d.row_slot, b->row_slot[c->slot], b->n_new);
    d.row_slot[b->n_new] = c->slot;
    b->done[at] = d;
}

/* Assigns slots to the continued beams c[], best first. The first continuation of a beam keeps the
 * beam's slot; further ones get slots of beams without a continuation. */
static void
place_in_slots(struct beam *b, const struct beam_move *c)
{
    uint32_t n = b->n_new - b->n_common, idle = 0;

    memset(b->parent, MAX_BEAMS, sizeof b->parent);
    for (uint32_t r = 0; r < b->n_beams; r++) {
        b->order[r] = MAX_BEAMS;
        if (b->parent[c[r].slot] != MAX_BEAMS) continue;
        b->order[r] = b->parent[c[r].slot] = c[r].slot;
    }
    for (uint32_t r = 0; r < b->n_beams; r++) {
        if (b->order[r] != MAX_BEAMS) continue;
        while (b->parent[idle] != MAX_BEAMS) idle++;
        b->parent[idle] = c[r].slot;
        b->order[r] = (uint8_t)idle;
        memcpy(b->line[idle] + b->first + b->n_common, b->line[c[r].slot] + b->first + b->n_common,
               n * sizeof(token_id));
        memcpy(b->total[idle] + b->n_common, b->total[c[r].slot] + b->n_common, n * sizeof(float));
        memcpy(b->row_slot[idle] + b->n_common, b->row_slot[c[r].slot] + b->n_common, n);
    }
    for (uint32_t r = 0; r < b->n_beams; r++) {
        uint32_t slot = b->order[r];

        b->line[slot][b->first + b->n_new] = c[r].token;
        b->score[slot] = b->total[slot][b->n_new] = c[r].score;
        b->row_slot[slot][b->n_new] = c[r].slot;
    }
    b->n_new++;
}

static void
extend_common_prefix(struct beam *b)
{
    const token_id *one = b->line[b->order[0]] + b->first;
    uint32_t end = b->n_new;

    for (uint32_t i = 0; i < b->n_done; i++) end = MIN(end, b->done[i].n);
    for (; b->n_common < end; b->n_common++) {
        uint32_t k = b->n_common;

        for (uint32_t i = 0; i < b->n_beams; i++)
            if (b->line[i][b->first + k] != one[k]) return;
        for (uint32_t i = 0; i < b->n_done; i++)
            if (b->done[i].token[k] != one[k]) return;
    }
}

/* True if no live beam can get a better score than the worst hypothesis in done[]. */
static bool
cannot_improve(const struct beam *b)
{
    bool far = b->early == BEAM_EARLY_NEVER && b->length_penalty > 0;
    float worst = b->n_done == b->n_beams ? b->done[b->n_done - 1].score : LOW;

    return !(penalised_score(b, b->score[b->order[0]], far ? b->max_new : b->n_new) > worst);
}

/* Applies the decision b->last to the search: ended hypotheses, slots of beams, common prefix. */
static void
apply_decision(struct beam *b)
{
    for (uint32_t i = 0; i < b->last.n_ended; i++) keep_hypothesis(b, &b->last.ended[i]);
    place_in_slots(b, b->last.next);
    extend_common_prefix(b);
}

void
beam_decide(struct beam *b, const struct beam_list *list)
{
    struct beam_move all[MAX_WIDTH];
    uint32_t n = merge_lists(b, list, all, beam_width(b->n_beams, b->n_end)), n_next = 0,
             n_ended = 0;
    struct beam_decision *t = &b->last;

    check(!b->over && n >= b->n_beams);
    t->n_ended = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i < b->n_beams && all[i].reason) t->ended[t->n_ended++] = all[i];
        if (!all[i].reason && n_next < b->n_beams) t->next[n_next++] = all[i];
        n_ended += all[i].reason != 0;
    }
    for (uint32_t i = 0; i < n && n_next < b->n_beams; i++) {
        if (!all[i].reason) continue;
        t->next[n_next] = all[i];
        t->next[n_next++].score += LOW;
    }
    b->all_ended = n_ended == n;
}

void
beam_advance(struct beam *b)
{
    apply_decision(b);
    b->over = cannot_improve(b) || b->all_ended ||
              (b->early == BEAM_EARLY_TRUE && b->n_done == b->n_beams);
}

int
beam_redo(struct beam *b, const struct beam_decision *t)
{
    if (b->over || b->n_new + 1 >= b->max_new || t->n_ended > b->n_beams) return -EBADMSG;
    b->last = *t;
    for (uint32_t i = 0; i < b->n_beams + t->n_ended; i++) {
        bool ended = i >= b->n_beams;
        struct beam_move *m = ended ? &b->last.ended[i - b->n_beams] : &b->last.next[i];

        if (m->slot >= b->n_beams || m->token < 0) return -EBADMSG;
        m->reason = reason_of(b, m->slot, m->token);
        if (ended && !m->reason) return -EBADMSG;
    }
    apply_decision(b);
    return 0;
}

struct beam_done
beam_result(const struct beam *b, uint32_t i)
{
    uint32_t slot;

    check(b->over && i < b->n_beams);
    if (i < b->n_done) return b->done[i];
    slot = b->order[i - b->n_done];
    return (struct beam_done){ .score = penalised_score(b, b->score[slot], b->n_new),
                               .n = b->n_new,
                               .reason = LAGAN_FINISH_LENGTH,
                               .token = b->line[slot] + b->first,
                               .total = b->total[slot],
                               .row_slot = b->row_slot[slot] };
}

/* adopt_log.c - writes the manifest in every step: see adopt_log.h. */
#include "worker/handover/adopt_log.h"

#include "ipc/stat.h"
#include "worker/handover/adopt.h"
#include "worker/io/request.h"
#include "worker/manifest/manifest.h"
#include "worker/sched/beam_search.h"
#include "worker/sched/scheduler.h"

int
adopt_log_open(struct worker *w, struct err *e)
{
    w->adopt->owner = calloc(w->limits->max_seqs, sizeof *w->adopt->owner);
    w->adopt->named = calloc(w->kv_config->n_slots, sizeof *w->adopt->named);
    if (w->adopt->owner && w->adopt->named) return 0;
    return err_set(e, -ENOMEM, "no memory to record which manifest entries %u sequences own",
                   w->limits->max_seqs);
}

void
adopt_log_close(struct worker *w)
{
    free(TAKE(w->adopt->owner));
    free(TAKE(w->adopt->named));
}

static void
describe_owner(struct worker *w, uint32_t slot, struct manifest_owner *o)
{
    const struct seq *s = scheduler_seq_at(w->sched, slot);
    const struct worker_request *r = s->owner;

    *o = (struct manifest_owner){
        .slot = slot,
        .id = s->id,
        .n_cross = s->n_source,
        .n_tokens = s->n_prompt,
        .member = r->output,
        .n_beams = s->beam ? s->beam->n_beams : 0,
    };
    manifest_hash(s->token, s->n_prompt, o->tokens_hash);
    manifest_hash(s->source, s->n_source, o->source_hash);
}

/* Counts the positions of s that the previous worker had computed and s has not claimed (adopt.h):
 * as adopted if s found them in the prefix cache, else as recomputed. */
static void
count_recomputed(struct worker *w, const struct seq *s)
{
    const struct worker_request *r = s->owner;
    uint32_t found = MIN(s->n_cached, r->recomputed);

    if (s->n_preemptions > 0) return; /* counted at the first start of the sequence */
    w->stats->v[STAT_adopted] += found;
    w->stats->v[STAT_recomputed] += r->recomputed - found;
}

/* Besides the edits, publishes the owner of an entry together with the first edit of the slot. An
 * adopted entry has an owner already. A beam search that resumes after output tokens gets no owner,
 * because the moves to these tokens are not in its entries: it cannot be adopted. */
void
adopt_log_launch(struct worker *w, const struct batch *b)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < b->n_edits; i++) {
        const struct kv_edit *e = &b->edit[i];
        const struct seq *s = scheduler_seq_at(w->sched, e->slot);

        if (e->op == EDIT_CLEAR) w->adopt->named[e->slot] = false;
        if (e->op == EDIT_CLEAR || w->adopt->named[e->slot]) continue;
        w->adopt->named[e->slot] = true;
        count_recomputed(w, s);
        if (s->n_adopted || (s->beam && s->n_prompt != s->beam->first)) continue;
        describe_owner(w, e->slot, &w->adopt->owner[n++]);
    }
    manifest_put_nodes(&w->adopt->manifest, w->kv);
    manifest_launch(&w->adopt->manifest, b->edit, b->n_edits, w->adopt->owner, n);
}

void
adopt_log_tree(struct worker *w)
{
    manifest_put_nodes(&w->adopt->manifest, w->kv);
}

void
adopt_log_ends(struct worker *w)
{
    struct kv_edit clear = { .op = EDIT_CLEAR };

    for (uint32_t i = 0; kv_end(w->kv, i, &clear.slot); i++)
        manifest_launch(&w->adopt->manifest, &clear, 1, NULL, 0);
}

void
adopt_log_commit(struct worker *w, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct batch_segment *r = &b->segment[i];

        manifest_commit(&w->adopt->manifest, r->slot, (uint32_t)r->first_pos + r->n_tokens);
    }
}

void
adopt_log_beams(struct worker *w, const struct seq *first)
{
    const struct beam *b = first->beam;
    struct manifest_move move[MAX_BEAMS];
    uint32_t slot[MAX_BEAMS], n = 0;

    for (const struct seq *m = first; m; m = m->next_member, n++) {
        const struct beam_move *next = &b->last.next[n], *ended = &b->last.ended[n];
        bool has = n < b->last.n_ended;

        slot[n] = m->slot;
        move[n] = (struct manifest_move){ .token = next->token,
                                          .ended_token = has ? ended->token : -1,
                                          .score = next->score,
                                          .ended_score = has ? ended->score : 0,
                                          .slot = next->slot,
                                          .ended_slot = has ? ended->slot : 0 };
    }
    manifest_put_decision(&w->adopt->manifest, slot, n, b->n_new - 1, move);
}

/* seq.c - see seq.h. */
#include "worker/sched/seq.h"

static const struct {
    const char *name;
    unsigned next; /* bits of the states that may follow */
} states[] = {
    /* clang-format off */
    [SEQ_NEW]        = { "new",        1u << SEQ_WAITING | 1u << SEQ_CONTEXT | 1u << SEQ_ENDED },
    [SEQ_WAITING]    = { "waiting",    1u << SEQ_ENCODER | 1u << SEQ_CONTEXT | 1u << SEQ_ENDED },
    [SEQ_ENCODER]    = { "encoder",    1u << SEQ_CONTEXT | 1u << SEQ_ENDED },
    [SEQ_CONTEXT]    = { "context",    1u << SEQ_GENERATION | 1u << SEQ_LAST | 1u << SEQ_PAUSED |
                                       1u << SEQ_ENDED },
    [SEQ_GENERATION] = { "generation", 1u << SEQ_LAST | 1u << SEQ_PAUSED | 1u << SEQ_ENDED },
    [SEQ_LAST]       = { "last",       1u << SEQ_ENDED },
    [SEQ_PAUSED]     = { "paused",     1u << SEQ_NEW | 1u << SEQ_WAITING | 1u << SEQ_ENDED },
    [SEQ_ENDED]      = { "ended",      1u << SEQ_NEW },
    /* clang-format on */
};

void
seq_move(struct seq *q, enum seq_state to)
{
    check(q->state < ARRAY_LEN(states) && to < ARRAY_LEN(states));
    check(states[q->state].next & 1u << to);
    q->state = to;
}

const char *
seq_state_name(enum seq_state state)
{
    return state < ARRAY_LEN(states) ? states[state].name : "?";
}

bool
seq_before(const struct seq *a, const struct seq *b)
{
    if (a->priority > b->priority) return true;
    if (a->priority < b->priority) return false;
    return a->turn < b->turn || (a->turn == b->turn && a->ticket < b->ticket);
}

static void
insert_after(struct seq_list *l, struct seq *q, struct seq *prev)
{
    q->prev = prev;
    q->next = prev ? prev->next : l->first;
    *(prev ? &prev->next : &l->first) = q;
    *(q->next ? &q->next->prev : &l->last) = q;
    l->n++;
}

void
seq_insert(struct seq_list *l, struct seq *q)
{
    struct seq *prev = l->last; /* from the end: most arrive in order */

    while (prev && seq_before(q, prev)) prev = prev->prev;
    insert_after(l, q, prev);
}

void
seq_append(struct seq_list *l, struct seq *q)
{
    insert_after(l, q, l->last);
}

void
seq_remove(struct seq_list *l, struct seq *q)
{
    *(q->prev ? &q->prev->next : &l->first) = q->next;
    *(q->next ? &q->next->prev : &l->last) = q->prev;
    q->next = q->prev = NULL;
    l->n--;
}

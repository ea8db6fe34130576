/* seq.c - the state changes and the ordered lists of sequences: see seq.h. */
#include "worker/sched/seq.h"

/* For each state the mask of allowed next states. */
static const unsigned follows[] = {
    /* clang-format off */
    [SEQ_NEW]        = 1u << SEQ_WAITING | 1u << SEQ_PREFILL | 1u << SEQ_ENDED,
    [SEQ_WAITING]    = 1u << SEQ_ENCODER | 1u << SEQ_PREFILL | 1u << SEQ_ENDED,
    [SEQ_ENCODER]    = 1u << SEQ_PREFILL | 1u << SEQ_ENDED,
    [SEQ_PREFILL]    = 1u << SEQ_DECODE | 1u << SEQ_LAST | 1u << SEQ_PREEMPTED | 1u << SEQ_ENDED,
    [SEQ_DECODE]     = 1u << SEQ_LAST | 1u << SEQ_PREEMPTED | 1u << SEQ_ENDED,
    [SEQ_LAST]       = 1u << SEQ_ENDED,
    [SEQ_PREEMPTED]  = 1u << SEQ_NEW | 1u << SEQ_WAITING | 1u << SEQ_ENDED,
    [SEQ_ENDED]      = 1u << SEQ_NEW,
    /* clang-format on */
};

void
seq_move(struct seq *q, enum seq_state to)
{
    check(q->state < ARRAY_LEN(follows) && to < ARRAY_LEN(follows));
    check(follows[q->state] & 1u << to);
    q->state = to;
}

bool
seq_before(const struct seq *a, const struct seq *b)
{
    if (a->priority > b->priority) return true;
    if (a->priority < b->priority) return false;
    if (a->fair_tag != b->fair_tag) return a->fair_tag < b->fair_tag;
    return a->arrival_number < b->arrival_number;
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
    /* search from the end, because most sequences are inserted in order */
    struct seq *prev = l->last;

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

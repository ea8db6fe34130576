/* ref_sched_internal.h - what ref_sched.c, ref_sched_preempt.c and ref_sched_commit.c share: ref_sched.h. */
#ifndef TESTS_SCHED_REF_SCHED_INTERNAL_H
#define TESTS_SCHED_REF_SCHED_INTERNAL_H

#include "tests/sched/ref_sched.h"

enum state { WAIT, ENCODE, CONTEXT, GENERATE, LAST, PAUSED, GONE };

enum { ENTRIES = 400 };

struct req {
    req_id id, name; /* name: whose tokens it has */
    enum state state;
    float priority;
    uint32_t order, prompt, max_new, source, made, out, pos, len, layers, in_flight, pages, n_end,
        min_new, enc_at, client, n_draft;
    uint32_t drafts; /* in flight, counted as taken */
    uint32_t done;   /* positions of steps that are over */
    uint64_t turn;
    unsigned lane; /* of its last step */
    uint64_t step;
    unsigned fork_lane; /* where it was given what the first of its kin held */
    uint64_t fork_step;
    token_id end_id[48];
    uint64_t lora;
    nsec deadline, arrived;
    bool slot, begun, told, encoded, suspended;
    uint32_t
        passed; /* by those who took an adapter's pages before it, while there were none for it */
    bool
        again; /* it was preempted, and begins with what it had: how much all beams share is to be seen */
    /* Of several that begin alike: which it is, the first of them, and whether it is on its own: a beam never. */
    uint32_t member, n_members, n_shared;
    struct req *first;
    bool forked;
    const struct beam *beam;
    struct req *kin;         /* whose blocks it may have: the first, also when it is on its own */
    uint32_t block[ENTRIES]; /* of kin: a name for each, as far as pos */
};
struct purse { /* a client's, in tokens */
    uint64_t spent, turn;
    uint32_t open;
};

struct ref {
    struct kv_config c;
    struct scheduler_limits l;
    struct req req[REF_MAX], *list[REF_MAX]; /* list: in order, those that are not gone */
    uint32_t n, n_list, n_out[MAX_LANES];
    struct ref_step out[MAX_LANES][2];
    uint64_t planned[MAX_LANES], done[MAX_LANES];
    struct purse purse[8];
    uint64_t turn;     /* of the last who got a slot, at least */
    uint32_t n_blocks; /* names given */
    bool closed;
    bool cramped;  /* somebody found no room, and somebody there is suspended */
    bool no_pages; /* somebody who waits found no pages */
};

/* ---- ref_sched.c */

/* Who comes first in the list. */
bool ref_before(const struct req *a, const struct req *b);
/* It does what the first of its kin does. */
bool ref_follows(const struct req *q);
/* The list, anew. */
void ref_sort(struct ref *t);
/* NULL: there is none. */
struct req *ref_find(struct ref *t, req_id id, uint32_t member);
/* Its slot is free. */
void ref_leave(struct req *q);
/* The same of one that is preempted, and its kin, once no step of theirs is out. */
void ref_leave_paused(struct req *q);
/* It and its kin are preempted. */
void ref_pause_all(struct req *q);
/* With all of a search, or alone; it leaves once no step of it is out. */
void ref_end(struct ref *t, struct req *q);
/* Whoever is late ends. */
void ref_expire(struct ref *t, nsec now);

/* ---- ref_sched_preempt.c */

/* Seats that are taken. */
uint32_t ref_slots(const struct ref *t);
/* Its adapter's pages are there, and nobody waits for them before it that has been passed over for too long. */
bool ref_may_take_pages(struct ref *t, const struct req *q);
/* There is a slot for it, and its kin; and it takes it, in that state. */
bool ref_may_sit(struct ref *t, const struct req *q);
void ref_sit(struct ref *t, struct req *q, enum state as);
/* Blocks of n positions. */
uint32_t ref_entries(const struct ref *t, uint32_t n);
/* It has a slot and blocks as far as the policy asks, or there is no room. */
bool ref_admit(struct ref *t, struct req *q);
/* Between two plans: who stands still makes room for whoever found none. */
bool ref_give_up_one(struct ref *t);
/* What it would do in a step of that lane: one of enum work, or 0. */
unsigned ref_wants(const struct ref *t, const struct req *q, unsigned lane, nsec now);
/* Of max_utilization: everybody in turn gets what its next step takes, of the last ones, who are preempted. Whether any
 * was. */
bool ref_make_room(struct ref *t, unsigned lane, nsec now);

#endif

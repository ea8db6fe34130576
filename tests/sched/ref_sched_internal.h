/* ref_sched_internal.h - shared by ref_sched.c, ref_sched_preempt.c and ref_sched_commit.c. */
#pragma once
#include "tests/sched/ref_sched.h"

enum state { WAIT, ENCODE, CONTEXT, GENERATE, LAST, PREEMPTED, GONE };

enum { ENTRIES = 400 };

struct req {
    req_id id, name; /* name: the id whose fake tokens it has */
    enum state state;
    float priority;
    uint32_t order, prompt, max_new, source, made, out, pos, len, layers, in_flight, pages, n_end,
        min_new, enc_at, client, n_draft;
    uint32_t drafts; /* in flight, counted as accepted */
    uint32_t done;   /* positions of finished steps */
    uint64_t fair_tag;
    unsigned lane; /* of its last step */
    uint64_t step;
    unsigned fork_lane; /* lane of the step in which it forked */
    uint64_t fork_step;
    token_id end_id[48];
    uint64_t lora;
    nsec deadline, arrived;
    bool slot, begun, wants_logprobs, encoded, suspended;
    uint32_t passed; /* requests that took adapter pages before it while it waited for pages */
    bool again;      /* preempted: the common prefix of its beams must be computed */
    /* Groups: index, size, common prefix. */
    uint32_t member, n_members, n_shared;
    struct req *first;
    bool forked;
    const struct beam *beam;
    struct req *kin;         /* the first member, also after the fork */
    uint32_t block[ENTRIES]; /* names of its blocks up to pos */
};
struct purse { /* fairness state of a client, in tokens */
    uint64_t spent, fair_tag;
    uint32_t open;
};

struct ref {
    struct kv_config c;
    struct scheduler_limits l;
    struct req req[REF_MAX], *list[REF_MAX]; /* list: in order, without ended requests */
    uint32_t n, n_list, n_out[MAX_LANES];
    struct ref_step out[MAX_LANES][2];
    uint64_t planned[MAX_LANES], done[MAX_LANES];
    struct purse purse[8];
    uint64_t fair_tag; /* not below the last admitted request */
    uint32_t n_blocks; /* names given */
    bool closed;
    bool cramped;  /* an admission failed, and a suspended request has blocks */
    bool no_pages; /* a waiting request found no pages */
};

/* ---- ref_sched.c */

/* List order. */
bool ref_before(const struct req *a, const struct req *b);
/* A member that has not forked. */
bool ref_follows(const struct req *q);
/* Sorts the list. */
void ref_sort(struct ref *t);
/* NULL: not found. */
struct req *ref_find(struct ref *t, req_id id, uint32_t member);
/* Frees its slot. */
void ref_leave(struct req *q);
/* Frees the slots of a preempted request and its group when none is in flight. */
void ref_leave_preempted(struct req *q);
/* Preempts it and its group. */
void ref_preempt_all(struct req *q);
/* Ends it, with its group if they are together; it leaves when it is not in flight. */
void ref_end(struct ref *t, struct req *q);
/* Ends requests past their deadline. */
void ref_expire(struct ref *t, nsec now);

/* ---- ref_sched_preempt.c */

/* Slots in use. */
uint32_t ref_slots(const struct ref *t);
/* Its adapter's pages are available, and no earlier request was overtaken too often. */
bool ref_may_take_pages(struct ref *t, const struct req *q);
/* True if slots for it and its group are free; ref_take_slot() takes them. */
bool ref_has_slot(struct ref *t, const struct req *q);
void ref_take_slot(struct ref *t, struct req *q, enum state as);
/* Blocks of n positions. */
uint32_t ref_entries(const struct ref *t, uint32_t n);
/* Reserves slot and blocks as the policy demands; false: they are not free. */
bool ref_admit(struct ref *t, struct req *q);
/* Between two plans: frees the slot of a suspended request for one that found none. */
bool ref_give_up_one(struct ref *t);
/* Its work in a step of that lane: an enum work, or 0. */
unsigned ref_wants(const struct ref *t, const struct req *q, unsigned lane, nsec now);
/* max_utilization: reserves the next step of each request in order, and preempts the last ones.
 * True: one was preempted. */
bool ref_reserve_steps(struct ref *t, unsigned lane, nsec now);

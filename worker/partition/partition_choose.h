/* partition_choose.h - prompts and answers together or apart, and on which partition: the
 * controller of split.mode auto.
 *
 * Asked before a step is launched, it takes the way that gets the most requests done among those
 * that keep the time from one token to the next within the target; where none does, the one with
 * the least such time. Rung 0 is one lane for everything on the whole device, as with split.mode
 * off, in steps of so many rows that every step has some of prompts and answers hardly ever read
 * the weights for themselves alone, or of fewer where the target asks for that; on other partitions
 * each phase has its part.
 *
 * A request is so many rows of prompts and so many tokens: what steps had of both in the last
 * seconds. (Of the last half minute they say that of a burst that is long over, and a way that is
 * best for that.) On a way that does more for answers than they need fewer generate at a time, and
 * prompts say how much gets done; on one that does less as many generate as are there, prompts run
 * out, and answers have the whole device for the rest.
 *
 * A way is kept for a while, and then left for one that is clearly better; the longer it was kept,
 * the less clearly. Pure: times come from step_time.h.
 *
 * Why not simply the least time for prompts: with a generous target that is nearly always partition
 * 0, and costs a tenth of the throughput where a division would do both (docs/split.md).
 */
#ifndef PARTITION_CHOOSE_H
#define PARTITION_CHOOSE_H

#include "worker/partition/step_time.h"
#include "worker/sched/scheduler.h"

/* What there is to do. */
struct partition_load {
    struct step_cost decode; /* a step of all that generate */
    uint32_t n_decode;       /* rows of it; 0: nobody generates */
    uint32_t n_there;        /* rows that it may have when all are that far; n_decode or more */
    struct step_cost row;    /* a prompt's row, as they come; weights: of a step with any */
    uint64_t n_tokens;       /* of prompts, that could be computed now; 0: none */
    double tokens;           /* of answers, to a row of prompts */
    double prompt;           /* rows of prompts that end in one step; 0: not known */
    double each;             /* rows of a prompt; 0: not known */
};
struct partition_mode {
    unsigned partition;
    uint32_t rows; /* of a step with prompts while somebody generates, at most */
};
struct partition_choose_limits {
    uint32_t min_tokens, max_tokens; /* of prompts in a step */
    nsec target;                     /* from one token to the next; 0: whatever it takes */
    uint32_t
        tile; /* products of more rows take as long as of the next multiple; 0: of any as they are */
};

struct split {
    struct step_time time;
    struct partition_choose_limits l;
    struct partition_mode now;
    uint32_t since;     /* askings since the way was taken */
    uint64_t n_changes; /* of the partition */

    /* What steps were, as they come and go. */
    struct step_costs costs;
    const struct kv_config *kv;
    struct partition_load load;
    struct partition_choose_lane {
        nsec busy, began; /* with steps that are over; when its oldest one that is out began */
        nsec others;      /* how long the others had been busy then */
        uint32_t n_out, n_prompts; /* of them with prompts */
        uint64_t done;
        struct step_dependency wait[2]; /* of steps that are out, by step % 2; step 0: none */
    } lane[MAX_LANES];
    struct {
        double rows, tokens;   /* of prompts, of answers: of late */
        double ends, prompts;  /* steps that ended prompts; prompts */
        struct step_cost work; /* of those rows */
        uint32_t last;         /* rows of the last step of answers */
    } flow;
    nsec at;   /* when a step was over the last time */
    bool news; /* a step is over since it was asked */
};

/* kv is kept. */
void partition_choose_init(struct split *s, const struct partition_choose_limits *l,
                           const struct partition_list *partition_list,
                           const struct step_costs *costs, const struct kv_config *kv,
                           double bandwidth, double peak);
/* A step was launched; the oldest of its lane is over. Rung 0 of a step: it had the whole device.
 * */
void partition_choose_launched(struct split *s, const struct batch *b, nsec now);
nsec partition_choose_retired(struct split *s, const struct batch *b,
                              nsec now); /* how long it took */
/* It goes on from that partition, wherever it was. */
void partition_choose_start(struct split *s, unsigned partition);
/* Before a plan: the way from now on. */
struct partition_mode partition_choose(struct split *s, const struct partition_list *partition_list,
                                       const struct scheduler *sched);
/* The best way for that load, whatever there was before. */
struct partition_mode partition_choose_best(const struct split *s,
                                            const struct partition_list *partition_list,
                                            const struct partition_load *load);
/* The way from now on, with that to do. */
struct partition_mode partition_choose_for(struct split *s,
                                           const struct partition_list *partition_list,
                                           const struct partition_load *load);

/* What is expected of a way, with a load of both: ns for a prompt's row, from one token to the
 * next, and rows of prompts a ns with all that follows of them. */
struct partition_choose_expect {
    double row, token, done;
    struct partition_mode way;
};
struct partition_choose_expect partition_choose_expect(const struct split *s, unsigned partition,
                                                       const struct partition_load *load);

#endif

/* partition_choose.h - the partition controller of split.mode auto: how the device is divided.
 *
 * The phases are prefill and decode. Before each plan the controller selects a mode: a partition,
 * and the size of steps with prefill. Among the modes whose inter-token time is within the target
 * it takes the one with the highest throughput; if there is none, the one with the lowest
 * inter-token time. On partition 0 one lane does both phases on the whole device, as with
 * split.mode off. Its steps (merged steps) are long enough that nearly all have prompt tokens,
 * because a step without them reads the weights for decode alone; they are shorter where the target
 * requires it. On other partitions each phase has its own lane and units.
 *
 * The load is the prompt and output tokens of the steps of the last 3 s. (A mean over 30 s would
 * still describe a burst that is over.) If decode is faster than prefill supplies sequences, fewer
 * sequences decode and prefill limits the throughput. If decode is slower, all sequences decode,
 * prefill runs out of prompts, and decode then has the whole device.
 *
 * A mode is kept for some steps, then replaced by one that is clearly better; the required
 * advantage falls with time. Pure: times come from step_time.h.
 */
#pragma once
#include "worker/partition/step_time.h"
#include "worker/sched/scheduler.h"

/* The load for which a mode is selected: what the sequences need in prefill and decode. */
struct partition_load {
    struct step_cost decode; /* a decode step of n_decode sequences */
    uint32_t n_decode;       /* decoding sequences */
    uint32_t n_there;        /* sequences that could decode together, at least n_decode */
    struct step_cost row;    /* mean cost of a prompt token, but row.weights is of a whole step */
    uint64_t n_tokens;       /* prompt tokens that could be computed now */
    double tokens;           /* output tokens generated per prompt token */
    double prompt;           /* prompt tokens per step that ends a prompt; 0: unknown */
    double each;             /* mean tokens of a prompt; 0: unknown */
};
struct partition_mode {
    unsigned partition;
    uint32_t rows; /* max tokens of a step with prefill while sequences decode */
};
struct partition_limits {
    uint32_t min_tokens, max_tokens; /* prompt tokens in a step */
    nsec target;                     /* inter-token time to stay within; 0: none */
    uint32_t tile; /* matrix products compute multiples of this number of tokens; 0: any */
};

struct split {
    struct step_time time;
    struct partition_limits l;
    struct partition_mode now;
    uint32_t since;     /* number of selections since the mode changed */
    uint64_t n_changes; /* changes of the partition */

    /* Observed from launched and retired steps. */
    struct step_costs costs;
    const struct kv_config *kv;
    struct partition_load load;
    struct partition_lane {
        nsec busy, began;          /* time of all retired steps; start of the oldest in flight */
        nsec others;               /* busy time of the other lanes at `began` */
        uint32_t n_out, n_prompts; /* steps in flight; those with prefill */
        uint64_t done;
        struct step_dependency wait[2]; /* last dependency of each step in flight, by step % 2 */
    } lane[MAX_LANES];
    struct {                   /* sums over recent steps, decaying exponentially */
        double rows, tokens;   /* prompt tokens, output tokens */
        double ends, prompts;  /* steps that ended a prompt; prompts that ended in them */
        struct step_cost work; /* cost of the prompt tokens */
        uint32_t last;         /* output tokens of the last step with decode */
    } flow;
    nsec at;   /* when a step was last retired */
    bool news; /* a step was retired since the last selection */
};

/* Starts s on partition 0; kv must outlive s. bandwidth, peak: bytes and FLOP/s of the device. */
void partition_choose_init(struct split *s, const struct partition_limits *l,
                           const struct partition_list *list, const struct step_costs *costs,
                           const struct kv_config *kv, double bandwidth, double peak);
/* Record that step b was launched, and that b, the oldest step of its lane, was retired.
 * b->partition 0 means that the step had the whole device. Retired returns the step's time. */
void partition_choose_launched(struct split *s, const struct batch *b, nsec now);
nsec partition_choose_retired(struct split *s, const struct batch *b, nsec now);
/* Selects this partition now, without comparing it with others. */
void partition_choose_start(struct split *s, unsigned partition);
/* Returns the mode for the following plans. */
struct partition_mode partition_choose(struct split *s, const struct partition_list *list,
                                       const struct scheduler *sched);
/* As partition_choose(), for this load instead of the observed one. */
struct partition_mode partition_choose_for(struct split *s, const struct partition_list *list,
                                           const struct partition_load *load);

/* The expected performance of a mode under a load with both phases. row: ns per prompt token;
 * token: inter-token time in ns; done: prompt tokens per ns, with their output tokens. */
struct partition_expect {
    double row, token, done;
    struct partition_mode way;
};
struct partition_expect partition_expect(const struct split *s, unsigned partition,
                                         const struct partition_load *load);
/* Returns the best mode for a load, without an advantage for the current mode. */
struct partition_expect partition_choose_best(const struct split *s,
                                              const struct partition_list *list,
                                              const struct partition_load *load);

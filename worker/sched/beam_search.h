/* beam_search.h - beam search of one request, as transformers' generate() does it: which hypotheses live on, which are done.
 *
 * Pure. A step is given, of each live beam, its best tokens with their log-probabilities; it says who goes on from
 * whom with which token, and keeps what has ended.
 *
 *     lists      slot 0: 7 -0.1, 9 -2.3, ...    slot 1: 4 -0.2, 7 -1.1, ...       n of each, best first
 *     together   (0, 7), (1, 4), (1, 7), ...    the n best of all; equals: the better beam's, then the list's order
 *     ended      those that an end token or the length ends, of the first n_beams: into done[], best first
 *     go on      the first n_beams that have not ended
 *
 * A beam stays in its slot as long as it goes on; whoever goes on from it as well takes the slot of one that
 * nobody goes on from. So parent[i] == i for most, and only a fork costs a copy.
 */
#ifndef SCHED_BEAM_SEARCH_H
#define SCHED_BEAM_SEARCH_H

#include "worker/sched/batch.h"

enum beam_early { BEAM_EARLY_FALSE, BEAM_EARLY_TRUE, BEAM_EARLY_NEVER };

struct beam_done {
    float score; /* divided by its length, as the penalty says */
    uint32_t n;  /* generated tokens */
    uint16_t reason;
    token_id *token; /* [n] */
};

/* What a step decided; from the first on, a search is that and nothing else. */
struct beam_move {
    token_id token;
    float score;
    uint8_t slot; /* of the beam that it goes on from */
    uint16_t reason;
};
struct beam_decision {
    struct beam_move next[MAX_BEAMS];  /* [n_beams] the best first */
    struct beam_move ended[MAX_BEAMS]; /* [n_ended] that were kept if they were good enough */
    uint32_t n_ended;
};

struct beam_list { /* of one slot */
    const struct batch_top *top;
    uint32_t n; /* those with id -1 do not count */
};

struct beam {
    /* Set before beam_start(). */
    uint32_t n_beams;
    uint32_t max_new, min_new; /* before min_new tokens none of end_id ends it */
    uint32_t n_eos, n_end;
    const token_id *end_id; /* [n_end], the first n_eos end-of-sequence */
    enum beam_early early;
    float length_penalty;
    uint32_t first; /* position of generated token 0 */
    token_id
        *line[MAX_BEAMS]; /* of each slot: [first + max_new], the first ones as they were given */
    float *total[MAX_BEAMS];   /* [max_new]: its score with each of its generated tokens */
    token_id *room[MAX_BEAMS]; /* [max_new] each, for what has ended */

    uint32_t n_new, n_settled; /* tokens of live beams; those that every hypothesis begins with */
    float score[MAX_BEAMS];    /* of the slot: sum of log-probabilities */
    uint8_t order[MAX_BEAMS];  /* slots, the best first */
    uint8_t parent[MAX_BEAMS]; /* of the last step: the slot that this one goes on from */
    struct beam_decision last; /* that it was */
    struct beam_done done[MAX_BEAMS];
    uint32_t n_done;
    bool over;
};

/* How many tokens of each beam a step wants to see. */
uint32_t beam_width(uint32_t n_beams, uint32_t n_end);
/* n_new tokens were generated before, alike in all lines, and have that score. */
void beam_start(struct beam *b, uint32_t n_new, float score);
/* list: by slot. Lines are one token longer then, unless it is over. */
void beam_step(struct beam *b, const struct beam_list *list);
/* A step of a search that another process began, and that was not its last. -EBADMSG: it cannot have been one. */
int beam_redo(struct beam *b, const struct beam_decision *t) MUST_USE;
/* The i-th best, i < n_beams, once it is over. */
struct beam_done beam_result(const struct beam *b, uint32_t i);

#endif

/* beam_search.h - beam search of one request, with the results of transformers' generate().
 *
 * Pure. Input of a step: the best tokens of each live beam, with log-probabilities. Output: for
 * each slot the beam it continues and the token, and the hypotheses that have ended.
 *
 *     lists      slot 0: 7 -0.1, 9 -2.3, ...   slot 1: 4 -0.2, 7 -1.1, ...   n of each, best first
 *     merged     (0, 7), (1, 4), (1, 7), ...   the n best; ties: the better beam, then list order
 *     ended      of the first n_beams, those with an end token or at the length limit: done[]
 *     continued  the first n_beams that have not ended
 *
 * The best continuation of a beam stays in the beam's slot. Further continuations take slots of
 * beams that have none. So parent[i] == i for most slots, and only a fork costs a copy.
 */
#pragma once

#include "worker/sched/batch.h"

enum beam_early { BEAM_EARLY_FALSE, BEAM_EARLY_TRUE, BEAM_EARLY_NEVER };

struct beam_done {
    float score; /* log-probability after the length penalty */
    uint32_t n;  /* generated tokens */
    uint16_t reason;
    token_id *token; /* [n] */
};

/* The decision of one step. The decisions determine the whole search: beam_redo() repeats them. */
struct beam_move {
    token_id token;
    float score;
    uint8_t slot; /* of the beam that is continued */
    uint16_t reason;
};
struct beam_decision {
    struct beam_move next[MAX_BEAMS];  /* [n_beams] live beams, best first */
    struct beam_move ended[MAX_BEAMS]; /* [n_ended] candidates for done[] */
    uint32_t n_ended;
};

struct beam_list { /* the best tokens of one slot */
    const struct batch_top *top;
    uint32_t n; /* entries with id -1 are ignored */
};

struct beam {
    /* Set before beam_start(). */
    uint32_t n_beams;
    uint32_t max_new, min_new; /* end_id[] is ignored before min_new tokens */
    uint32_t n_eos, n_end;
    const token_id *end_id; /* [n_end], the first n_eos end-of-sequence */
    enum beam_early early;
    float length_penalty;
    uint32_t first;                  /* position of generated token 0 */
    token_id *line[MAX_BEAMS];       /* by slot: [first + max_new], the prompt first */
    float *total[MAX_BEAMS];         /* by slot: [max_new], the score after each generated token */
    token_id *done_token[MAX_BEAMS]; /* [max_new] each: storage of done[].token */

    uint32_t n_new, n_common;  /* tokens of live beams; common prefix of all hypotheses */
    float score[MAX_BEAMS];    /* by slot: sum of log-probabilities */
    uint8_t order[MAX_BEAMS];  /* slots, best first */
    uint8_t parent[MAX_BEAMS]; /* by slot: the slot that the last step continued here */
    struct beam_decision last; /* the last step */
    struct beam_done done[MAX_BEAMS];
    uint32_t n_done;
    bool over;
};

/* Candidates per beam that a step needs. */
uint32_t beam_width(uint32_t n_beams, uint32_t n_end);
/* Starts after n_new generated tokens that are equal in all lines and have that score. */
void beam_start(struct beam *b, uint32_t n_new, float score);
/* list: by slot. Appends a token to each line, or sets b->over. */
void beam_step(struct beam *b, const struct beam_list *list);
/* Repeats a step that another process decided and that did not end the search. -EBADMSG: no step of
 * this search can have decided that. */
int beam_redo(struct beam *b, const struct beam_decision *t) MUST_USE;
/* The i-th best hypothesis, i < n_beams. The search must be over. */
struct beam_done beam_result(const struct beam *b, uint32_t i);

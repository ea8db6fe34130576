/* beam_search.h - beam search of one request, with the results of transformers' generate().
 *
 * Pure. Input of a step: for each live beam its most likely next tokens with log-probabilities.
 * Output: for each slot the beam that continues in it and the beam's new token, and the ended
 * hypotheses.
 *
 *     lists      slot 0: 7 -0.1, 9 -2.3, ...   slot 1: 4 -0.2, 7 -1.1, ...   n of each, best first
 *     merged     (0, 7), (1, 4), (1, 7), ...   the n best; ties: the better beam, then list order
 *     ended      of the first n_beams, those with an end token or at the length limit: into done[]
 *     continued  the first n_beams that have not ended
 *
 * The best continuation of a beam stays in the beam's slot. Further continuations of the beam take
 * the slots of beams that are not continued. So parent[i] == i for most slots, and only a fork
 * costs a copy.
 */
#pragma once
#include "worker/sched/batch.h"

enum beam_early { BEAM_EARLY_FALSE, BEAM_EARLY_TRUE, BEAM_EARLY_NEVER };

struct beam_done {
    float score; /* log-probability after the length penalty */
    uint32_t n;  /* generated tokens */
    uint16_t reason;
    token_id *token; /* [n] */
    /* [n] log-probability of the tokens up to each one; above -1e8, unless the search had too few
     * continuations to choose from */
    float *total;
    /* [n] slot from whose logit row each token was taken (beam_indices of transformers), or
     * BEAM_NO_ROW */
    uint8_t *row_slot;
};
enum { BEAM_NO_ROW = 0xff }; /* a token with which the search started: beam_start() */

/* A continuation of a beam by one token. A step's decision is the n_beams continuations that live
 * on and those that end. The decisions determine the whole search: beam_redo() repeats them. */
struct beam_move {
    token_id token;
    float score;
    uint8_t slot; /* slot of the beam that gets the token */
    uint16_t reason;
};
struct beam_decision {
    struct beam_move next[MAX_BEAMS];  /* [n_beams] live beams, best first */
    struct beam_move ended[MAX_BEAMS]; /* [n_ended] continuations that may enter done[] */
    uint32_t n_ended;
};

struct beam_list { /* the most likely next tokens of the beam in one slot */
    const struct batch_top *top;
    uint32_t n; /* entries with id -1 are ignored */
};

struct beam {
    /* Set before beam_start(). */
    uint32_t n_beams;
    uint32_t max_new, min_new; /* end_id[] is ignored before min_new tokens */
    uint32_t n_eos, n_end;
    const token_id *end_id; /* [n_end]: n_eos end-of-sequence ids, then stop ids */
    /* Returns true if token t, the next of the beam in this slot, completes a stop string: the beam
     * then ends as with a stop id. NULL: there are no stop strings. */
    bool (*stops)(void *arg, const struct beam *b, uint32_t slot, token_id t);
    void *stops_arg;
    enum beam_early early;
    float length_penalty;
    uint32_t first;                    /* position of generated token 0 */
    token_id *line[MAX_BEAMS];         /* by slot: [first + max_new] prompt, then output */
    float *total[MAX_BEAMS];           /* by slot: [max_new] score after each output token */
    uint8_t *row_slot[MAX_BEAMS];      /* by slot: [max_new] see beam_done */
    token_id *done_token[MAX_BEAMS];   /* [max_new] storage of done[].token */
    float *done_total[MAX_BEAMS];      /* [max_new] storage of done[].total */
    uint8_t *done_row_slot[MAX_BEAMS]; /* [max_new] storage of done[].row_slot */

    uint32_t n_new, n_common;  /* generated tokens of live beams; their common prefix */
    float score[MAX_BEAMS];    /* by slot: sum of log-probabilities */
    uint8_t order[MAX_BEAMS];  /* slots of live beams, best first */
    uint8_t parent[MAX_BEAMS]; /* by slot: slot of the beam that continues here */
    struct beam_decision last; /* decision of the last step */
    struct beam_done done[MAX_BEAMS];
    uint32_t n_done;
    bool all_ended; /* of beam_decide(): no continuation lives on */
    bool over;
};

/* Returns how many of the most likely tokens of each beam a step needs. */
uint32_t beam_width(uint32_t n_beams, uint32_t n_end);
/* Starts the search after n_new generated tokens, equal in all beams, which have this score. */
void beam_start(struct beam *b, uint32_t n_new, float score);
/* Decides one step, into b->last; list: by slot. The lines of the beams do not change. */
void beam_decide(struct beam *b, const struct beam_list *list);
/* Applies the decision: appends a token to each live beam, or sets b->over. */
void beam_advance(struct beam *b);
/* Repeats a step that another process decided and that did not end the search. -EBADMSG: *t is not
 * a possible decision of this search. */
int beam_redo(struct beam *b, const struct beam_decision *t) MUST_USE;
/* The i-th best hypothesis, i < n_beams. The search must be over. */
struct beam_done beam_result(const struct beam *b, uint32_t i);

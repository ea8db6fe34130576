/* running_request.h - one request under way: what its outputs have so far, and how they are printed. */
#ifndef CTL_RUNNING_REQUEST_H
#define CTL_RUNNING_REQUEST_H

#include "ctl/ctl.h"

struct running_output {
    int32_t *ids;
    float *logprob;
    struct lagan_top_logprob *top; /* n_top of each id */
    size_t n_ids, max_ids, n_logprob;
    uint32_t base; /* position of the first: behind those of the key `generated_ids` */
    uint32_t n_top;
    char *text;
    size_t n_text, max_text;
    bool over;
};

struct running_request {
    uint64_t id;             /* of lagan_submit(); 0: it never went out */
    size_t request;          /* number of the request, from 0 */
    char *tag;               /* JSON text, or NULL */
    nsec start, first, last; /* first, last: 0 until there are tokens */
    nsec pause;              /* the longest between two batches of tokens */
    size_t n_tokens;
    bool failed;
    bool want_logprobs, want_prompt_logprobs;
    bool several;           /* outputs */
    struct running_tensor { /* as far as it has come */
        float *value;
        uint64_t n;
        uint32_t cols;
    } tensor[LAGAN_N_TENSORS];    /* by enum lagan_tensor, less 1 */
    struct running_output prompt; /* ids: as given, for the printed log-probabilities */
    struct running_output *output;
    uint32_t n_outputs;
};

struct running_request *running_request_new(size_t request);
void running_request_free(struct running_request *j);
CLEAN_FUNC(struct running_request, running_request_free)

/* Take a TOKENS, PROMPT or TENSOR event. -EPROTO: tokens skip or repeat; -EBADMSG: an impossible output. */
int running_request_take(struct running_request *j, const struct lagan_event *ev) MUST_USE;
struct running_output *running_request_output(
    struct running_request *j, uint32_t output); /* made when new; NULL: impossible */

/* The lines of --json. ev: the OUTPUT or ERROR event, or NULL fields of it. */
void running_request_print_final(const struct running_request *j, const struct lagan_event *ev,
                                 FILE *out);
void running_request_print_chunk(const struct running_request *j, const struct lagan_event *ev,
                                 FILE *out);

#endif

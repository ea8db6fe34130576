/* running_request.h - collects the outputs of one open request of laganctl and prints them. */
#pragma once
#include "ctl/ctl.h"

struct running_output {
    int32_t *ids;
    float *logprob;
    struct lagan_top_logprob *top; /* n_top alternatives for each id */
    size_t n_ids, max_ids, n_logprob;
    uint32_t base; /* index of the first token: number of generated_ids */
    uint32_t n_top;
    char *text;
    size_t n_text, max_text;
    bool ended;
};

struct running_request {
    uint64_t id;             /* of lagan_submit(); 0: not submitted */
    size_t request;          /* number of the request in this command, from 0 */
    char *tag;               /* value of the key tag as JSON text; NULL: none */
    nsec start, first, last; /* times of SUBMIT, first and last tokens; 0: not yet */
    nsec max_gap;            /* longest time between two TOKENS events */
    size_t n_tokens;
    bool failed;
    bool want_logprobs, want_prompt_logprobs;
    bool several_outputs;   /* more than 1 output */
    struct running_tensor { /* the received part of a tensor */
        float *value;
        uint64_t n;
        uint32_t cols;
    } tensor[LAGAN_N_TENSORS];    /* index: enum lagan_tensor - 1 */
    struct running_output prompt; /* ids: as given, to print log-probabilities */
    struct running_output *output;
    uint32_t n_outputs;
};

struct running_request *running_request_new(size_t request);
void running_request_free(struct running_request *j);
CLEAN_FUNC(struct running_request, running_request_free)

/* Applies a TOKENS, PROMPT or TENSOR event. -EPROTO: a token index is skipped or repeated.
 * -EBADMSG: invalid output index. */
int running_request_take(struct running_request *j, const struct lagan_event *ev) MUST_USE;
/* Returns the output with this index, creates it if it is new; NULL: the index is invalid. */
struct running_output *running_request_output(struct running_request *j, uint32_t output);

/* Print the lines of --json. ev: the OUTPUT or ERROR event. */
void running_request_print_final(const struct running_request *j, const struct lagan_event *ev,
                                 FILE *out);
void running_request_print_chunk(const struct running_request *j, const struct lagan_event *ev,
                                 FILE *out);

/* job.h - one request under way: what its outputs have so far, and how they are printed. */
#ifndef CTL_JOB_H
#define CTL_JOB_H

#include "ctl/ctl.h"

struct job_output {
    int32_t *ids;
    float *logprob;
    struct lagan_top *top; /* n_top of each id */
    size_t n_ids, max_ids, n_logprob;
    uint32_t base; /* position of the first: behind those of the key `done` */
    uint32_t n_top;
    char *text;
    size_t n_text, max_text;
    bool over;
};

struct job {
    uint64_t id;             /* of lagan_submit(); 0: it never went out */
    size_t request;          /* number of the request, from 0 */
    char *tag;               /* JSON text, or NULL */
    nsec start, first, last; /* first, last: 0 until there are tokens */
    nsec pause;              /* the longest between two batches of tokens */
    size_t n_tokens;
    bool failed;
    bool want_logprobs, want_prompt_logprobs;
    bool several;       /* outputs */
    struct job_tensor { /* as far as it has come */
        float *value;
        uint64_t n;
        uint32_t cols;
    } tensor[LAGAN_N_TENSORS]; /* by enum lagan_tensor, less 1 */
    struct job_output prompt;  /* ids: as given, for the printed log-probabilities */
    struct job_output *output;
    uint32_t n_outputs;
};

struct job *job_new(size_t request);
void job_free(struct job *j);
CLEAN_FUNC(struct job, job_free)

/* Take a TOKENS, PROMPT or TENSOR event. -EPROTO: tokens skip or repeat; -EBADMSG: an impossible output. */
int job_take(struct job *j, const struct lagan_event *ev) MUST_USE;
struct job_output *job_output(struct job *j, uint32_t output); /* made when new; NULL: impossible */

/* The lines of --json. ev: the OUTPUT or ERROR event, or NULL fields of it. */
void job_print_final(const struct job *j, const struct lagan_event *ev, FILE *out);
void job_print_chunk(const struct job *j, const struct lagan_event *ev, FILE *out);

#endif

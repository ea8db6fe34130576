/* random_mix_output.c - see random_mix.h. */
#include "base/base.h"
#include "tests/e2e/random_mix.h"
#include "tests/test.h"

#include <stdio.h>

static uint64_t
mix(uint64_t h, const void *bytes, size_t n)
{
    const uint8_t *b = bytes;

    for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * UINT64_C(1099511628211);
    return h;
}

void
mix_take(struct ask *a, const struct lagan_event *ev)
{
    struct result *g = &a->got;
    struct output *o = &g->output[ev->output];

    assert_true(ev->output < OUTPUTS);
    if (ev->kind == LAGAN_EVENT_PROMPT) {
        assert_int_equal(ev->first, g->n_prompt);
        g->n_prompt += ev->n_ids;
        g->prompt = mix(g->prompt, ev->logprob, ev->n_ids * sizeof *ev->logprob);
        g->prompt_top = mix(g->prompt_top, ev->top,
                            (size_t)ev->n_ids * ev->n_top * sizeof *ev->top);
    } else if (ev->kind == LAGAN_EVENT_TOKENS) {
        assert_int_equal(ev->first, o->n);
        assert_true(o->n + ev->n_ids <= MOST_NEW && ev->n_top <= TOPS);
        memcpy(o->id + o->n, ev->ids, ev->n_ids * sizeof *ev->ids);
        if (ev->logprob) memcpy(o->logprob + o->n, ev->logprob, ev->n_ids * sizeof(uint32_t));
        for (uint32_t i = 0; ev->top && i < ev->n_ids; i++)
            memcpy(o->top[o->n + i], ev->top + i * ev->n_top, ev->n_top * sizeof *ev->top);
        o->n += ev->n_ids;
        o->text = mix(o->text, ev->text, ev->text_len);
        o->n_text += (uint32_t)ev->text_len;
    } else if (ev->kind == LAGAN_EVENT_OUTPUT) {
        g->cached += ev->cached;
        g->adopted += ev->adopted;
        o->reason = ev->reason;
        memcpy(&o->score, &ev->score, sizeof o->score);
    } else if (ev->kind == LAGAN_EVENT_TENSOR) {
        uint32_t k = strcmp(ev->tensor_name, "logits") == 0;

        assert_int_equal(ev->first_value, g->n_values[k]);
        g->n_values[k] += ev->n_values;
        g->tensor[k] = mix(g->tensor[k], ev->values, ev->n_values * sizeof *ev->values);
    } else if (ev->kind == LAGAN_EVENT_ERROR) {
        g->error = ev->reason;
        snprintf(g->why, sizeof g->why, "%s: %s", ev->reason_name, ev->message);
        g->over = true;
    } else if (ev->kind == LAGAN_EVENT_DONE) {
        g->over = true;
    }
}

static bool
begins_alike(const struct output *want, const struct output *got, uint32_t n)
{
    return !memcmp(want->id, got->id, n * sizeof *got->id) &&
           !memcmp(want->logprob, got->logprob, n * sizeof *got->logprob) &&
           !memcmp(want->top, got->top, n * sizeof *got->top);
}

const char *
mix_difference(const struct ask *a)
{
    const struct result *w = &a->alone, *g = &a->got;
    static char what[500];
    bool cut = g->error == LAGAN_E_CANCELLED || g->error == LAGAN_E_DEADLINE;

    if (g->error == LAGAN_E_CANCELLED && !a->cancelled) return "cancelled without a cancel";
    if (g->error == LAGAN_E_DEADLINE && !a->may_end) return "a deadline it has not";
    if (!cut && g->error != w->error) {
        snprintf(what, sizeof what, "error %u (%s), alone %u (%s)", g->error, g->why, w->error,
                 w->why);
        return what;
    }
    for (uint32_t k = 0; k < OUTPUTS; k++) {
        const struct output *x = &w->output[k], *y = &g->output[k];

        for (uint32_t i = 0; i < MIN(x->n, y->n); i++) {
            if (begins_alike(x, y, i + 1)) continue;
            snprintf(what, sizeof what, "output %u token %u of %u: %d, %08x, alone %d, %08x", k, i,
                     y->n, y->id[i], y->logprob[i], x->id[i], x->logprob[i]);
            return what;
        }
        if (y->n > x->n || (!cut && y->n != x->n)) {
            snprintf(what, sizeof what, "output %u has %u tokens, alone %u", k, y->n, x->n);
            return what;
        }
        if (cut) continue;
        if (x->reason != y->reason) return "another reason";
        if (a->n_done > 0) continue;
        if (x->text != y->text || x->n_text != y->n_text) return "another text";
        if (x->score != y->score && !a->resubmitted) {
            snprintf(what, sizeof what, "output %u score %08x, alone %08x", k, y->score, x->score);
            return what;
        }
    }
    if (cut) return NULL;
    if (w->n_prompt != g->n_prompt) return "fewer prompt_logprobs";
    if (w->prompt != g->prompt) return "another prompt_logprobs";
    if (w->prompt_top != g->prompt_top) return "other tops of prompt_logprobs";
    for (uint32_t k = 0; k <= LAGAN_N_TENSORS; k++)
        if (w->n_values[k] != g->n_values[k] || w->tensor[k] != g->tensor[k])
            return "another tensor";
    return NULL;
}

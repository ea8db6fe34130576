/* script_request.c - see script_request.h. */
#include "tests/e2e/script_request.h"

#include "base/base.h"

#include <stdio.h>

static void
add_prompt(struct script_request *r, const struct lagan_event *ev)
{
    for (uint32_t i = 0; i < ev->n_ids; i++) {
        size_t used = strlen(r->prompt_ids);

        if (ev->ids)
            snprintf(r->prompt_ids + used, sizeof r->prompt_ids - used, "%s%d", used ? " " : "",
                     (int)ev->ids[i]);
        if (ev->first + i) r->prompt_logprob += (double)ev->logprob[i];
    }
}

static bool
add_tokens(struct script_request *r, const struct lagan_event *ev, char *error, size_t n)
{
    size_t n_text = strlen(r->text);

    r->n_tokens += ev->n_ids;
    if (ev->output) return true;
    if (ev->first != r->n) {
        snprintf(error, n, "expected token %u next, got token %u", r->n, ev->first);
        return false;
    }
    if (r->n + ev->n_ids > SCRIPT_TOKENS || n_text + ev->text_len >= sizeof r->text) {
        snprintf(error, n, "more than %d tokens or %zu bytes of text", SCRIPT_TOKENS,
                 sizeof r->text);
        return false;
    }
    memcpy(r->ids + r->n, ev->ids, ev->n_ids * sizeof *ev->ids);
    if (ev->logprob) memcpy(r->logprob + r->n, ev->logprob, ev->n_ids * sizeof *ev->logprob);
    if (ev->text_len) memcpy(r->text + n_text, ev->text, ev->text_len);
    r->text[n_text + ev->text_len] = 0;
    r->n += ev->n_ids;
    return true;
}

bool
script_request_take(struct script_request *r, const struct lagan_event *ev, char *error, size_t n)
{
    if (ev->kind == LAGAN_EVENT_PROMPT) add_prompt(r, ev);
    if (ev->kind == LAGAN_EVENT_TOKENS) return add_tokens(r, ev, error, n);
    if (ev->kind == LAGAN_EVENT_OUTPUT || ev->kind == LAGAN_EVENT_ERROR) {
        r->end = *ev;
        snprintf(r->finish, sizeof r->finish, "%s", ev->reason_name);
        snprintf(r->stop, sizeof r->stop, "%.*s", (int)ev->stop_len, ev->stop ? ev->stop : "");
    }
    if (ev->kind == LAGAN_EVENT_ERROR)
        snprintf(r->message, sizeof r->message, "%s", ev->message ? ev->message : "");
    r->ended |= ev->kind == LAGAN_EVENT_DONE || ev->kind == LAGAN_EVENT_ERROR;
    return true;
}

static void
output_text(const struct script_request *r, char *value, size_t n)
{
    size_t used = (size_t)snprintf(value, n, "%s: %s: ", r->finish, r->text);

    for (uint32_t i = 0; i < r->n && used < n; i++) {
        uint32_t bits;

        memcpy(&bits, &r->logprob[i], sizeof bits);
        used += (size_t)snprintf(value + used, n - used, "%d/%08x ", (int)r->ids[i], bits);
    }
}

bool
script_request_field(const struct script_request *r, const char *field, char *value, size_t n)
{
    const struct {
        const char *name, *text;
        double number;
    } fields[] = {
        { "finish", r->finish, 0 },
        { "message", r->message, 0 },
        { "text", r->text, 0 },
        { "prompt_ids", r->prompt_ids, 0 },
        { "stop", r->stop, 0 },
        { "stop_id", NULL, r->end.stop_id },
        { "accepted_at", NULL, (double)r->end.accepted_at },
        { "n_prompt_tokens", NULL, r->end.n_prompt_tokens },
        { "max_len", NULL, r->end.max_len },
        { "n_tokens", NULL, r->n_tokens },
        { "prompt_logprob", NULL, r->prompt_logprob },
        { "cached", NULL, r->end.cached },
        { "recomputed", NULL, r->end.recomputed },
        { "resumed", NULL, r->end.resumed },
        { "adopted", NULL, r->end.adopted },
        { "score", NULL, (double)r->end.score },
        { "seed", NULL, (double)r->end.seed },
    };

    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        if (strcmp(field, fields[i].name)) continue;
        if (fields[i].text)
            snprintf(value, n, "%s", fields[i].text);
        else
            snprintf(value, n, "%.17g", fields[i].number);
        return true;
    }
    if (strcmp(field, "output")) return false;
    output_text(r, value, n);
    return true;
}

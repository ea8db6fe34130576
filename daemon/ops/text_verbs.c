/* text_verbs.c - verbs that need the tokenizer of a model, which a worker has: those that convert
 * between texts, token ids and conversations. */
#include "daemon/config/options.h"
#include "daemon/ops/ask.h"
#include "daemon/request/admission.h"
#include "daemon/request/worker_calls.h"
#include "daemon/supervise/worker.h"
#include "ipc/records.h"

/* Returns a READY worker that has the tokenizer of model args.model. NULL: an ERROR was sent. */
static struct worker *
reader(struct ask *a)
{
    struct daemon *d = a->d;
    struct msg_span model = { 0 };
    bool named = a->args && msg_str(a->args, "model", &model) == 0, known = !named;
    uint32_t n_models = config_n_served(d->config, NULL);

    if (!named && n_models > 1) { /* no default: another model's ids would look valid */
        REFUSE(a, LAGAN_E_INVALID_REQUEST, MODEL_MISSING, n_models);
        return NULL;
    }
    for (uint32_t i = 0; i < d->n_workers; i++) {
        struct worker *w = d->worker[i];

        if (named && !ask_is(&model, d->config->model[worker_info(w)->model].keys.name)) continue;
        if (worker_info(w)->retired) continue;
        known = true;
        if (worker_open(w)) return w;
    }
    if (!known) {
        REFUSE(a, LAGAN_E_MODEL_NOT_FOUND, "lagand does not serve a model named \"%.*s\"",
               (int)MIN(model.n, 100u), model.p);
    } else {
        REFUSE(a, LAGAN_E_WORKER_LOST,
               "no worker is ready for the model of this command; `laganctl workers list` prints "
               "states");
    }
    return NULL;
}

/* Sends text or ids to a worker. flag: name of the bool of args that is TEXT_FLAG; NULL: text is a
 * conversation. */
static void
ask_text(struct ask *a, uint8_t op, const char *flag, const struct msg_ids *ids,
         const struct msg_span *text)
{
    struct worker *w = reader(a);
    bool set = false;

    if (!w) return;
    if (flag) msg_bool(a->args, flag, &set);
    worker_calls_text(a->d, a->c, a->rid, w, op,
                      !flag ? TEXT_CHAT
                      : set ? TEXT_FLAG
                            : 0,
                      ids, text);
}

/* Sends a conversation to a worker: TEXT_TOKENIZE or TEXT_RENDER. */
static void
ask_messages(struct ask *a, uint8_t op, const struct msg_span *messages)
{
    struct msg_ids none = { NULL, 0 };
    char *text = malloc(ADMISSION_DAY + messages->n);

    if (!text) {
        REFUSE(a, LAGAN_E_OUT_OF_MEMORY, "lagand has no memory for the messages");
        return;
    }
    admission_day(text);
    memcpy(text + ADMISSION_DAY, messages->p, messages->n);
    ask_text(a, op, NULL, &none, &(struct msg_span){ text, ADMISSION_DAY + messages->n });
    free(text);
}

void
cmd_tokenize(struct ask *a)
{
    struct msg_ids none = { NULL, 0 };
    struct msg_span text = { 0 };

    if (a->args && msg_str(a->args, "messages", &text) == 0 && msg_utf8(text.p, text.n)) {
        ask_messages(a, TEXT_TOKENIZE, &text);
        return;
    }
    if (!a->args || msg_str(a->args, "text", &text) < 0 || !msg_utf8(text.p, text.n)) {
        REFUSE(a, LAGAN_E_INVALID_REQUEST, "tokenize: give `text` or `messages`, in valid UTF-8");
        return;
    }
    ask_text(a, TEXT_TOKENIZE, "bare", &none, &text);
}

void
cmd_detokenize(struct ask *a)
{
    struct msg_span none = { 0 };
    struct msg_ids ids;
    struct err e = { .text = "ids are missing" };

    if (!a->args || msg_ids(a->args, "ids", &ids, &e) < 0) {
        REFUSE(a, LAGAN_E_INVALID_REQUEST, "detokenize: %s", e.text);
        return;
    }
    ask_text(a, TEXT_DETOKENIZE, "keep_special", &ids, &none);
}

void
cmd_token_bytes(struct ask *a)
{
    struct msg_span none = { 0 };
    struct msg_ids ids;
    struct err e = { .text = "ids are missing" };

    if (!a->args || msg_ids(a->args, "ids", &ids, &e) < 0) {
        REFUSE(a, LAGAN_E_INVALID_REQUEST, "%s: %s", a->verb, e.text);
    } else if (ids.n > LAGAN_MAX_CALL_IDS) {
        REFUSE(a, LAGAN_E_TOO_LONG, "%s: ids has %u entries; the limit of one call is %d", a->verb,
               ids.n, LAGAN_MAX_CALL_IDS);
    } else {
        ask_text(a, TEXT_ID_BYTES, "", &ids, &none);
    }
}

void
cmd_render(struct ask *a)
{
    struct msg_span text = { 0 };

    if (a->args && msg_str(a->args, "messages", &text) == 0 && msg_utf8(text.p, text.n))
        ask_messages(a, TEXT_RENDER, &text);
    else
        REFUSE(a, LAGAN_E_INVALID_REQUEST, "render: give `messages`, in valid UTF-8");
}

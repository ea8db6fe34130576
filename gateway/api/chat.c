/* chat.c - POST /v1/chat/completions. */
#include "gateway/api/api_internal.h"

/* Reads the fields and makes the request of lagand; the messages are still to be read. */
static int
begin(struct exchange *e, struct fault *f)
{
    uint32_t n;

    TRY(model_select(e, f));
    if (!e->model.chat)
        return fault_set(f, API_E_UNSUPPORTED, "messages",
                         "the model %.80s has no chat template; use /v1/completions",
                         e->model.name);
    TRY(sampling_read(e, &n, f));
    exchange_new_id(e, "chatcmpl-");
    TRY(exchange_prompts(e, 1, n));
    return sampling_request(e, e->prompt, f);
}

int
chat_run(struct exchange *e, struct fault *f)
{
    int r;

    if (!e->n_prompts) TRY(begin(e, f));
    r = messages_read(e, f);
    if (r) return r;
    TRY(set_result(lagan_set_str(e->prompt->request, "messages", e->messages.p, e->messages.n),
                   "messages", f));
    return prepare(e, f);
}

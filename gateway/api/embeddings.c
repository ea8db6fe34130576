/* embeddings.c - POST /v1/embeddings: the mean of the encoder's output, with length 1. */
#include "gateway/api/api_internal.h"

#include <math.h>

int
embeddings_run(struct exchange *e, struct fault *f)
{
    const struct text_or_ids *inputs;
    const struct value *format = &e->body->v[F_encoding_format];
    uint32_t n;
    int r;

    if (!e->model.name[0]) TRY(model_select(e, f));
    if (!e->model.encoder_decoder)
        return fault_set(
            f, API_E_UNSUPPORTED, "model",
            "the model %.80s has no encoder; embeddings are served for encoder-decoder "
            "models",
            e->model.name);
    if (format->given) {
        e->base64 = format->raw.n == 8 && memcmp(format->raw.p, "\"base64\"", 8) == 0;
        if (!e->base64 && (format->raw.n != 7 || memcmp(format->raw.p, "\"float\"", 7) != 0))
            return fault_set(f, API_E_INVALID_VALUE, "encoding_format",
                             "encoding_format must be float or base64");
    }
    r = prompts_read(e, F_input, &inputs, &n, f);
    if (r) return r;
    TRY(exchange_prompts(e, n, 1));
    e->hide_output = true;
    for (uint32_t i = 0; i < n; i++) {
        struct lagan_request *to = e->prompt[i].request;
        const char *id = http_request_id(e->x);

        TRY(set_result(lagan_set_str(to, "model", e->model.name, strlen(e->model.name)), "model",
                       f));
        TRY(set_result(inputs[i].text.p
                           ? lagan_set_str(to, "text", inputs[i].text.p, inputs[i].text.n)
                           : lagan_set_ids(to, "ids", inputs[i].ids, inputs[i].n_ids),
                       "input", f));
        TRY(set_result(lagan_set_int(to, "max_tokens", 1), NULL, f));
        TRY(set_result(lagan_set_bool(to, "return_encoder_output", 1), NULL, f));
        TRY(set_result(lagan_set_int(to, "disconnect_timeout_ms", API_DISCONNECT_MS), NULL, f));
        TRY(set_result(lagan_set_str(to, "request_id", id, strlen(id)), NULL, f));
    }
    return prepare(e, f);
}

void
embeddings_tensor(struct exchange *e, struct prompt *p, const struct lagan_event *ev)
{
    size_t bytes = ev->cols * sizeof(double);
    double *sum;

    (void)e;
    if (!p->values.n && out_space(&p->values, bytes)) {
        memset(p->values.p, 0, bytes);
        p->values.n = bytes;
    }
    if (p->values.n != bytes) return; /* no memory */
    sum = (double *)(void *)p->values.p;
    for (size_t i = 0; i < ev->n_values; i++)
        sum[(ev->first_value + i) % ev->cols] += (double)ev->values[i];
    p->n_rows += (uint32_t)(ev->n_values / ev->cols);
}

/* Writes p[n] in base64. */
static void
put_base64(struct out *o, const unsigned char *p, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) |
                     (i + 2 < n ? p[i + 2] : 0u);
        char text[4] = { digits[v >> 18], digits[v >> 12 & 63], digits[v >> 6 & 63],
                         digits[v & 63] };

        if (i + 1 >= n) text[2] = '=';
        if (i + 2 >= n) text[3] = '=';
        out_bytes(o, text, 4);
    }
}

/* Writes the vector of one input. Little-endian, as the machines that lagan runs on. */
static void
put_embedding(const struct exchange *e, const struct prompt *p, struct out *o)
{
    const double *sum = (const void *)p->values.p;
    size_t n = p->values.n / sizeof *sum;
    double square = 0;

    for (size_t i = 0; i < n; i++) square += sum[i] * sum[i];
    out_put(o, e->base64 ? "\"" : "[");
    if (e->base64) {
        CLEAN(out_free) struct out raw = { 0 };

        for (size_t i = 0; i < n; i++) {
            float v = square > 0 ? (float)(sum[i] / sqrt(square)) : 0;

            out_bytes(&raw, &v, sizeof v);
        }
        o->failed |= raw.failed;
        put_base64(o, (const void *)raw.p, raw.n);
    }
    for (size_t i = 0; i < n && !e->base64; i++) {
        if (i) out_put(o, ",");
        out_f32(o, square > 0 ? (float)(sum[i] / sqrt(square)) : 0);
    }
    out_put(o, e->base64 ? "\"" : "]");
    o->failed |= p->values.failed;
}

void
embeddings_respond(struct exchange *e)
{
    struct out o = { 0 };

    out_put(&o, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < e->n_prompts; i++) {
        out_format(&o, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i ? "," : "", i);
        put_embedding(e, &e->prompt[i], &o);
        out_put(&o, "}");
    }
    out_put(&o, "],\"model\":");
    out_string(&o, e->asked, strlen(e->asked));
    out_format(&o, ",\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u}}", e->prompt_tokens,
               e->prompt_tokens);
    exchange_respond(e, JSON_TYPE, &o);
}

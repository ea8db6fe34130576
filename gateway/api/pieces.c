/* pieces.c - see pieces.h. */
#include "gateway/api/pieces.h"

#include "base/json.h"
#include "gateway/api/api_internal.h"

#include <stdio.h>

enum { MAX_VOCABULARY = 1 << 22, BLOCK = 4096 }; /* ids of one call: the limit of the verb */

struct vocabulary {
    bool used, complete;
    char model[257];
    uint64_t fingerprint;
    uint32_t n, n_read, tenant;
    uint32_t *end; /* [n] in bytes: token i ends there, and begins where token i - 1 ends */
    struct out bytes;
    char why[240];
};

struct pieces {
    struct api *a;
    struct vocabulary v[PIECES_MODELS];
};

struct pieces *
pieces_new(struct api *a)
{
    struct pieces *p = calloc(1, sizeof *p);

    if (p) p->a = a;
    return p;
}

static void
vocabulary_done(struct vocabulary *v)
{
    free(v->end);
    out_free(&v->bytes);
    *v = (struct vocabulary){ 0 };
}

void
pieces_free(struct pieces *p)
{
    for (uint32_t i = 0; p && i < PIECES_MODELS; i++) vocabulary_done(&p->v[i]);
    free(p);
}

/* Adds the next token: a list of the numbers of its bytes, which j has entered. */
static int
read_token(struct vocabulary *v, struct json *j)
{
    while (json_next(j, NULL) == 0 && j->kind == JSON_NUMBER) {
        uint64_t byte;
        char c;

        if (json_u64(j, &byte) < 0 || byte > 255) return -EBADMSG;
        c = (char)byte;
        out_bytes(&v->bytes, &c, 1);
    }
    if (j->kind != JSON_ARRAY_END || v->n_read == v->n || v->bytes.n > UINT32_MAX) return -EBADMSG;
    v->end[v->n_read++] = (uint32_t)v->bytes.n;
    return v->bytes.failed ? -ENOMEM : 0;
}

static int
read_block(struct vocabulary *v, const char *json)
{
    struct json j;
    uint32_t before = v->n_read;

    json_open(&j, json, strlen(json));
    if (json_next(&j, NULL) < 0 || j.kind != JSON_ARRAY) return -EBADMSG;
    while (json_next(&j, NULL) == 0 && j.kind == JSON_ARRAY) TRY(read_token(v, &j));
    return j.kind == JSON_ARRAY_END && v->n_read > before ? 0 : -EBADMSG;
}

static int ask(struct pieces *p, struct vocabulary *v, struct err *err);

static void
take_block(struct api *a, void *owner, const struct lagan_event *ev)
{
    struct vocabulary *v = owner;
    struct err err = { .text = "" };

    if (ev->kind != LAGAN_EVENT_REPLY)
        snprintf(v->why, sizeof v->why, "lagand does not give the texts of the tokens: %s",
                 ev->message ? ev->message : "");
    else if (read_block(v, ev->text) < 0)
        snprintf(v->why, sizeof v->why, "lagand gave the texts of the tokens in an unknown form");
    else if (v->n_read == v->n)
        v->complete = true;
    else if (ask(a->pieces, v, &err) < 0)
        snprintf(v->why, sizeof v->why, "%.200s", err.text);
    if (!v->complete && !v->why[0]) return;
    prepare_go_on(a, v);
    if (v->why[0]) vocabulary_done(v); /* the next request tries again */
}

/* Asks for the next block of tokens. */
static int
ask(struct pieces *p, struct vocabulary *v, struct err *err)
{
    CLEAN(out_free) struct out args = { 0 };
    uint32_t end = MIN(v->n, v->n_read + BLOCK);

    out_put(&args, "{\"model\":");
    out_string(&args, v->model, strlen(v->model));
    out_put(&args, ",\"ids\":[");
    for (uint32_t i = v->n_read; i < end; i++) out_format(&args, i > v->n_read ? ",%u" : "%u", i);
    out_bytes(&args, "]}", 3);
    if (args.failed) return err_set(err, -ENOMEM, "no memory for the texts of the tokens");
    return api_call(p->a, v->tenant, "pieces", args.p, take_block, v, err);
}

static struct vocabulary *
take_vocabulary(struct pieces *p)
{
    for (uint32_t i = 0; i < PIECES_MODELS; i++)
        if (!p->v[i].used) return &p->v[i];
    for (uint32_t i = 0; i < PIECES_MODELS; i++)
        if (p->v[i].complete && !prepare_uses(p->a, &p->v[i])) {
            vocabulary_done(&p->v[i]);
            return &p->v[i];
        }
    return NULL;
}

struct vocabulary *
pieces_of(struct pieces *p, uint32_t tenant, const struct api_model *m)
{
    struct vocabulary *v;
    struct err err;

    for (uint32_t i = 0; i < PIECES_MODELS; i++) {
        v = &p->v[i];
        if (v->used && v->fingerprint == m->fingerprint && v->n == m->vocabulary &&
            strcmp(v->model, m->name) == 0)
            return v;
    }
    v = take_vocabulary(p);
    if (!v || !m->vocabulary || m->vocabulary > MAX_VOCABULARY) return NULL;
    *v = (struct vocabulary){ .used = true,
                              .fingerprint = m->fingerprint,
                              .n = m->vocabulary,
                              .tenant = tenant,
                              .end = calloc(m->vocabulary, sizeof *v->end) };
    snprintf(v->model, sizeof v->model, "%s", m->name);
    if (v->end && ask(p, v, &err) == 0) return v;
    vocabulary_done(v);
    return NULL;
}

bool
vocabulary_complete(const struct vocabulary *v)
{
    return v->complete;
}

const char *
vocabulary_fault(const struct vocabulary *v)
{
    return v->why[0] ? v->why : NULL;
}

struct http_text
vocabulary_text(const struct vocabulary *v, token_id id)
{
    uint32_t from;

    if (id < 0 || (uint32_t)id >= v->n_read) return (struct http_text){ 0 };
    from = id ? v->end[id - 1] : 0;
    return (struct http_text){ v->bytes.p + from, v->end[id] - from };
}

token_id
vocabulary_find(const struct vocabulary *v, const char *text)
{
    for (uint32_t id = 0; id < v->n_read; id++) {
        struct http_text t = vocabulary_text(v, (token_id)id);

        if (t.n == strlen(text) && memcmp(t.p, text, t.n) == 0) return (token_id)id;
    }
    return -1;
}

/* prompts.c - fields that hold a text, a list of texts, token ids or a list of lists of token
 * ids. */
#include "gateway/api/api_internal.h"

#include <stdio.h>

struct prompts {
    struct json j;
    struct text_or_ids *list; /* [max_prompts] */
    uint32_t n;
    bool flat;     /* the value is one list of ids */
    token_id *ids; /* of all lists, one behind the other */
    uint32_t n_ids;
};

/* Writes the path of the value that was read last: "prompt", "prompt[3]", "prompt[3][7]". */
static const char *
path_of(const struct prompts *p, const char *name, char path[96])
{
    const struct text_or_ids *last = p->n ? &p->list[p->n - 1] : NULL;
    bool entered = p->j.kind == JSON_OBJECT || p->j.kind == JSON_ARRAY;
    uint32_t depth = p->j.depth - entered, n_ids = last && !last->text.p ? last->n_ids : 0;

    if (depth == 0)
        snprintf(path, 96, "%s", name);
    else if (depth == 1)
        snprintf(path, 96, "%s[%u]", name, p->flat ? n_ids : p->n);
    else
        snprintf(path, 96, "%s[%u][%u]", name, p->n ? p->n - 1 : 0, n_ids);
    return path;
}

static int
wrong_element(const struct prompts *p, const char *name, struct fault *f)
{
    char path[96];

    path_of(p, name, path);
    return fault_set(f, API_E_INVALID_TYPE, path,
                     "%s must be a string or a token id; %s is a text, a list of texts, a list of "
                     "token ids or a list of such lists",
                     path, name);
}

/* Adds an empty prompt. */
static int
add_prompt(struct exchange *e, struct prompts *p, const char *name, struct fault *f)
{
    if (p->n == e->a->c.max_prompts)
        return fault_set(f, API_E_INVALID_VALUE, name, "%s has more than %u prompts", name,
                         e->a->c.max_prompts);
    p->list[p->n++] = (struct text_or_ids){ .ids = p->ids + p->n_ids };
    return 0;
}

static int
add_text(struct exchange *e, struct prompts *p, const char *name, struct fault *f)
{
    struct http_text text;
    char path[96];

    if (p->j.depth > 1 || (p->n && !p->list[0].text.p)) return wrong_element(p, name, f);
    text = body_string(e->body, &p->j, false);
    if (!text.p) return -ENOMEM;
    if (!text.n)
        return fault_set(f, API_E_INVALID_VALUE, path_of(p, name, path), "%s is empty",
                         path_of(p, name, path));
    TRY(add_prompt(e, p, name, f));
    p->list[p->n - 1] = (struct text_or_ids){ .text = text };
    return 0;
}

/* Checks the number that was read last as a token id of the model. */
static int
read_id(const struct exchange *e, const struct json *j, const char *path, token_id *ret,
        struct fault *f)
{
    uint64_t id;

    if (j->kind != JSON_NUMBER)
        return fault_set(f, API_E_INVALID_TYPE, path, "%s must be a token id", path);
    if (json_u64(j, &id) < 0 || id >= e->model.vocabulary)
        return fault_set(f, API_E_INVALID_VALUE, path,
                         "%s is %.*s, but token ids of this model are 0 to %u", path,
                         (int)MIN(j->text_len, (size_t)64), j->text, e->model.vocabulary - 1);
    *ret = (token_id)id;
    return 0;
}

static int
add_id(struct exchange *e, struct prompts *p, const char *name, struct fault *f)
{
    char path[96];
    token_id id;

    if (p->j.depth == 0) return wrong_element(p, name, f);
    if (p->j.depth == 1) {
        if (p->n && p->list[0].text.p) return wrong_element(p, name, f);
        if (p->n && !p->flat) return wrong_element(p, name, f);
        if (!p->n) TRY(add_prompt(e, p, name, f));
        p->flat = true;
    }
    TRY(read_id(e, &p->j, path_of(p, name, path), &id, f));
    p->ids[p->n_ids++] = id;
    p->list[p->n - 1].n_ids++;
    return 0;
}

static int
add_list(struct exchange *e, struct prompts *p, const char *name, struct fault *f)
{
    if (p->j.depth == 1) return 0; /* the outer list */
    if (p->j.depth > 2 || p->flat || (p->n && p->list[0].text.p)) return wrong_element(p, name, f);
    return add_prompt(e, p, name, f);
}

static int
end_list(const struct prompts *p, const char *name, struct fault *f)
{
    if (p->n && (p->list[p->n - 1].text.p || p->list[p->n - 1].n_ids)) return 0;
    return fault_set(f, API_E_INVALID_VALUE, name, "%s has an empty list", name);
}

static int
open_prompts(struct exchange *e, const struct value *v, struct prompts **ret)
{
    struct prompts *p = body_memory(e->body, sizeof *p);

    if (!p) return -ENOMEM;
    memset(p, 0, sizeof *p);
    json_open(&p->j, v->raw.p, v->raw.n);
    p->list = body_memory(e->body, e->a->c.max_prompts * sizeof *p->list);
    p->ids = body_memory(e->body, (v->raw.n / 2 + 1) * sizeof *p->ids); /* "1," is the shortest */
    if (!p->list || !p->ids) return -ENOMEM;
    *ret = e->reading = p;
    return 0;
}

int
prompts_read(struct exchange *e, enum field field, const struct text_or_ids **ret, uint32_t *n,
             struct fault *f)
{
    const struct value *v = &e->body->v[field];
    const char *name = field_rows[field].name, *from;
    struct prompts *p = e->reading;

    if (!v->given) return fault_set(f, API_E_MISSING, name, "%s is absent", name);
    if (!p) TRY(open_prompts(e, v, &p));
    from = p->j.p;
    while ((size_t)(p->j.p - from) < e->a->read_bytes) {
        int r = 0;

        if (json_next(&p->j, NULL) < 0) return wrong_element(p, name, f);
        switch (p->j.kind) {
        case JSON_END:
            *ret = p->list;
            *n = p->n;
            e->reading = NULL;
            return 0;
        case JSON_STRING:
            r = add_text(e, p, name, f);
            break;
        case JSON_NUMBER:
            r = add_id(e, p, name, f);
            break;
        case JSON_ARRAY:
            r = add_list(e, p, name, f);
            break;
        case JSON_ARRAY_END:
            r = end_list(p, name, f);
            break;
        default:
            r = wrong_element(p, name, f);
        }
        if (r < 0) return r;
    }
    return 1;
}

int
ids_read(const struct exchange *e, enum field field, token_id *ids, uint32_t most, struct fault *f)
{
    const struct value *v = &e->body->v[field];
    const char *name = field_rows[field].name;
    char path[96];
    struct json j;
    uint32_t n = 0;

    json_open(&j, v->raw.p, v->raw.n);
    if (json_next(&j, NULL) < 0 || j.kind != JSON_ARRAY)
        return fault_set(f, API_E_INVALID_TYPE, name, "%s must be a list of token ids", name);
    while (json_next(&j, NULL) == 0 && j.kind != JSON_ARRAY_END) {
        snprintf(path, sizeof path, "%s[%u]", name, n);
        if (n == most)
            return fault_set(f, API_E_INVALID_VALUE, name, "%s has more than %u ids", name, most);
        TRY(read_id(e, &j, path, &ids[n++], f));
    }
    return (int)n;
}

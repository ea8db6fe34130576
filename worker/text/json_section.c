/* json_section.c - implements json_section.h: reads parts of tokenizer.json. */
#include "worker/text/json_section.h"

static int
not_a(const char *what, const char *kind, struct err *e)
{
    return err_set(e, -EBADMSG, "%s is not %s", what, kind);
}

int
json_section_object(const struct json *j, const char *what, struct err *e)
{
    return j->kind == JSON_OBJECT ? 0 : not_a(what, "an object", e);
}

int
json_section_array(const struct json *j, const char *what, struct err *e)
{
    return j->kind == JSON_ARRAY ? 0 : not_a(what, "an array", e);
}

int
json_section_key(struct json *j, struct err *e)
{
    TRY(json_next(j, e));
    return j->kind == JSON_KEY;
}

int
json_section_element(struct json *j, struct err *e)
{
    TRY(json_next(j, e));
    return j->kind != JSON_ARRAY_END;
}

int
json_section_text(struct json *j, const char *what, char *buf, size_t n, struct err *e)
{
    int len;

    TRY(json_next(j, e));
    if (j->kind == JSON_NULL) {
        buf[0] = '\0';
        return 0;
    }
    if (j->kind != JSON_STRING) return not_a(what, "a string", e);
    len = json_unescape(j, buf, n);
    if (len < 0) return err_set(e, -EMSGSIZE, "%s is longer than %zu bytes", what, n - 1);
    return strlen(buf) == (size_t)len ? 0 : not_a(what, "free of zero bytes", e);
}

int
json_section_piece(struct json *j, char *buf, size_t n)
{
    int len = json_next(j, NULL) < 0 || j->kind != JSON_STRING ? -1 : json_unescape(j, buf, n);

    return MAX(len, -1);
}

int
json_section_id(struct json *j, const char *what, token_id *ret, struct err *e)
{
    uint64_t v;

    TRY(json_next(j, e));
    if (j->kind != JSON_NUMBER || json_u64(j, &v) < 0 || v > INT32_MAX)
        return not_a(what, "a token id", e);
    *ret = (token_id)v;
    return 0;
}

static int MUST_USE
read_truth(struct json *j, const char *key, int8_t *ret, struct err *e)
{
    TRY(json_next(j, e));
    if (j->kind != JSON_TRUE && j->kind != JSON_FALSE && j->kind != JSON_NULL)
        return not_a(key, "true or false", e);
    *ret = j->kind == JSON_TRUE ? 1 : j->kind == JSON_FALSE ? -1 : 0;
    return 0;
}

static int MUST_USE
read_field(struct json *j, const struct section_field *f, void *to, struct err *e)
{
    int8_t truth;

    switch (f->kind) {
    case SECTION_TEXT:
        return json_section_text(j, f->key, to, f->size, e);
    case SECTION_BOOL:
        TRY(read_truth(j, f->key, &truth, e));
        *(bool *)to = truth > 0;
        return 0;
    case SECTION_SIGN:
        return read_truth(j, f->key, to, e);
    case SECTION_ID:
        return json_section_id(j, f->key, to, e);
    case SECTION_VALUE:
        TRY(json_next(j, e));
        *(struct json *)to = *j;
        return json_skip(j, e);
    case SECTION_READ:
        return f->read(to, j, e);
    }
    return 0;
}

int
json_section_read(struct json *j, const char *what, const struct section_field *fields, void *to,
                  struct err *e)
{
    int more;

    TRY(json_section_object(j, what, e));
    while ((more = json_section_key(j, e)) > 0) {
        const struct section_field *f = fields;

        while (f->key && !json_is(j, f->key)) f++;
        TRY(f->key ? read_field(j, f, (char *)to + f->at, e) : json_skip(j, e));
    }
    return more;
}

int
json_section_sequence(struct json list, int depth,
                      int (*read)(void *arg, struct json *j, int depth, struct err *e), void *arg,
                      struct err *e)
{
    int more;

    if (depth == 4) return err_set(e, -ENOTSUP, "more than 4 nested Sequences are not served yet");
    if (!list.p) return err_set(e, -EBADMSG, "a Sequence has no list of steps");
    TRY(json_section_array(&list, "the list of a Sequence", e));
    while ((more = json_section_element(&list, e)) > 0) TRY(read(arg, &list, depth + 1, e));
    return more;
}

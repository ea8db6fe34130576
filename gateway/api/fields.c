/* fields.c - see fields.h. */
#include "gateway/api/fields.h"

#include "base/json.h"

#include <math.h>
#include <stdio.h>

const struct field_row field_rows[N_FIELDS] = {
#define X(id, name, routes, kind, least, most, use, arg) \
    { name, routes, FIELD_##kind, least, most, FIELD_##use, arg },
    API_FIELDS(X)
#undef X
};

enum field
field_find(unsigned route, const char *name, size_t n)
{
    for (enum field i = 0; i < N_FIELDS; i++) {
        const struct field_row *row = &field_rows[i];
        size_t len = strlen(row->name);
        bool prefix = row->name[len - 1] == '*';

        if (!(row->routes & route)) continue;
        if (prefix ? n >= len - 1 && memcmp(row->name, name, len - 1) == 0
                   : n == len && memcmp(row->name, name, n) == 0)
            return i;
    }
    return N_FIELDS;
}

/* Returns whether raw without insignificant spaces is one of the values of list. */
static bool
is_one_of(struct http_text raw, const char *list)
{
    while (*list) {
        size_t n = strcspn(list, "|"), at = 0;
        bool quoted = false, equal = true;

        for (size_t i = 0; i < raw.n && equal; i++) {
            char c = raw.p[i];

            if (!quoted && (c == ' ' || c == '\n' || c == '\r' || c == '\t')) continue;
            if (c == '"') quoted = !quoted; /* the values of list have no escapes */
            equal = at < n && list[at++] == c;
        }
        if (equal && at == n) return true;
        list += n + (list[n] != '\0');
    }
    return false;
}

static int
wrong_type(const char *name, const char *want, struct http_text raw, struct fault *f)
{
    return fault_set(f, API_E_INVALID_TYPE, name, "%s is %.*s, but must be %s", name,
                     (int)MIN(raw.n, (size_t)64), raw.p, want);
}

static int
out_of_range(const struct field_row *row, const char *name, struct http_text raw, struct fault *f)
{
    return fault_set(f, API_E_INVALID_VALUE, name, "%s is %.*s; the limits are %.16g and %.16g",
                     name, (int)MIN(raw.n, (size_t)64), raw.p, row->least, row->most);
}

/* Reads an integer, also one that is written as 5.0 or 1e3. Returns 0, -EINVAL: not an integer,
 * -ERANGE: no int64. */
static int
read_integer(const struct json *j, int64_t *ret)
{
    struct json digits = *j;
    bool negative = j->text[0] == '-';
    uint64_t u;
    double d;
    int r;

    digits.text += negative;
    digits.text_len -= negative;
    r = json_u64(&digits, &u);
    if (r == 0) {
        if (u > (uint64_t)INT64_MAX + negative) return -ERANGE;
        *ret = negative ? (int64_t)(0 - u) : (int64_t)u;
        return 0;
    }
    if (r == -ERANGE) return r;
    TRY(json_f64(j, &d));
    if (d != floor(d)) return -EINVAL;
    if (fabs(d) > 9007199254740992.0) return -ERANGE;
    *ret = (int64_t)d;
    return 0;
}

static int
read_number(const struct field_row *row, const struct json *j, struct http_text raw,
            const char *name, struct value *v, struct fault *f)
{
    double d;
    int r;

    if (row->kind == FIELD_INT) {
        if (j->kind != JSON_NUMBER) return wrong_type(name, "an integer", raw, f);
        r = read_integer(j, &v->i);
        if (r == -EINVAL) return wrong_type(name, "an integer", raw, f);
        d = (double)v->i;
    } else {
        if (j->kind != JSON_NUMBER) return wrong_type(name, "a number", raw, f);
        r = json_f64(j, &v->f);
        d = v->f;
    }
    if (r < 0 || d < row->least || d > row->most) return out_of_range(row, name, raw, f);
    return 0;
}

static int
read_string(const struct field_row *row, const struct json *j, struct http_text raw,
            const char *name, struct fault *f)
{
    char text[8192]; /* longer than `most` of every row, in bytes as written */
    int n;

    if (j->kind != JSON_STRING) return wrong_type(name, "a string", raw, f);
    n = json_unescape(j, text, sizeof text);
    if (n < 0 || n < row->least || n > row->most)
        return fault_set(
            f, API_E_INVALID_VALUE, name, "%s has %s%zu bytes; the limits are %g and %g", name,
            n < 0 ? "about " : "", n < 0 ? j->text_len : (size_t)n, row->least, row->most);
    return 0;
}

int
field_read(enum field field, struct http_text raw, const char *name, struct value *ret,
           struct fault *f)
{
    const struct field_row *row = &field_rows[field];
    struct value v = { .given = true, .raw = raw };
    struct json j;

    if (row->use == FIELD_REFUSED && !is_one_of(raw, row->arg))
        return fault_set(f, API_E_UNSUPPORTED, name, "%.64s is not served%s%s", name,
                         row->arg[0] ? "; leave it out or send " : "; leave it out", row->arg);
    json_open(&j, raw.p, raw.n);
    if (json_next(&j, NULL) < 0) return wrong_type(name, "JSON", raw, f);
    switch (row->kind) {
    case FIELD_BOOL:
        if (j.kind != JSON_TRUE && j.kind != JSON_FALSE)
            return wrong_type(name, "true or false", raw, f);
        v.b = j.kind == JSON_TRUE;
        break;
    case FIELD_INT:
    case FIELD_NUM:
        TRY(read_number(row, &j, raw, name, &v, f));
        break;
    case FIELD_STR:
        TRY(read_string(row, &j, raw, name, f));
        break;
    case FIELD_JSON:
        break;
    }
    *ret = v;
    return row->use == FIELD_ACCEPTED && row->arg && !is_one_of(raw, row->arg);
}

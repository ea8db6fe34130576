/* json.c - see json.h.
 *
 * j->expect says which event may follow; j->stack holds the kind of container of each level.
 * json_next() reads a key together with its colon, and a value together with the comma before it.
 * j->p moves only if that succeeds, so repeated calls on a broken document fail at the same place.
 * Lines and columns are counted only for an error. */
#include "base/json.h"

#include "base/utf8.h"

#include <ctype.h>
#include <math.h>

enum expect {
    VALUE,        /* at the start of the document and after a key */
    VALUE_OR_END, /* after '[' */
    KEY_OR_END,   /* after '{' */
    COMMA_OR_END, /* after a value inside a container */
    NOTHING       /* after the value of the document */
};

/* Sets the sentence, with line and column (in characters, from 1) of `at`. Returns -EBADMSG. */
static int MUST_USE
broken(const struct json *j, const char *at, struct err *e, const char *what)
{
    size_t line = 1, column = 1;

    for (const char *p = j->start; p < at; p++) {
        if (*p == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)*p & 0xc0) != 0x80) {
            column++;
        }
    }
    return err_set(e, -EBADMSG, "line %zu, column %zu: %s", line, column,
                   at == j->end ? "the JSON text ends too early" : what);
}

static const char *
skip_space(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}

/* Moves *p behind the digits at *p. Returns false if there is no digit. */
static bool
skip_digits(const char **p, const char *end)
{
    const char *first = *p;

    while (*p < end && **p >= '0' && **p <= '9') ++*p;
    return *p > first;
}

/* Returns the value of the four hex digits at p, or -1. */
static int32_t
hex4(const char *p, const char *end)
{
    int32_t v = 0;

    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        if (!isxdigit((unsigned char)p[i])) return -1;
        v = v * 16 + (p[i] <= '9' ? p[i] - '0' : (p[i] | 32) - 'a' + 10);
    }
    return v;
}

/* Decodes the escape whose backslash is at *p and moves *p behind it. Returns -1 if RFC 8259 has no
 * such escape or if the escape is a lone surrogate. */
static int32_t
escape(const char **p, const char *end)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *q = *p + 1, *name;
    int32_t c, low;

    if (q == end) return -1;
    if (*q != 'u') {
        if (!*q || !(name = strchr(names, *q))) return -1;
        *p = q + 1;
        return values[name - names];
    }
    c = hex4(++q, end);
    if (c < 0 || (c >= 0xdc00 && c <= 0xdfff)) return -1;
    q += 4;
    if (c >= 0xd800 && c <= 0xdbff) {
        if (end - q < 2 || q[0] != '\\' || q[1] != 'u') return -1;
        low = hex4(q + 2, end);
        if (low < 0xdc00 || low > 0xdfff) return -1;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
        q += 6;
    }
    *p = q;
    return c;
}

static size_t
utf8_put(int32_t c, char out[4])
{
    static const unsigned char lead[] = { 0, 0xc0, 0xe0, 0xf0 };
    size_t more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;

    for (size_t i = more; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(lead[more] | c);
    return more + 1;
}

/* Writes the next byte, or decoded escape, of a string that read_string() has accepted to out, and
 * moves *p behind it. Returns the number of bytes written. */
static size_t
next_bytes(const char **p, const char *end, char out[4])
{
    if (**p == '\\') return utf8_put(escape(p, end), out);
    out[0] = *(*p)++;
    return 1;
}

/* Reads the string whose opening quote is at *at into j->text, and moves *at behind it. */
static int MUST_USE
read_string(struct json *j, const char **at, struct err *e)
{
    const char *p = *at + 1;
    bool escaped = false;

    for (;;) {
        while (p < j->end && (unsigned char)(*p - 0x20) < 0x60 && *p != '"' && *p != '\\') p++;
        if (p == j->end) return broken(j, p, e, "");
        if (*p == '"') break;
        if (*p == '\\') {
            if (escape(&p, j->end) < 0)
                return broken(j, p, e, "invalid escape sequence in a string");
            escaped = true;
        } else {
            int n = utf8_at(p, (size_t)(j->end - p));

            if ((unsigned char)*p < 0x20)
                return broken(j, p, e, "a string contains a control character");
            if (n <= 0) return broken(j, p, e, "a string is not valid UTF-8");
            p += n;
        }
    }
    j->text = *at + 1;
    j->text_len = (size_t)(p - j->text);
    j->escaped = escaped;
    *at = p + 1;
    return 0;
}

static int MUST_USE
read_number(struct json *j, const char **at, struct err *e)
{
    const char *p = *at + (**at == '-'), *first = p, *end = j->end;

    if (!skip_digits(&p, end)) return broken(j, p, e, "expected a digit of a number");
    if (*first == '0' && p > first + 1)
        return broken(j, first + 1, e, "a number of several digits must not begin with 0");
    if (p < end && *p == '.') {
        p++;
        if (!skip_digits(&p, end)) return broken(j, p, e, "expected a digit of a number");
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        if (p < end && (*p == '+' || *p == '-')) p++;
        if (!skip_digits(&p, end)) return broken(j, p, e, "expected a digit of a number");
    }
    j->text = *at;
    j->text_len = (size_t)(p - *at);
    *at = p;
    return 0;
}

static void
after_value(struct json *j)
{
    j->expect = j->depth ? COMMA_OR_END : NOTHING;
}

static int MUST_USE
enter(struct json *j, enum json_kind kind, const char *at, struct err *e)
{
    _Static_assert(JSON_MAX_DEPTH == 64, "the sentence has this number");
    if (j->depth == JSON_MAX_DEPTH) return broken(j, at, e, "more than 64 levels of nesting");
    j->stack[j->depth++] = (uint8_t)kind;
    j->kind = kind;
    j->expect = kind == JSON_OBJECT ? KEY_OR_END : VALUE_OR_END;
    j->p = at + 1;
    return 0;
}

static int MUST_USE
read_value(struct json *j, const char *p, struct err *e)
{
    static const struct {
        const char *text;
        enum json_kind kind;
    } words[] = { { "true", JSON_TRUE }, { "false", JSON_FALSE }, { "null", JSON_NULL } };
    enum json_kind kind = JSON_NUMBER;

    if (p == j->end) return broken(j, p, e, "");
    if (*p == '{') return enter(j, JSON_OBJECT, p, e);
    if (*p == '[') return enter(j, JSON_ARRAY, p, e);
    if (*p == '"') {
        kind = JSON_STRING;
        TRY(read_string(j, &p, e));
    } else if (*p == '-' || (*p >= '0' && *p <= '9')) {
        TRY(read_number(j, &p, e));
    } else {
        size_t i = 0, left = (size_t)(j->end - p);

        while (i < ARRAY_LEN(words) &&
               (left < strlen(words[i].text) || memcmp(p, words[i].text, strlen(words[i].text))))
            i++;
        if (i == ARRAY_LEN(words)) return broken(j, p, e, "expected a value");
        kind = words[i].kind;
        p += strlen(words[i].text);
    }
    j->kind = kind;
    j->p = p;
    after_value(j);
    return 0;
}

static int MUST_USE
read_key(struct json *j, const char *p, struct err *e)
{
    if (p == j->end || *p != '"') return broken(j, p, e, "expected a key in quotes");
    TRY(read_string(j, &p, e));
    p = skip_space(p, j->end);
    if (p == j->end || *p != ':') return broken(j, p, e, "expected ':' after the key");
    j->kind = JSON_KEY;
    j->p = p + 1;
    j->expect = VALUE;
    return 0;
}

void
json_open(struct json *j, const char *text, size_t n)
{
    *j = (struct json){ .p = text, .end = text + n, .start = text, .expect = VALUE };
}

int
json_next(struct json *j, struct err *e)
{
    const char *p = skip_space(j->p, j->end);
    bool in_object = j->depth && j->stack[j->depth - 1] == JSON_OBJECT;

    if (j->expect == NOTHING) {
        if (p != j->end) return broken(j, p, e, "there is text after the end of the document");
        j->kind = JSON_END;
        return 0;
    }
    if (j->expect == VALUE) return read_value(j, p, e);
    if (p < j->end && *p == (in_object ? '}' : ']')) {
        j->kind = in_object ? JSON_OBJECT_END : JSON_ARRAY_END;
        j->depth--;
        j->p = p + 1;
        after_value(j);
        return 0;
    }
    if (j->expect == COMMA_OR_END) {
        if (p == j->end || *p != ',')
            return broken(j, p, e, in_object ? "expected ',' or '}'" : "expected ',' or ']'");
        p = skip_space(p + 1, j->end);
    }
    return in_object ? read_key(j, p, e) : read_value(j, p, e);
}

int
json_skip(struct json *j, struct err *e)
{
    uint32_t outside;

    if (j->kind == JSON_KEY) TRY(json_next(j, e));
    if (j->kind != JSON_OBJECT && j->kind != JSON_ARRAY) return 0;
    outside = j->depth - 1;
    while (j->depth > outside) TRY(json_next(j, e));
    return 0;
}

int
json_unescape(const struct json *j, char *buf, size_t n)
{
    const char *p = j->text, *end = p + j->text_len;
    size_t len = 0;

    check(j->kind == JSON_KEY || j->kind == JSON_STRING);
    while (p < end) {
        char c[4];
        size_t k = next_bytes(&p, end, c);

        if (n - len <= k || n <= len) return -EMSGSIZE;
        memcpy(buf + len, c, k);
        len += k;
    }
    if (len >= n || len > INT32_MAX) return -EMSGSIZE;
    buf[len] = '\0';
    return (int)len;
}

bool
json_is(const struct json *j, const char *s)
{
    const char *p = j->text, *end = p + j->text_len;

    check(j->kind == JSON_KEY || j->kind == JSON_STRING);
    if (!j->escaped) return strlen(s) == j->text_len && memcmp(s, p, j->text_len) == 0;
    while (p < end) {
        char c[4];
        size_t k = next_bytes(&p, end, c);

        /* A decoded NUL never matches; strncmp() would take it for the end of s. */
        if (c[0] == '\0' || strncmp(s, c, k) != 0) return false;
        s += k;
    }
    return *s == '\0';
}

int
json_u64(const struct json *j, uint64_t *ret)
{
    uint64_t v = 0;

    check(j->kind == JSON_NUMBER);
    for (size_t i = j->text[0] == '-'; i < j->text_len; i++)
        if (j->text[i] < '0' || j->text[i] > '9') return -EINVAL;
    if (j->text[0] == '-') return -ERANGE;
    for (size_t i = 0; i < j->text_len; i++)
        if (__builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(j->text[i] - '0'), &v))
            return -ERANGE;
    *ret = v;
    return 0;
}

int
json_f64(const struct json *j, double *ret)
{
    char text[512]; /* the longest exact decimal of a double has under 340 digits */
    char *end;
    double v;

    check(j->kind == JSON_NUMBER);
    if (j->text_len >= sizeof text) return -ERANGE;
    memcpy(text, j->text, j->text_len);
    text[j->text_len] = '\0';
    v = strtod(text, &end);
    check(*end == '\0'); /* strtod() accepts every JSON number in the locale "C" */
    if (isinf(v)) return -ERANGE;
    *ret = v;
    return 0;
}

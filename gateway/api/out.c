/* out.c - see out.h. */
#include "gateway/api/out.h"

#include "base/utf8.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

enum { LEAST_BYTES = 256 };

void
out_free(struct out *o)
{
    free(o->p);
    *o = (struct out){ 0 };
}

char *
out_space(struct out *o, size_t n)
{
    size_t cap = MAX(o->cap, (size_t)LEAST_BYTES);
    char *p;

    if (o->failed) return NULL;
    if (o->cap - o->n >= n) return o->p + o->n;
    while (cap - o->n < n) cap *= 2;
    p = realloc(o->p, cap);
    if (!p) {
        o->failed = true;
        return NULL;
    }
    o->p = p;
    o->cap = cap;
    return p + o->n;
}

void
out_bytes(struct out *o, const void *p, size_t n)
{
    char *to = n ? out_space(o, n) : NULL;

    if (!to) return;
    memcpy(to, p, n);
    o->n += n;
}

void
out_put(struct out *o, const char *s)
{
    out_bytes(o, s, strlen(s));
}

void
out_u64(struct out *o, uint64_t v)
{
    char text[20], *at = text + sizeof text;

    do *--at = (char)('0' + v % 10);
    while (v /= 10);
    out_bytes(o, at, (size_t)(text + sizeof text - at));
}

void
out_format(struct out *o, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !out_space(o, (size_t)n + 1)) return;
    va_start(ap, fmt);
    vsnprintf(o->p + o->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    o->n += (size_t)n;
}

static void
put_escape(struct out *o, uint32_t c)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    const char *at = c && c < 0x80 ? strchr(from, (int)c) : NULL;

    if (at)
        out_bytes(o, (char[]){ '\\', to[at - from] }, 2);
    else
        out_format(o, "\\u%04x", c);
}

/* Returns the character at p if it is written as an escape, else 0x10ffff. k: its bytes. */
static uint32_t
escaped_character(const unsigned char *p, int k)
{
    if (k == 1) return *p < 0x20 || *p == '"' || *p == '\\' ? *p : 0x10ffff;
    if (k == 2 && p[0] == 0xc2 && p[1] == 0x85) return 0x85;
    if (k == 3 && p[0] == 0xe2 && p[1] == 0x80 && (p[2] == 0xa8 || p[2] == 0xa9))
        return 0x2000u + (p[2] & 0x3fu);
    return 0x10ffff;
}

void
out_escaped(struct out *o, const char *p, size_t n)
{
    size_t from = 0, i = 0; /* bytes from .. i are written as they are */

    if (!n) return; /* p may be NULL */
    while (i < n) {
        unsigned char c = (unsigned char)p[i];
        int k = c < 0x80 ? 1 : utf8_at(p + i, n - i);
        uint32_t escape = k > 0 ? escaped_character((const unsigned char *)p + i, k) : 0;

        if (k > 0 && escape == 0x10ffff) {
            i += (size_t)k;
            continue;
        }
        out_bytes(o, p + from, i - from);
        if (k > 0)
            put_escape(o, escape);
        else
            out_put(o, UTF8_BAD);
        i += k > 0 ? (size_t)k : k ? (size_t)-k : n - i;
        from = i;
    }
    out_bytes(o, p + from, i - from);
}

void
out_string(struct out *o, const char *p, size_t n)
{
    out_bytes(o, "\"", 1);
    out_escaped(o, p, n);
    out_bytes(o, "\"", 1);
}

/* Writes what is not a number and returns true. */
static bool
out_special(struct out *o, double v)
{
    if (isfinite(v)) return false;
    out_put(o, isnan(v) ? "null" : v < 0 ? "-9999.0" : "9999.0");
    return true;
}

/* A normal number that at most 6 digits (float) or 15 digits (double) identify is exact with them,
 * and %g leaves out trailing zeros: these lengths are tried first. */
void
out_f32(struct out *o, float v)
{
    char text[32];

    if (out_special(o, (double)v)) return;
    for (int digits = fabsf(v) < FLT_MIN ? 1 : 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v) break;
    }
    out_put(o, text);
}

void
out_f64(struct out *o, double v)
{
    char text[40];

    if (out_special(o, v)) return;
    for (int digits = fabs(v) < DBL_MIN ? 1 : 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    out_put(o, text);
}

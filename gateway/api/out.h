/* out.h - a growing buffer, and the writer of JSON for responses.
 *
 * Writes never fail for the caller: if memory is exhausted, `failed` is set, later writes do
 * nothing and the owner looks at `failed` once, before the bytes are used. A zeroed struct is
 * empty. */
#pragma once
#include "base/base.h"

struct out {
    char *p;
    size_t n, cap;
    bool failed;
};

void out_free(struct out *o);
/* Makes space for n more bytes and returns its address; NULL: no memory. The caller adds what it
 * wrote to o->n. */
char *out_space(struct out *o, size_t n);
void out_bytes(struct out *o, const void *p, size_t n);
void out_put(struct out *o, const char *s); /* as it is */
void out_u64(struct out *o, uint64_t v);
void out_format(struct out *o, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* JSON. Escaped are '"', '\', bytes below 0x20, and U+0085, U+2028, U+2029: readers of SSE take
 * these characters for ends of lines. p[n]: UTF-8; malformed bytes become U+FFFD. */
void out_escaped(struct out *o, const char *p, size_t n); /* without quotes */
void out_string(struct out *o, const char *p, size_t n);  /* with quotes */
/* The shortest decimal that reads back to the same number. -inf is -9999.0, inf 9999.0, NaN
 * null. */
void out_f32(struct out *o, float v);
void out_f64(struct out *o, double v);

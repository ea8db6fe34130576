#include "gateway/http/head.h"

#include <stdarg.h>
#include <stdio.h>
#include <strings.h>

enum { MAX_METHOD = 32, MAX_LENGTH_DIGITS = 18 };

enum head_state {
    HEAD_START,    /* before the request line */
    HEAD_EMPTY_LF, /* after the CR of an empty line before it */
    HEAD_START_2,  /* after that line */
    HEAD_METHOD,
    HEAD_TARGET,
    HEAD_VERSION,
    HEAD_REQUEST_LF,
    HEAD_LINE, /* first byte of a header line or of the empty line */
    HEAD_NAME,
    HEAD_VALUE,
    HEAD_VALUE_LF,
    HEAD_END_LF,
    HEAD_DONE
};

/* What a byte may be. */
enum { TOKEN = 1, TARGET = 2, VALUE = 4 };

/* clang-format off */
#define WORD (TOKEN | TARGET | VALUE)
#define MARK (TARGET | VALUE)
static const uint8_t classes[256] = {
    ['\t'] = VALUE,           [' '] = VALUE,            ['!'] = WORD,
    ['"'] = MARK,             ['#' ... '\''] = WORD,    ['(' ... ')'] = MARK,
    ['*' ... '+'] = WORD,     [','] = MARK,             ['-' ... '.'] = WORD,
    ['/'] = MARK,             ['0' ... '9'] = WORD,     [':' ... '@'] = MARK,
    ['A' ... 'Z'] = WORD,     ['[' ... ']'] = MARK,     ['^' ... 'z'] = WORD,
    ['{'] = MARK,             ['|'] = WORD,             ['}'] = MARK,
    ['~'] = WORD,             [0x80 ... 0xff] = VALUE,
};
/* clang-format on */

static bool
is(uint8_t c, uint8_t class)
{
    return classes[c] & class;
}

int
http_fault_set(struct http_fault *f, int status, const char *rule, const char *fmt, ...)
{
    va_list ap;

    f->status = status;
    f->rule = rule;
    va_start(ap, fmt);
    vsnprintf(f->sentence, sizeof f->sentence, fmt, ap);
    va_end(ap);
    return -EPROTO;
}

void
head_init(struct http_head *h)
{
    *h = (struct http_head){ .state = HEAD_START };
}

/* ---- the request line */

static enum http_method
method_of(const char *p, uint32_t n)
{
    static const char *const names[] = { "GET", "HEAD", "POST", "DELETE", "OPTIONS" };

    for (uint32_t i = 0; i < ARRAY_LEN(names); i++)
        if (n == strlen(names[i]) && !memcmp(p, names[i], n)) return (enum http_method)i;
    return HTTP_OTHER;
}

static bool
method_is(const struct http_head *h, const char *p, const char *name)
{
    uint32_t n = h->target_at - 1 - h->method_at;

    return n == strlen(name) && !memcmp(p + h->method_at, name, n);
}

static int
hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Returns the byte of the escape at p; -1: it is none. */
static int
escaped(const char *p, const char *end)
{
    int high = end - p > 2 ? hex(p[1]) : -1, low = end - p > 2 ? hex(p[2]) : -1;

    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static int
validate_escapes(const char *p, uint32_t n, struct http_fault *f)
{
    for (const char *end = p + n; p < end; p++) {
        if (*p != '%') continue;
        if (escaped(p, end) < 0)
            return http_fault_set(f, 400, "target", "the target has a '%%' without two hex digits");
        if (escaped(p, end) == 0)
            return http_fault_set(f, 400, "target", "the target has the NUL byte %%00");
    }
    return 0;
}

/* Percent-decodes the path in place. %2F stays, because it is not a separator. */
static void
decode_path(struct http_head *h, char *p)
{
    char *from = p + h->path_at, *to = from, *end = from + h->path_n;

    while (from < end) {
        int c = *from == '%' ? escaped(from, end) : *from;
        uint32_t n = *from == '%' ? 3 : 1;

        if (c == '/' && n == 3) {
            memmove(to, from, n);
            to += n;
        } else
            *to++ = (char)c;
        from += n;
    }
    h->path_n = (uint32_t)(to - (p + h->path_at));
    if (h->path_n > 1 && to[-1] == '/') h->path_n--;
}

/* Drops "http://HOST" of an absolute-form target. */
static int
drop_origin(struct http_head *h, const char *p, struct http_fault *f)
{
    const char *t = p + h->target_at;
    uint32_t n = h->target_n,
             scheme = n >= 7 && !strncasecmp(t, "http://", 7)    ? 7
                      : n >= 8 && !strncasecmp(t, "https://", 8) ? 8
                                                                 : 0,
             end = scheme;

    if (!scheme)
        return http_fault_set(f, 400, "target",
                              "the target of the request does not begin with "
                              "'/', http:// or https://");
    while (end < n && t[end] != '/' && t[end] != '?') {
        if (t[end] == '@')
            return http_fault_set(f, 400, "target", "the target has a user name before its host");
        end++;
    }
    if (end == scheme) return http_fault_set(f, 400, "target", "the target has an empty host");
    h->path_at = h->target_at + end;
    h->path_n = n - end;
    return 0;
}

/* Finds path and query in the target. */
static int
validate_target(struct http_head *h, char *p, struct http_fault *f)
{
    const char *mark;

    h->path_at = h->target_at;
    h->path_n = h->target_n;
    TRY(validate_escapes(p + h->target_at, h->target_n, f));
    if (h->target_n == 1 && p[h->target_at] == '*') {
        if (h->method == HTTP_OPTIONS) return 0;
        return http_fault_set(f, 400, "target", "the target '*' is for OPTIONS");
    }
    if (p[h->target_at] != '/') TRY(drop_origin(h, p, f));
    if (memchr(p + h->path_at, '#', h->path_n))
        return http_fault_set(f, 400, "target", "the target has a fragment; it ends before '#'");
    mark = memchr(p + h->path_at, '?', h->path_n);
    if (mark) {
        h->query_at = (uint32_t)(mark + 1 - p);
        h->query_n = h->path_at + h->path_n - h->query_at;
        h->path_n = (uint32_t)(mark - p) - h->path_at;
    }
    if (!h->path_n) { /* http://host?query: the path is '/' */
        p[--h->path_at] = '/';
        h->path_n = 1;
    }
    decode_path(h, p);
    return 0;
}

static int
validate_request_line(struct http_head *h, char *p, uint32_t end, struct http_fault *f)
{
    const char *v = p + h->version_at;
    uint32_t n = end - h->version_at;

    if (n != 8 || memcmp(v, "HTTP/", 5) || hex(v[5]) < 0 || hex(v[5]) > 9 || v[6] != '.' ||
        hex(v[7]) < 0 || hex(v[7]) > 9)
        return http_fault_set(f, 400, "request_line",
                              "the request line is not METHOD TARGET HTTP/1.1");
    if (method_is(h, p, "PRI") && v[5] == '2')
        return http_fault_set(f, 505, "version",
                              "HTTP/2 is not served; use HTTP/1.1, or a proxy that speaks HTTP/2");
    if (v[5] != '1' || (v[7] != '0' && v[7] != '1'))
        return http_fault_set(f, 505, "version", "HTTP/%c.%c is not served; use HTTP/1.1", v[5],
                              v[7]);
    h->is_1_0 = v[7] == '0';
    h->keep_alive = !h->is_1_0;
    h->method = method_of(p + h->method_at, h->target_at - 1 - h->method_at);
    if (method_is(h, p, "CONNECT") || method_is(h, p, "TRACE"))
        return http_fault_set(f, 405, "method", "CONNECT and TRACE are not served");
    return validate_target(h, p, f);
}

/* ---- header fields */

static bool
text_is(const char *p, uint32_t n, const char *word)
{
    return n == strlen(word) && !strncasecmp(p, word, n);
}

static bool
is_space(char c)
{
    return c == ' ' || c == '\t';
}

static void
trim(const char **p, uint32_t *n)
{
    while (*n && is_space(**p)) ++*p, --*n;
    while (*n && is_space((*p)[*n - 1])) --*n;
}

static int
validate_length(struct http_head *h, const char *v, uint32_t n, struct http_fault *f)
{
    if (h->has_length)
        return http_fault_set(f, 400, "content_length", "Content-Length is there twice");
    if (!n || n > MAX_LENGTH_DIGITS)
        return http_fault_set(f, 400, "content_length", "Content-Length is not 1 to 18 digits");
    for (uint32_t i = 0; i < n; i++) {
        if (v[i] < '0' || v[i] > '9')
            return http_fault_set(f, 400, "content_length", "Content-Length is not 1 to 18 digits");
        h->length = h->length * 10 + (uint64_t)(v[i] - '0');
    }
    h->has_length = true;
    return 0;
}

static int
validate_encoding(struct http_head *h, const char *v, uint32_t n, struct http_fault *f)
{
    if (h->n_transfer_encodings++)
        return http_fault_set(f, 400, "transfer_encoding", "Transfer-Encoding is there twice");
    if (!text_is(v, n, "chunked"))
        return http_fault_set(f, 501, "transfer_encoding",
                              "the only Transfer-Encoding that is served is chunked");
    h->is_chunked = true;
    return 0;
}

/* Reads the list of Connection: close and keep-alive count, other names are ignored. */
static void
read_connection(struct http_head *h, const char *v, uint32_t n)
{
    while (n) {
        const char *comma = memchr(v, ',', n), *word = v;
        uint32_t word_n = comma ? (uint32_t)(comma - v) : n;

        n -= MIN(n, word_n + 1);
        v += word_n + (comma != NULL);
        trim(&word, &word_n);
        if (text_is(word, word_n, "close"))
            h->is_closing = true;
        else if (text_is(word, word_n, "keep-alive"))
            h->keep_alive = true;
    }
}

static int
validate_field(struct http_head *h, const char *p, uint32_t end, struct http_fault *f)
{
    const char *name = p + h->name_at, *v = p + h->value_at;
    uint32_t name_n = h->name_n, n = end - h->value_at;

    trim(&v, &n);
    if (text_is(name, name_n, "Host")) {
        if (h->n_hosts++) return http_fault_set(f, 400, "host", "Host is there twice");
    } else if (text_is(name, name_n, "Content-Length"))
        return validate_length(h, v, n, f);
    else if (text_is(name, name_n, "Transfer-Encoding"))
        return validate_encoding(h, v, n, f);
    else if (text_is(name, name_n, "Connection"))
        read_connection(h, v, n);
    else if (text_is(name, name_n, "Expect")) {
        if (!text_is(v, n, "100-continue"))
            return http_fault_set(f, 417, "expect",
                                  "the only Expect that is served is "
                                  "100-continue");
        h->expects_continue = true;
    }
    return 0;
}

/* Validates what only the whole head tells. */
static int
validate_head(struct http_head *h, const struct http_limits *limits, struct http_fault *f)
{
    bool has_body = h->is_chunked || h->length;

    if (h->is_closing) h->keep_alive = false;
    if (h->is_1_0) h->expects_continue = false; /* RFC 9110, 10.1.1 */
    if (!h->is_1_0 && !h->n_hosts)
        return http_fault_set(f, 400, "host", "an HTTP/1.1 request needs the header Host");
    if (h->is_chunked && h->is_1_0)
        return http_fault_set(f, 400, "transfer_encoding", "HTTP/1.0 has no Transfer-Encoding");
    if (h->is_chunked && h->has_length)
        return http_fault_set(f, 400, "transfer_encoding",
                              "Transfer-Encoding and Content-Length exclude each other");
    if (h->length > limits->body_bytes)
        return http_fault_set(f, 413, "max_body", "the body has %llu bytes; at most %llu are read",
                              (unsigned long long)h->length,
                              (unsigned long long)limits->body_bytes);
    if (h->method == HTTP_POST && !h->is_chunked && !h->has_length)
        return http_fault_set(f, 411, "length", "POST needs Content-Length or chunks");
    if (h->method != HTTP_POST && h->method != HTTP_OTHER && has_body)
        return http_fault_set(f, 400, "body", "GET, HEAD, DELETE and OPTIONS have no body");
    return 0;
}

/* ---- bytes */

static int
bad_line_end(struct http_fault *f)
{
    return http_fault_set(f, 400, "line_end", "a line of the head does not end with CR LF");
}

static int
start_method(struct http_head *h, uint8_t c, uint32_t at, struct http_fault *f)
{
    if (c == 0x16)
        return http_fault_set(f, 400, "request_line", "this port speaks HTTP without TLS");
    if (!is(c, TOKEN) || (c >= 'a' && c <= 'z'))
        return http_fault_set(f, 400, "request_line",
                              "the request line does not begin with a "
                              "method in capital letters");
    h->method_at = at;
    h->state = HEAD_METHOD;
    return 0;
}

static int
request_line_byte(struct http_head *h, char *p, uint32_t at, const struct http_limits *limits,
                  struct http_fault *f)
{
    uint8_t c = (uint8_t)p[at];

    switch (h->state) {
    case HEAD_METHOD:
        if (c == ' ') {
            h->state = HEAD_TARGET;
            h->target_at = at + 1;
        } else if (!is(c, TOKEN) || (c >= 'a' && c <= 'z') || at - h->method_at >= MAX_METHOD)
            return http_fault_set(f, 400, "request_line",
                                  "the method is not 1 to 32 capital letters and a space");
        return 0;
    case HEAD_TARGET:
        if (c == ' ' && at > h->target_at) {
            h->target_n = at - h->target_at;
            h->state = HEAD_VERSION;
            h->version_at = at + 1;
            return 0;
        }
        if (c == '\r' || c == '\n')
            return http_fault_set(f, 400, "request_line",
                                  "the request line is not METHOD TARGET HTTP/1.1");
        if (!is(c, TARGET))
            return http_fault_set(f, 400, "target", "the target has the byte 0x%02x", c);
        if (at - h->target_at >= limits->target_bytes)
            return http_fault_set(f, 414, "max_url", "the target is longer than %u bytes",
                                  limits->target_bytes);
        return 0;
    default: /* HEAD_VERSION */
        if (c == '\r') {
            h->state = HEAD_REQUEST_LF;
            return validate_request_line(h, p, at, f);
        }
        if (!is(c, TARGET))
            return http_fault_set(f, 400, c == '\n' ? "line_end" : "request_line",
                                  "the request line is not METHOD TARGET HTTP/1.1 and CR LF");
        return 0;
    }
}

static int
field_byte(struct http_head *h, const char *p, uint32_t at, const struct http_limits *limits,
           struct http_fault *f)
{
    uint8_t c = (uint8_t)p[at];

    switch (h->state) {
    case HEAD_LINE:
        if (c == '\r') {
            h->state = HEAD_END_LF;
            return 0;
        }
        if (++h->n_fields > limits->headers)
            return http_fault_set(f, 431, "max_headers", "the head has more than %u fields",
                                  limits->headers);
        h->name_at = at;
        h->state = HEAD_NAME;
        /* fall through */
    case HEAD_NAME:
        if (c == ':' && at > h->name_at) {
            h->name_n = at - h->name_at;
            h->value_at = at + 1;
            h->state = HEAD_VALUE;
        } else if (!is(c, TOKEN))
            return http_fault_set(f, 400, c == '\n' ? "line_end" : "header_name",
                                  "a header line does not begin with a name and ':'; white space "
                                  "before the name or the ':' is refused");
        return 0;
    default: /* HEAD_VALUE */
        if (c == '\r') {
            h->state = HEAD_VALUE_LF;
            return validate_field(h, p, at, f);
        }
        if (c == '\n') return bad_line_end(f);
        if (!is(c, VALUE))
            return http_fault_set(f, 400, "header_value", "a header value has the byte 0x%02x", c);
        return 0;
    }
}

/* Validates the byte at offset at. 1: it completes the head. */
static int
head_byte(struct http_head *h, char *p, uint32_t at, const struct http_limits *limits,
          struct http_fault *f)
{
    char c = p[at];

    switch (h->state) {
    case HEAD_START:
        if (c == '\r') {
            h->state = HEAD_EMPTY_LF;
            return 0;
        }
        return start_method(h, (uint8_t)c, at, f);
    case HEAD_START_2:
        return start_method(h, (uint8_t)c, at, f);
    case HEAD_METHOD:
    case HEAD_TARGET:
    case HEAD_VERSION:
        return request_line_byte(h, p, at, limits, f);
    case HEAD_LINE:
    case HEAD_NAME:
    case HEAD_VALUE:
        return field_byte(h, p, at, limits, f);
    default: /* the byte after a CR */
        if (c != '\n') return bad_line_end(f);
        if (h->state == HEAD_END_LF) {
            TRY(validate_head(h, limits, f));
            h->state = HEAD_DONE;
            h->n = at + 1;
            return 1;
        }
        if (h->state == HEAD_REQUEST_LF) h->fields_at = at + 1;
        h->state = h->state == HEAD_EMPTY_LF ? HEAD_START_2 : HEAD_LINE;
        return 0;
    }
}

int
head_parse(struct http_head *h, char *p, uint32_t n, const struct http_limits *limits,
           struct http_fault *f)
{
    int r = 0;

    while (r == 0 && h->at < n) {
        if (h->at >= limits->header_bytes)
            return http_fault_set(f, 431, "max_header", "the head is longer than %u bytes",
                                  limits->header_bytes);
        r = head_byte(h, p, h->at++, limits, f);
    }
    return r;
}

struct http_text
head_field(const struct http_head *h, const char *p, const char *name, uint32_t nth)
{
    const char *line = p + h->fields_at, *end = p + h->n - 2;

    while (line < end) {
        const char *stop = memchr(line, '\r', (size_t)(end - line)), *colon;
        const char *value;
        uint32_t n;

        colon = memchr(line, ':', (size_t)(stop - line));
        value = colon + 1;
        n = (uint32_t)(stop - value);
        if (text_is(line, (uint32_t)(colon - line), name) && nth-- == 0) {
            trim(&value, &n);
            return (struct http_text){ value, n };
        }
        line = stop + 2;
    }
    return (struct http_text){ NULL, 0 };
}

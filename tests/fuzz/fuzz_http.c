/* fuzz_http.c - a connection's bytes in pieces against a reference that reads all of them at once.
 *
 * Input is a list of requests in a short form: pieces of heads, fields, bodies and chunks, valid
 * and invalid ones, and bytes as they are. Each part may be corrupted. Then follow the lengths of
 * the pieces in which the bytes arrive. The reference is written from gateway/http/README.md alone:
 * it scans whole lines and looks at all fields of a name.
 */
#include "tests/fuzz/fuzz.h"

#include "gateway/http/body.h"

#include <strings.h>

enum { STREAM_BYTES = 1 << 13, MAX_REQUESTS = 256 };

static const struct http_limits limits = {
    .header_bytes = 400, .headers = 7, .target_bytes = 24, .body_bytes = 64
};

struct request {
    enum http_method method;
    uint64_t path, query, field, body; /* hashes */
    uint64_t body_n;
    bool keep_alive, expects;
};

static uint8_t stream[STREAM_BYTES];
static uint32_t n_stream;
static struct request want[MAX_REQUESTS], got[MAX_REQUESTS];
static uint32_t n_want, n_got;
uint64_t fuzz_operations;

static uint64_t
hash(const void *p, size_t n)
{
    uint64_t h = 7 + n;

    for (size_t i = 0; i < n; i++) h = h * 31 + ((const uint8_t *)p)[i];
    return h;
}

/* ---- the reference. A function returns the position behind what it read, or one of: */

enum { MORE = -1, REFUSED = -1000 }; /* REFUSED - status */

struct ref_field {
    const char *name, *value;
    int name_n, value_n;
};

struct ref_request {
    const char *p;
    int n;
    struct ref_field field[16];
    int n_fields;
    char path[512];
    int path_n, query_at, query_n;
    bool is_1_0, keep_alive, expects, chunked;
    int64_t length; /* -1: none */
    enum http_method method;
};

static bool
in_set(uint8_t c, char set)
{
    bool tchar = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                 (c && strchr("!#$%&'*+-.^_`|~", c));

    return set == 't'   ? tchar
           : set == 'm' ? tchar && !(c >= 'a' && c <= 'z')
           : set == 'u' ? c >= 0x21 && c <= 0x7e
                        : c == '\t' || (c >= 0x20 && c != 0x7f);
}

static int
span(const struct ref_request *q, int at, char set)
{
    int i = at;

    while (i < q->n && in_set((uint8_t)q->p[i], set)) i++;
    return i - at;
}

/* Returns the position behind one byte that has to be there. */
static int
one(const struct ref_request *q, int at, char c)
{
    return at == q->n ? MORE : q->p[at] == c ? at + 1 : REFUSED - 400;
}

static int
ref_hex(int c)
{
    const char *digits = "0123456789abcdef", *d;

    if (c >= 'A' && c <= 'F') c += 32;
    d = c > 0 ? strchr(digits, c) : NULL;
    return d ? (int)(d - digits) : -1;
}

static int
ref_target(struct ref_request *q, const char *t, int n)
{
    const char *end = t + n, *path = t, *mark;

    for (int i = 0; i < n; i++) {
        if (t[i] != '%') continue;
        if (i + 2 >= n || ref_hex(t[i + 1]) < 0 || ref_hex(t[i + 2]) < 0) return REFUSED - 400;
        if (t[i + 1] == '0' && t[i + 2] == '0') return REFUSED - 400;
    }
    if (n == 1 && *t == '*') {
        q->path[0] = '*';
        q->path_n = 1;
        return q->method == HTTP_OPTIONS ? 0 : REFUSED - 400;
    }
    if (*t != '/') {
        if (n > 7 && !strncasecmp(t, "http://", 7))
            path = t + 7;
        else if (n > 8 && !strncasecmp(t, "https://", 8))
            path = t + 8;
        else
            return REFUSED - 400;
        if (path == end || *path == '/' || *path == '?') return REFUSED - 400;
        for (; path < end && *path != '/' && *path != '?'; path++)
            if (*path == '@') return REFUSED - 400;
    }
    if (memchr(path, '#', (size_t)(end - path))) return REFUSED - 400;
    mark = memchr(path, '?', (size_t)(end - path));
    if (mark) {
        q->query_at = (int)(mark + 1 - q->p);
        q->query_n = (int)(end - mark - 1);
        end = mark;
    }
    if (path == end) q->path[q->path_n++] = '/';
    while (path < end) {
        bool slash = end - path >= 3 && (!strncasecmp(path, "%2f", 3));

        if (*path == '%' && !slash) {
            q->path[q->path_n++] = (char)(ref_hex(path[1]) * 16 + ref_hex(path[2]));
            path += 3;
        } else
            q->path[q->path_n++] = *path++;
    }
    if (q->path_n > 1 && q->path[q->path_n - 1] == '/') q->path_n--;
    return 0;
}

static int
ref_request_line(struct ref_request *q, int at)
{
    static const char *const names[] = { "GET", "HEAD", "POST", "DELETE", "OPTIONS" };
    int method = span(q, at, 'm'), target, target_n, version, r;

    if (method > 32) return REFUSED - 400;
    if (method == 0 && at < q->n) return REFUSED - 400;
    r = one(q, at + method, ' ');
    if (r < 0) return r;
    target = r;
    target_n = span(q, target, 'u');
    if (target_n > (int)limits.target_bytes) return REFUSED - 414;
    if (target_n == 0 && target < q->n) return REFUSED - 400;
    r = one(q, target + target_n, ' ');
    if (r < 0) return r;
    version = r;
    r = one(q, version + span(q, version, 'u'), '\r');
    if (r < 0) return r;
    if (r - 1 - version != 8 || strncmp(q->p + version, "HTTP/", 5) || q->p[version + 6] != '.' ||
        !strchr("0123456789", q->p[version + 5]) || !strchr("0123456789", q->p[version + 7]))
        return REFUSED - 400;
    if (strncmp(q->p + version, "HTTP/1.1", 8) && strncmp(q->p + version, "HTTP/1.0", 8))
        return REFUSED - 505;
    q->is_1_0 = q->p[version + 7] == '0';
    q->method = HTTP_OTHER;
    for (int i = 0; i < 5; i++)
        if (method == (int)strlen(names[i]) && !strncmp(q->p + at, names[i], (size_t)method))
            q->method = (enum http_method)i;
    if ((method == 7 && !strncmp(q->p + at, "CONNECT", 7)) ||
        (method == 5 && !strncmp(q->p + at, "TRACE", 5)))
        return REFUSED - 405;
    target = ref_target(q, q->p + target, target_n);
    return target < 0 ? target : one(q, r, '\n');
}

static int
ref_count(const struct ref_request *q, const char *name, const struct ref_field **last)
{
    int n = 0;

    for (int i = 0; i < q->n_fields; i++)
        if (q->field[i].name_n == (int)strlen(name) &&
            !strncasecmp(q->field[i].name, name, strlen(name))) {
            *last = &q->field[i];
            n++;
        }
    return n;
}

static bool
value_is(const struct ref_field *f, const char *text)
{
    return f->value_n == (int)strlen(text) && !strncasecmp(f->value, text, strlen(text));
}

/* The fields so far are those of q; what is wrong with them? */
static int
ref_fields(struct ref_request *q)
{
    const struct ref_field *f = NULL;

    if (ref_count(q, "Host", &f) > 1) return REFUSED - 400;
    if (ref_count(q, "Content-Length", &f)) {
        if (ref_count(q, "Content-Length", &f) > 1 || f->value_n < 1 || f->value_n > 18)
            return REFUSED - 400;
        q->length = 0;
        for (int i = 0; i < f->value_n; i++) {
            if (!strchr("0123456789", f->value[i])) return REFUSED - 400;
            q->length = q->length * 10 + f->value[i] - '0';
        }
    }
    if (ref_count(q, "Transfer-Encoding", &f)) {
        if (ref_count(q, "Transfer-Encoding", &f) > 1) return REFUSED - 400;
        if (!value_is(f, "chunked")) return REFUSED - 501;
        q->chunked = true;
    }
    if (ref_count(q, "Expect", &f)) {
        if (!value_is(f, "100-continue")) return REFUSED - 417;
        q->expects = !q->is_1_0;
    }
    return 0;
}

/* Whether a list of Connection has a word. */
static bool
ref_connection(const struct ref_request *q, const char *word)
{
    for (int i = 0; i < q->n_fields; i++) {
        const struct ref_field *f = &q->field[i];
        char list[512], *at = list, *item;

        if (f->name_n != 10 || strncasecmp(f->name, "Connection", 10)) continue;
        memcpy(list, f->value, (size_t)f->value_n);
        list[f->value_n] = 0;
        while ((item = strsep(&at, ","))) {
            item += strspn(item, " \t");
            item[strcspn(item, " \t")] = item[strcspn(item, " \t")] &&
                                                 strspn(item + strcspn(item, " \t"), " \t") !=
                                                     strlen(item + strcspn(item, " \t"))
                                             ? 'x'
                                             : 0;
            if (!strcasecmp(item, word)) return true;
        }
    }
    return false;
}

static int
ref_head_end(struct ref_request *q)
{
    const struct ref_field *f;
    bool body = q->chunked || q->length > 0;

    q->keep_alive = !ref_connection(q, "close") && (!q->is_1_0 || ref_connection(q, "keep-alive"));
    if (!q->is_1_0 && ref_count(q, "Host", &f) != 1) return REFUSED - 400;
    if (q->chunked && (q->is_1_0 || q->length >= 0)) return REFUSED - 400;
    if (q->length > (int64_t)limits.body_bytes) return REFUSED - 413;
    if (q->method == HTTP_POST && !q->chunked && q->length < 0) return REFUSED - 411;
    if (body && q->method != HTTP_POST && q->method != HTTP_OTHER) return REFUSED - 400;
    return 0;
}

static int
ref_head(struct ref_request *q)
{
    int at = 0, r;

    q->length = -1;
    if (q->n && q->p[0] == '\r') {
        at = one(q, 1, '\n');
        if (at < 0) return at;
    }
    at = ref_request_line(q, at);
    while (at >= 0) {
        struct ref_field *f = &q->field[q->n_fields];

        if (at < q->n && q->p[at] == '\r') {
            r = one(q, at + 1, '\n');
            if (r < 0) return r;
            at = ref_head_end(q);
            return at < 0 ? at : r;
        }
        if (at < q->n && q->n_fields == (int)limits.headers) return REFUSED - 431;
        f->name = q->p + at;
        f->name_n = span(q, at, 't');
        if (f->name_n == 0 && at < q->n) return REFUSED - 400;
        at = one(q, at + f->name_n, ':');
        if (at < 0) return at;
        f->value = q->p + at;
        f->value_n = span(q, at, 'v');
        r = one(q, at + f->value_n, '\r');
        if (r < 0) return r;
        for (; f->value_n && strchr(" \t", *f->value); f->value++) f->value_n--;
        while (f->value_n && strchr(" \t", f->value[f->value_n - 1])) f->value_n--;
        q->n_fields++;
        at = ref_fields(q);
        if (at < 0) return at;
        at = one(q, r, '\n');
    }
    return at;
}

/* Reads chunks from at; the body goes to body. */
static int
ref_chunks(const struct ref_request *q, int at, uint8_t *body, uint64_t *n)
{
    for (*n = 0;;) {
        uint64_t size = 0;
        int digits = 0;

        while (at + digits < q->n && ref_hex(q->p[at + digits]) >= 0)
            size = size * 16 + (uint64_t)ref_hex(q->p[at + digits++]);
        if (digits > 8 || (digits == 0 && at < q->n)) return REFUSED - 400;
        at = one(q, at + digits, '\r');
        if (at >= 0) at = one(q, at, '\n');
        if (at < 0) return at;
        if (*n + size > limits.body_bytes) return REFUSED - 413;
        if ((uint64_t)(q->n - at) < size) return MORE;
        memcpy(body + *n, q->p + at, size);
        *n += size;
        at = one(q, at + (int)size, '\r');
        if (at >= 0) at = one(q, at, '\n');
        if (at < 0 || !size) return at;
    }
}

/* Reads one request; appends it to want[]. */
static int
ref_one(const uint8_t *p, int n)
{
    struct ref_request head = { .p = (const char *)p, .n = MIN(n, (int)limits.header_bytes) };
    struct request *w = &want[n_want];
    const struct ref_field *f = NULL;
    uint8_t body[STREAM_BYTES];
    int at = ref_head(&head);

    if (at == MORE && n > (int)limits.header_bytes) return REFUSED - 431;
    if (at < 0) return at;
    head.n = n;
    *w = (struct request){
        .method = head.method,
        .path = hash(head.path, (size_t)head.path_n),
        .query = hash(head.p + head.query_at, (size_t)head.query_n),
        .keep_alive = head.keep_alive,
        .expects = head.expects,
    };
    if (ref_count(&head, "X", &f)) w->field = hash(f->value, (size_t)f->value_n);
    if (head.chunked)
        at = ref_chunks(&head, at, body, &w->body_n);
    else if (head.length > 0) {
        if (n - at < head.length) return MORE;
        w->body_n = (uint64_t)head.length;
        memcpy(body, p + at, w->body_n);
        at += (int)w->body_n;
    }
    if (at < 0) return at;
    w->body = hash(body, w->body_n);
    n_want++;
    return at;
}

/* ---- the tested code, called as conn.c calls it */

struct reader {
    struct http_head h;
    struct http_body b;
    bool in_body;
    char *head, *in;
    size_t n, raw_at;
};

/* Reads what is in the buffer. Returns the status of a refusal; 0: more; 1: a request. */
static int
read_one(struct reader *s)
{
    struct http_fault f;
    struct http_text t, last = { NULL, 0 };
    size_t used, n;
    int r;

    if (!s->in_body) {
        r = head_parse(&s->h, s->in, (uint32_t)s->n, &limits, &f);
        if (r <= 0) return r ? f.status : 0;
        check(s->h.n <= s->n);
        s->head = malloc(s->h.n);
        memcpy(s->head, s->in, s->h.n);
        s->n -= s->h.n;
        memmove(s->in, s->in + s->h.n, s->n);
        body_init(&s->b, &s->h);
        s->in_body = true;
        s->raw_at = 0;
    }
    n = s->b.n;
    r = body_decode(&s->b, s->in + s->raw_at, s->n - s->raw_at, &used, s->in + n, &n, &limits, &f);
    s->raw_at += used;
    check(s->raw_at <= s->n && s->b.n <= s->raw_at);
    if (r == 0) {
        check(s->raw_at == s->n);
        s->n = s->raw_at = s->b.n;
    }
    if (r <= 0) return r ? f.status : 0;
    for (uint32_t i = 0; (t = head_field(&s->h, s->head, "x", i)).p; i++) last = t;
    got[n_got++] = (struct request){
        .method = s->h.method,
        .path = hash(s->head + s->h.path_at, s->h.path_n),
        .query = hash(s->head + s->h.query_at, s->h.query_n),
        .field = last.p ? hash(last.p, last.n) : 0,
        .body = hash(s->in, s->b.n),
        .body_n = s->b.n,
        .keep_alive = s->h.keep_alive,
        .expects = s->h.expects_continue,
    };
    free(s->head);
    s->head = NULL;
    s->n -= s->raw_at;
    memmove(s->in, s->in + s->raw_at, s->n);
    s->in_body = false;
    head_init(&s->h);
    return 1;
}

/* Returns the status of a refusal, or 0. */
static int
feed(struct in *in)
{
    struct reader s = { .n = 0 };
    uint32_t at = 0;
    int r = 0;

    head_init(&s.h);
    while (at < n_stream && r < 2) {
        uint32_t len = byte(in), n = MIN(len < 128 ? 1 + len % 9 : 1 + len * 4, n_stream - at);
        char *larger = malloc(s.n + n); /* its end is the end */

        if (s.n) memcpy(larger, s.in, s.n);
        memcpy(larger + s.n, stream + at, n);
        free(s.in);
        s.in = larger;
        s.n += n;
        at += n;
        while ((r = read_one(&s)) == 1)
            if (!got[n_got - 1].keep_alive) at = n_stream, s.n = 0;
    }
    free(s.head);
    free(s.in);
    return r;
}

/* ---- what is sent */

static void
put(const void *p, size_t n)
{
    n = MIN(n, (size_t)(STREAM_BYTES - n_stream));
    memcpy(stream + n_stream, p, n);
    n_stream += (uint32_t)n;
}

static void
put_text(const char *text)
{
    put(text, strlen(text));
}

/* The first entries are the usual ones. */
static void
put_from(const char *const *table, uint32_t n, uint32_t choice)
{
    put_text(table[choice < 192 ? choice % MIN(n, 4u) : choice % n]);
}

static void
put_request_line(struct in *in)
{
    /* clang-format off */
    static const char *const methods[] = {
        "GET", "POST", "POST", "OPTIONS", "HEAD", "DELETE", "PUT", "CONNECT", "TRACE",
        "ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEF", "get", "G@T", "", "PRI",
        "ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFG",
    };
    /* clang-format on */
    /* clang-format off */
    static const char *const targets[] = {
        "/", "/v1/models", "/a/?b=1", "/%61%2F%2fb/", "*", "http://h/x", "HTTPS://h",
        "http://h?q", "http://u@h/", "/%", "/%4", "/%00", "/a?%zz", "/a#b", "a", "/%ff%7e", "//",
        "http:///", "/12345678901234567890123", "/123456789012345678901234", "/a?", "http://h#",
        "", "http://", "/?a?b", "/%2e%2E/", "/%0a", "h:443",
    };
    /* clang-format on */
    /* clang-format off */
    static const char *const versions[] = {
        "HTTP/1.1\r\n", "HTTP/1.1\r\n", "HTTP/1.1\r\n", "HTTP/1.0\r\n", "HTTP/1.2\r\n",
        "HTTP/2.0\r\n", "HTTP/0.9\r\n", "HTTP/11\r\n", "http/1.1\r\n", "HTTP/1.1\n",
        "HTTP/1.1 \r\n", "HTTP/1.10\r\n", "\r\n", "HTTP/a.1\r\n", "HTTP/1.1\r\r\n",
    };
    /* clang-format on */

    put_from(methods, ARRAY_LEN(methods), byte(in));
    put_text(" ");
    put_from(targets, ARRAY_LEN(targets), byte(in));
    put_text(" ");
    put_from(versions, ARRAY_LEN(versions), byte(in));
}

/* A field that brings the head to its limit, or nearly: its fields begin at start. */
static void
put_filler(uint32_t choice, uint32_t start)
{
    uint32_t n = limits.header_bytes - 40 + choice % 40;

    put_text("Y: ");
    while (n_stream - start < n && n_stream < STREAM_BYTES) put_text("y");
    put_text("\r\n");
}

static void
put_fields(struct in *in)
{
    /* clang-format off */
    static const char *const fields[] = {
        "Host: a\r\n", "Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n", "X: y z \r\n",
        "x:\r\n", "Connection: close\r\n", "connection: a, Keep-Alive ,\r\n",
        "Connection: close d, keep-alive\r\n", "Expect: 100-continue\r\n", "Expect: 1\r\n",
        "Content-Length: 0\r\n", "content-length: 64\r\n", "Content-Length: 65\r\n",
        "Content-Length: 000000000000000003\r\n", "Content-Length: 0000000000000000003\r\n",
        "Content-Length: 3, 3\r\n", "Content-Length: +3\r\n", "Content-Length: 3 3\r\n",
        "Content-Length:\r\n", "Transfer-Encoding: gzip, chunked\r\n",
        "transfer-encoding:\tCHUNKED\t\r\n", "Transfer-Encoding : chunked\r\n", "HOST:b\r\n",
        " X: a\r\n", ": a\r\n", "X\r\n", "X: \x01\r\n", "X: \x7f\r\n", "X: \xff\t\r\n", "X: a\n",
        "X: a\rb\r\n",
        "X: 1234567890123456789012345678901234567890123456789012345678901234567890" "1234567890\r\n",
        "Transfer-: chunked\r\n Encoding\r\n", "X: a\r\n", "Xx: a\r\n", "X@: a\r\n",
    };
    /* clang-format on */
    uint32_t n = byte(in) % 10, start = n_stream;

    while (n--) put_from(fields, ARRAY_LEN(fields), byte(in));
    if (byte(in) % 8 == 7) put_filler(byte(in), start);
    put_text("\r\n");
}

static void
put_body(struct in *in)
{
    /* clang-format off */
    static const char *const parts[] = {
        "abc", "3\r\nabc\r\n", "0\r\n\r\n", "0\r\n\r\n", "A\r\n0123456789\r\n",
        "00000001\r\na\r\n", "000000001\r\na\r\n", "1;a\r\nb\r\n", "0x1\r\na\r\n", "1\na\r\n",
        "1\r\nab\r\n", "1\r\na\n", "0\r\nA: b\r\n\r\n",
        "40\r\n0123456789012345678901234567890123456789012345678901234567890123\r\n", "41\r\n",
        "ffffffff\r\n", "g\r\n", "\r\n", "-1\r\n", " 1\r\n", "0\r\n\n", "0\r\n\r", "1\rX",
        "1\r\na\rX", "0\r\rX",
        "3e\r\n" "01234567890123456789012345678901234567890123456789012345678901\r\n",
    };
    /* clang-format on */

    for (uint32_t n = byte(in) % 5; n--;) put_from(parts, ARRAY_LEN(parts), byte(in));
}

static void
put_any(struct in *in)
{
    uint32_t op = byte(in), before = n_stream;

    if (op & 64) put_text("\r\n");
    if (op & 32) put_text("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    if (op & 16)
        put_text("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    else if (op & 1)
        put_request_line(in);
    if (op & 2 && !(op & 16)) put_fields(in);
    if (op & 20) put_body(in);
    if (op & 8)
        for (uint32_t n = byte(in) % 32; n--;) {
            uint8_t c = (uint8_t)byte(in);

            put(&c, 1);
        }
    if (op & 128 && n_stream > before)
        stream[before + byte(in) % (n_stream - before)] = (uint8_t)byte(in);
}

/* Arrivals in each window of HTTP_RATE_WINDOW, against a list of them. */
static void
check_rate(struct in *in)
{
    struct http_rate rate = { .since = 0 };
    nsec now = 0, since = 0;
    uint64_t sum = 0;

    for (uint32_t i = byte(in) % 16; i--;) {
        uint32_t n = byte(in) * 16;
        bool over, fast;

        now += byte(in) * (HTTP_RATE_WINDOW / 64);
        over = now >= since + HTTP_RATE_WINDOW;
        fast = body_rate_count(&rate, now, n, 100);
        check(fast == (!over || sum >= 1000));
        if (over) since = now, sum = 0;
        sum += n;
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct in in = { data, data + size };
    uint32_t parts = byte(&in) % 16, at = 0;
    int r = 0, status;

    fuzz_operations++;
    n_stream = n_want = n_got = 0;
    while (parts-- && n_stream < STREAM_BYTES) put_any(&in);
    while (at < n_stream && n_want < MAX_REQUESTS) {
        r = ref_one(stream + at, (int)(n_stream - at));
        if (r < 0) break;
        at += (uint32_t)r;
        if (!want[n_want - 1].keep_alive) break;
    }
    status = r <= REFUSED ? REFUSED - r : 0;
    check(feed(&in) == status);
    check(n_got == n_want);
    for (uint32_t i = 0; i < n_want; i++)
        check(got[i].method == want[i].method && got[i].path == want[i].path &&
              got[i].query == want[i].query && got[i].field == want[i].field &&
              got[i].body == want[i].body && got[i].body_n == want[i].body_n &&
              got[i].keep_alive == want[i].keep_alive && got[i].expects == want[i].expects);
    check_rate(&in);
    return 0;
}

/* http_reader.c - prints what the HTTP parser reads, for h11_compare.py.
 *
 * Standard input: streams, each its length as a decimal line and then its bytes. Output: for each
 * stream one line of JSON, {"status": S, "requests": [{...}]}; status 0: no refusal. */
#include "gateway/http/body.h"

#include <stdio.h>

static const struct http_limits limits = {
    .header_bytes = 16 << 10, .headers = 100, .target_bytes = 8 << 10, .body_bytes = 4 << 20
};

/* Bytes as a JSON string, one character each. */
static void
print_bytes(const char *p, size_t n)
{
    putchar('"');
    for (size_t i = 0; i < n; i++) printf("\\u00%02x", (uint8_t)p[i]);
    putchar('"');
}

/* Prints [name, value] of each field; the value is what head_field() returns. */
static void
print_fields(const struct http_head *h, const char *p)
{
    const char *end = p + h->n - 2;

    printf("[");
    for (const char *line = p + h->fields_at; line < end; line = strstr(line, "\r\n") + 2) {
        char name[1024];
        size_t n = MIN((size_t)(strchr(line, ':') - line), sizeof name - 1);
        uint32_t nth = 0;
        struct http_text t;

        memcpy(name, line, n);
        name[n] = 0;
        /* the number of earlier fields of this name: values lie in the order of the fields */
        while ((t = head_field(h, p, name, nth)).p && t.p < line) nth++;
        printf("%s[", line == p + h->fields_at ? "" : ", ");
        print_bytes(name, n);
        printf(", ");
        print_bytes(t.p, t.n);
        printf("]");
    }
    printf("]");
}

/* Reads one request of p[0 .. n). Returns its length; 0: there is none; else minus a status. */
static long
print_one(char *p, size_t n, bool first)
{
    struct http_head h;
    struct http_body b;
    struct http_fault f;
    char *body = malloc(n + 1);
    size_t used, n_body;
    int r;

    head_init(&h);
    r = head_parse(&h, p, (uint32_t)n, &limits, &f);
    if (r == 1) {
        body_init(&b, &h);
        r = body_decode(&b, p + h.n, n - h.n, &used, body, &n_body, &limits, &f);
    }
    if (r == 1) {
        printf("%s{\"method\": %d, \"path\": ", first ? "" : ", ", (int)h.method);
        print_bytes(p + h.path_at, h.path_n);
        printf(", \"query\": ");
        print_bytes(p + h.query_at, h.query_n);
        printf(", \"keep_alive\": %s, \"fields\": ", h.keep_alive ? "true" : "false");
        print_fields(&h, p);
        printf(", \"body\": ");
        print_bytes(body, n_body);
        printf("}");
    }
    free(body);
    return r == 1 ? (h.keep_alive ? (long)(h.n + used) : (long)n) : r < 0 ? -f.status : 0;
}

int
main(void)
{
    char line[32];

    while (fgets(line, sizeof line, stdin)) {
        size_t n = (size_t)atol(line), at = 0;
        char *p = malloc(n + 1);
        long r = 1;

        if (fread(p, 1, n, stdin) != n) return 1;
        p[n] = 0;
        printf("{\"requests\": [");
        while (at < n && (r = print_one(p + at, n - at, at == 0)) > 0) at += (size_t)r;
        printf("], \"status\": %ld}\n", r < 0 ? -r : 0);
        fflush(stdout);
        free(p);
    }
    return 0;
}

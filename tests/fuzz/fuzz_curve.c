/* fuzz_curve.c - a keys file against a reference written from curve.h: lines, words, and the values
 * that each may have. */
#include "tests/fuzz/fuzz.h"

#include "wire/curve.h"

/* What the ref knows so far. */
static struct {
    char secret[41], server[41], key[CURVE_MAX_PEERS][41], name[CURVE_MAX_PEERS][33];
    uint64_t inflight[CURVE_MAX_PEERS], tokens[CURVE_MAX_PEERS];
    uint32_t n;
} ref;

static bool
key_ok(const char *s)
{
    static const char digits[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
    uint32_t i, k;

    if (strlen(s) != 40) return false;
    for (i = 0; i < 8; i++) {
        double v = 0;

        for (k = 0; k < 5; k++) {
            const char *at = strchr(digits, s[5 * i + k]);

            if (!at) return false;
            v = v * 85 + (double)(at - digits);
        }
        if (v >= 4294967296.0) return false;
    }
    return true;
}

static bool
limit(const char *w)
{
    const char *eq = strchr(w, '=');
    bool inflight = !strncmp(w, "max_inflight=", 13);
    uint32_t i;
    double v = 0;

    if (!inflight && strncmp(w, "max_tokens=", 11)) return false;
    for (i = 1; eq[i]; i++) {
        if (eq[i] < '0' || eq[i] > '9' || v > 4294967295.0) return false;
        v = v * 10 + (eq[i] - '0');
    }
    if (v < 1 || (inflight && v > 4294967295.0)) return false;
    *(inflight ? &ref.inflight[ref.n] : &ref.tokens[ref.n]) = (uint64_t)v;
    return true;
}

static bool
peer(char **w, uint32_t n)
{
    uint32_t i;

    if (n < 3 || !key_ok(w[1]) || strlen(w[2]) > 32 || ref.n == CURVE_MAX_PEERS) return false;
    for (i = 0; w[2][i]; i++)
        if (w[2][i] < 33 || w[2][i] > 126) return false;
    ref.inflight[ref.n] = ref.tokens[ref.n] = 0;
    for (i = 3; i < n; i++)
        if (!limit(w[i])) return false;
    for (i = 0; i < ref.n; i++)
        if (!strcmp(ref.key[i], w[1]) || !strcmp(ref.name[i], w[2])) return false;
    strcpy(ref.key[ref.n], w[1]);
    strcpy(ref.name[ref.n++], w[2]);
    return true;
}

/* One line without its end; a NUL in it is a character like others, which no word may have. */
static bool
line(const char *p, size_t len)
{
    char *copy = malloc(len + 1), *w[4096], *at, *rest;
    uint32_t n = 0;
    bool ok = !memchr(p, 0, len), is_secret;

    memcpy(copy, p, len);
    copy[len] = '\0';
    for (at = strtok_r(copy, " \t\r", &rest); at && *at != '#' && n < 4096;
         at = strtok_r(NULL, " \t\r", &rest))
        w[n++] = at;
    if (ok && n) {
        is_secret = !strcmp(w[0], "secret");
        if (!strcmp(w[0], "client")) {
            ok = peer(w, n);
        } else if (is_secret || !strcmp(w[0], "server")) {
            char *to = is_secret ? ref.secret : ref.server;

            ok = n == 2 && key_ok(w[1]) && !*to;
            if (ok) strcpy(to, w[1]);
        } else {
            ok = false;
        }
    }
    free(copy);
    return ok;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct curve_file f;
    const char *p = (const char *)data, *end = p + size;
    struct err e = { 0 };
    bool ok = true, nul = memchr(data, 0, size) != NULL;
    uint32_t i;
    int r = curve_parse(&f, p, size, &e);

    check(r == 0 || (r == -EINVAL && !strncmp(e.text, "line ", 5)));
    if (nul) return 0; /* in a comment it is nothing, elsewhere wrong: the ref cannot say */
    memset(&ref, 0, sizeof ref);
    while (ok && p < end) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));

        ok = line(p, (size_t)((eol ? eol : end) - p));
        p = eol ? eol + 1 : end;
    }
    check(ok == (r == 0));
    if (!ok) return 0;
    check(f.n_peers == ref.n && !strcmp(f.secret, ref.secret) && !strcmp(f.server, ref.server));
    for (i = 0; i < f.n_peers; i++) {
        check(!strcmp(f.peer[i].key, ref.key[i]) && !strcmp(f.peer[i].name, ref.name[i]));
        check(f.peer[i].max_inflight == ref.inflight[i]);
        check(f.peer[i].max_tokens == ref.tokens[i]);
        check(curve_find(&f, ref.key[i]) == &f.peer[i]);
    }
    return 0;
}

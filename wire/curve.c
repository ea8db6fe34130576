/* curve.c - parses the key files of tcp connections: a key, and a client's limits, per line. */
#include "wire/curve.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static const char ALPHABET[] =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

bool
curve_key_fits(const char *s, size_t n)
{
    uint64_t v = 0;

    if (n != CURVE_KEY) return false;
    for (size_t i = 0; i < n; i++) {
        const char *at = s[i] ? strchr(ALPHABET, s[i]) : NULL;

        if (!at) return false;
        v = v * 85 + (uint64_t)(at - ALPHABET);
        if (i % 5 < 4) continue;
        if (v > UINT32_MAX) return false;
        v = 0;
    }
    return true;
}

const struct curve_peer *
curve_find(const struct curve_file *f, const char *key)
{
    for (uint32_t i = 0; i < f->n_peers; i++)
        if (!strcmp(f->peer[i].key, key)) return &f->peer[i];
    return NULL;
}

/* ---- words of a line of the key file */

struct line {
    const char *p, *end;
    uint32_t number;
    struct err *e;
};

struct word {
    const char *p;
    size_t n;
};

static bool
is_separator(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Returns the next word of l; n 0: the line has no more words. A # at the start of a word starts a
 * comment. No Z85 key starts with #: its first 5 characters would exceed 32 bits. */
static struct word
next(struct line *l)
{
    struct word w;

    while (l->p < l->end && is_separator(*l->p)) l->p++;
    if (l->p < l->end && *l->p == '#') l->p = l->end;
    w.p = l->p;
    while (l->p < l->end && !is_separator(*l->p)) l->p++;
    w.n = (size_t)(l->p - w.p);
    return w;
}

static bool
is(struct word w, const char *s)
{
    return w.n == strlen(s) && !memcmp(w.p, s, w.n);
}

static int
wrong(const struct line *l, const char *what)
{
    return err_set(l->e, -EINVAL, "line %u: %s", l->number, what);
}

static int
take_key(struct line *l, char to[CURVE_KEY + 1])
{
    struct word w = next(l);

    if (!curve_key_fits(w.p, w.n))
        return wrong(l, "the key is not 40 characters of Z85, as laganctl keygen makes them");
    if (*to) return wrong(l, "a second secret or server key; the file may have one of each");
    memcpy(to, w.p, w.n);
    return 0;
}

/* Parses the word w, max_inflight=N or max_tokens=N, into p. N: 1 to the limit of the field. */
static int
take_limit(struct line *l, struct word w, struct curve_peer *p)
{
    const char *is_at = memchr(w.p, '=', w.n);
    struct word name = { w.p, is_at ? (size_t)(is_at - w.p) : w.n };
    bool inflight = is(name, "max_inflight");
    uint64_t v = 0;

    if (!is_at || (!inflight && !is(name, "max_tokens")))
        return wrong(l, "after the name only max_inflight=N and max_tokens=N are allowed");
    for (const char *c = is_at + 1; c < w.p + w.n; c++) {
        if (*c < '0' || *c > '9' || v > UINT32_MAX)
            return wrong(l, "the value after = is not a decimal number, or is too large");
        v = v * 10 + (uint64_t)(*c - '0');
    }
    if (!v || (inflight && v > UINT32_MAX))
        return wrong(l, "max_inflight must be 1 to 4294967295, and max_tokens at least 1");
    if (inflight) {
        p->max_inflight = (uint32_t)v;
    } else {
        p->max_tokens = v;
    }
    return 0;
}

static int
take_peer(struct curve_file *f, struct line *l)
{
    struct curve_peer p = { .key = "" };
    struct word w;

    TRY(take_key(l, p.key));
    w = next(l);
    if (!w.n || w.n > CURVE_NAME) return wrong(l, "the client needs a name of 1 to 32 characters");
    for (size_t i = 0; i < w.n; i++) {
        if (w.p[i] <= ' ' || w.p[i] > '~') return wrong(l, "the client name must be visible ASCII");
    }
    memcpy(p.name, w.p, w.n);
    while ((w = next(l)).n) TRY(take_limit(l, w, &p));
    for (uint32_t i = 0; i < f->n_peers; i++) {
        if (!strcmp(f->peer[i].name, p.name)) return wrong(l, "another client has this name");
        if (!strcmp(f->peer[i].key, p.key)) return wrong(l, "another client has this key");
    }
    if (f->n_peers == CURVE_MAX_PEERS) return wrong(l, "the file has more than 512 clients");
    f->peer[f->n_peers++] = p;
    return 0;
}

static int
take_line(struct curve_file *f, struct line *l)
{
    struct word w = next(l);

    if (!w.n) return 0;
    if (is(w, "client")) return take_peer(f, l);
    if (is(w, "secret")) {
        TRY(take_key(l, f->secret));
    } else if (is(w, "server")) {
        TRY(take_key(l, f->server));
    } else {
        return wrong(l, "the line must begin with secret, server or client");
    }
    return next(l).n ? wrong(l, "only a comment may follow the secret or server key") : 0;
}

int
curve_parse(struct curve_file *f, const char *text, size_t n, struct err *e)
{
    const char *end = text + n;
    struct line l = { .p = text, .e = e };

    memset(f, 0, sizeof *f);
    while (l.p < end) {
        const char *eol = memchr(l.p, '\n', (size_t)(end - l.p));

        l.end = eol ? eol : end;
        l.number++;
        TRY(take_line(f, &l));
        l.p = l.end + (eol != NULL);
    }
    return 0;
}

/* ---- the file */

static int
may_read(int fd, const char *path, struct err *e)
{
    struct stat st;

    if (fstat(fd, &st) < 0) return err_set(e, -errno, "fstat of %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return err_set(e, -EINVAL, "%s is not a regular file", path);
    if (st.st_mode & 077)
        return err_set(e, -EACCES, "%s contains a secret and has mode %04o; run chmod 600", path,
                       st.st_mode & 07777);
    if (st.st_uid && st.st_uid != geteuid())
        return err_set(e, -EACCES,
                       "%s is owned by user %u; the owner must be root or the user of this program",
                       path, st.st_uid);
    if (st.st_size > CURVE_MAX_FILE)
        return err_set(e, -E2BIG, "%s has %lld bytes, the maximum is %d", path,
                       (long long)st.st_size, CURVE_MAX_FILE);
    return 0;
}

int
curve_read(struct curve_file *f, const char *path, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), r;
    struct err line = { 0 };
    char *text;
    ssize_t n;

    if (fd < 0) return err_set(e, -errno, "cannot open %s: %s", path, strerror(errno));
    r = may_read(fd, path, e);
    text = r == 0 ? malloc(CURVE_MAX_FILE) : NULL;
    if (r == 0 && !text) r = err_set(e, -ENOMEM, "no memory to read %s", path);
    if (r == 0) {
        n = read(fd, text, CURVE_MAX_FILE);
        r = n < 0 ? err_set(e, -errno, "cannot read %s: %s", path, strerror(errno))
                  : curve_parse(f, text, (size_t)n, &line);
        if (n >= 0 && r < 0) err_set(e, r, "%s: %s", path, line.text);
        explicit_bzero(text, CURVE_MAX_FILE);
    }
    free(text);
    close(fd);
    return r;
}

/* body.c - see body.h. */
#include "gateway/api/body.h"

#include <stdio.h>

enum { FIRST_SLOTS = 256 };

struct block { /* of body_memory(); the bytes follow */
    struct block *next;
};

void
body_open(struct body *b, struct http_text text)
{
    memset(b, 0, sizeof *b);
    b->text = text;
    json_open(&b->j, text.p, text.n);
}

void
body_free(struct body *b)
{
    struct block *next;

    for (struct block *at = b->blocks; at; at = next) {
        next = at->next;
        free(at);
    }
    free(b->seen);
    b->blocks = b->seen = NULL;
}

void *
body_memory(struct body *b, size_t n)
{
    struct block *at = malloc(sizeof *at + n);

    if (!at) return NULL;
    at->next = b->blocks;
    b->blocks = at;
    return at + 1;
}

struct http_text
body_string(struct body *b, const struct json *j, bool nul)
{
    char *to;

    if (!j->escaped && !nul) return (struct http_text){ j->text, j->text_len };
    to = body_memory(b, j->text_len + 1);
    if (!to) return (struct http_text){ 0 };
    return (struct http_text){ to, (size_t)json_unescape(j, to, j->text_len + 1) };
}

void
body_ignore(struct body *b, const char *name, size_t n)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.[]";
    char clean[65];
    size_t len = strlen(b->ignored);
    const char *at = b->ignored;

    n = MIN(n, sizeof clean - 1);
    for (size_t i = 0; i < n; i++) clean[i] = name[i] && strchr(plain, name[i]) ? name[i] : '?';
    clean[n] = '\0';
    while ((at = strstr(at, clean))) {
        if ((at == b->ignored || at[-1] == ' ') && (at[n] == ',' || !at[n])) return;
        at += n ? n : 1;
        if (!n) return;
    }
    if (len + n + 3 > sizeof b->ignored) return;
    snprintf(b->ignored + len, sizeof b->ignored - len, "%s%s", len ? ", " : "", clean);
}

/* Returns a hash, not 0, of a key of object number `object`. */
static uint64_t
hash(uint32_t object, const char *p, size_t n)
{
    uint64_t h = UINT64_C(14695981039346656037) ^ object * UINT64_C(0x9e3779b97f4a7c15);

    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)p[i]) * UINT64_C(1099511628211);
    h ^= h >> 29;
    return h ? h : 1;
}

/* Returns the slot of h: free, or with h. */
static uint32_t
find_slot(const struct body *b, uint64_t h)
{
    uint32_t i = (uint32_t)(h >> 7) & (b->n_slots - 1);

    while (b->seen[i] && b->seen[i] != h) i = (i + 1) & (b->n_slots - 1);
    return i;
}

static int
grow_seen(struct body *b)
{
    uint32_t n = b->n_slots;
    uint64_t *old = b->seen, *more = calloc(n ? 2 * (size_t)n : FIRST_SLOTS, sizeof *more);

    if (!more) return -ENOMEM;
    b->seen = more;
    b->n_slots = n ? 2 * n : FIRST_SLOTS;
    for (uint32_t i = 0; i < n; i++)
        if (old[i]) more[find_slot(b, old[i])] = old[i];
    free(old);
    return 0;
}

/* Checks the key that was just read against the keys of its object. */
static int
note_key(struct body *b, struct fault *f)
{
    char text[BODY_KEY + 1];
    struct json *j = &b->j;
    uint64_t h;
    uint32_t slot;
    int n;

    n = json_unescape(j, text, sizeof text);
    if (n < 0)
        return fault_set(f, API_E_INVALID_JSON, NULL,
                         "a key of the body has %zu bytes; the limit is %d", j->text_len, BODY_KEY);
    if (b->n_seen == BODY_KEYS)
        return fault_set(f, API_E_INVALID_JSON, NULL, "the body has more than %d keys", BODY_KEYS);
    if (b->n_seen * 2 >= b->n_slots) TRY(grow_seen(b));
    h = hash(b->object[j->depth], text, (size_t)n);
    slot = find_slot(b, h);
    if (b->seen[slot])
        return fault_set(f, API_E_INVALID_JSON, j->depth == 1 ? text : NULL,
                         "the body has the key \"%.64s\" twice in one object", text);
    b->seen[slot] = h;
    b->n_seen++;
    if (j->depth > 1) return 0;
    if (b->n_members == BODY_MEMBERS)
        return fault_set(f, API_E_INVALID_JSON, NULL, "the body has more than %d fields",
                         BODY_MEMBERS);
    b->member[b->n_members].name = (struct http_text){ j->text, j->text_len };
    b->member[b->n_members++].value.p = j->p;
    return 0;
}

/* Walks the next `most` bytes of the text. Returns as body_read(). */
static int
walk(struct body *b, size_t most, struct fault *f)
{
    struct json *j = &b->j;
    const char *from = j->p;
    struct err e;

    while ((size_t)(j->p - from) < most) {
        if (json_next(j, &e) < 0)
            return fault_set(f, API_E_INVALID_JSON, NULL, "the body is not valid JSON: %s", e.text);
        if (j->kind == JSON_END) return 0;
        if (j->depth == 0 && j->kind != JSON_OBJECT_END)
            return fault_set(f, API_E_INVALID_TYPE, NULL, "the body must be a JSON object");
        if (j->depth == 1 && j->kind == JSON_ARRAY)
            return fault_set(f, API_E_INVALID_TYPE, NULL, "the body must be a JSON object");
        if (j->kind == JSON_OBJECT) b->object[j->depth] = b->n_objects++;
        if (j->kind == JSON_KEY)
            TRY(note_key(b, f));
        else if (j->depth == 1 && b->n_members) {
            struct http_text *value = &b->member[b->n_members - 1].value;

            if (!value->n) value->n = (size_t)(j->p - value->p);
        }
    }
    return 1;
}

/* Moves the spaces around a value out of it. */
static struct http_text
trimmed(struct http_text t)
{
    static const char spaces[] = " \n\r\t";

    while (t.n && strchr(spaces, *t.p)) t = (struct http_text){ t.p + 1, t.n - 1 };
    while (t.n && strchr(spaces, t.p[t.n - 1])) t.n--;
    return t;
}

static int
read_member(struct body *b, const struct body_member *m, unsigned route, bool strict,
            struct fault *f)
{
    struct http_text raw = trimmed(m->value);
    char name[BODY_KEY + 1];
    struct json j;
    enum field field;
    int r;

    if (raw.n == 4 && memcmp(raw.p, "null", 4) == 0) return 0;
    json_open(&j, m->name.p - 1, m->name.n + 2); /* with its quotes */
    TRY(json_next(&j, NULL));
    field = field_find(route, name, (size_t)json_unescape(&j, name, sizeof name));
    if (field == N_FIELDS) {
        if (strict)
            return fault_set(f, API_E_UNKNOWN_PARAMETER, name, "there is no field \"%.64s\"", name);
        body_ignore(b, name, strlen(name));
        return 0;
    }
    r = field_read(field, raw, name, &b->v[field], f);
    if (r > 0) body_ignore(b, name, strlen(name));
    return MIN(r, 0);
}

int
body_read(struct body *b, unsigned route, size_t most, bool strict, struct fault *f)
{
    if (!b->walked) {
        int r = walk(b, most, f);

        if (r) return r;
        b->walked = true;
        free(b->seen);
        b->seen = NULL;
    }
    for (; b->next_member < b->n_members; b->next_member++)
        TRY(read_member(b, &b->member[b->next_member], route, strict, f));
    return 0;
}

/* weights_checksum.c - the table at the end of a weights arena with a checksum for each field.
 *
 *     head    magic, version, number of fields, complete, fingerprint
 *     entry   [n] offset, bytes, checksum when filled, checksum of the last check
 *
 * The device writes the table while it fills the arena. A process that adopts the arena then finds
 * damaged fields (a stray write of a dying kernel, a flipped bit) without reading the files. */
#include "worker/model/weights_plan.h"

#define TABLE_MAGIC UINT64_C(0x6c616573676c)
enum { TABLE_VERSION = 1 };

struct entry {
    uint64_t offset, bytes, sum, found;
};

/* Layout in the arena. */
struct weights_checksum {
    uint64_t magic;
    uint32_t version, n;
    uint64_t complete, fingerprint[2];
    uint64_t zero[3];
    struct entry entry[];
};
_Static_assert(sizeof(struct weights_checksum) == 64 && sizeof(struct entry) == 32, "no padding");

uint64_t
weights_checksum_bytes(uint32_t n_fields)
{
    return sizeof(struct weights_checksum) + (uint64_t)n_fields * sizeof(struct entry);
}

static void
free_table(struct weights_checksum **t)
{
    free(*t);
}

/* Returns the device address of the checksum table at offset `at` of m's weights arena. */
static struct weights_checksum *
on_device(const struct model *m, uint64_t at)
{
    return (struct weights_checksum *)((char *)m->weights.base + at);
}

/* Returns a host table for p's fields, without checksums and not complete. NULL: no memory. */
static struct weights_checksum *
table_new(const struct weights_plan *p, struct err *e)
{
    struct weights_checksum *t = calloc(1, weights_checksum_bytes(p->n_fields));

    if (!t) {
        err_set(e, -ENOMEM, "no host memory for the checksums of %u tensors", p->n_fields);
        return NULL;
    }
    t->magic = TABLE_MAGIC;
    t->version = TABLE_VERSION;
    t->n = p->n_fields;
    memcpy(t->fingerprint, p->m->fingerprint, sizeof t->fingerprint);
    for (uint32_t i = 0; i < p->n_fields; i++) {
        t->entry[i].offset = p->field[i].offset;
        t->entry[i].bytes = p->field[i].bytes;
    }
    return t;
}

/* Computes the checksum of every field that t lists into entry[].found of the device's table at
 * offset `at`, then copies this table to t. */
static int
compute(struct model *m, uint64_t at, struct weights_checksum *t, const char *what, struct err *e)
{
    struct weights_checksum *there = on_device(m, at);
    int r = 0;

    for (uint32_t i = 0; i < t->n && r == 0; i++)
        if (t->entry[i].bytes)
            r = m->op->mem.checksum(m->lane, &there->entry[i].found,
                                    (char *)m->weights.base + t->entry[i].offset,
                                    t->entry[i].bytes);
    if (r == 0) r = m->op->mem.get(m->lane, t, there, weights_checksum_bytes(t->n));
    return load_lane_end(m, r, what, e);
}

int
weights_checksum_begin(const struct weights_plan *p, struct err *e)
{
    CLEAN(free_table) struct weights_checksum *t = table_new(p, e);

    if (!t) return -ENOMEM;
    return load_lane_end(p->m,
                         p->m->op->mem.put(p->m->lane, on_device(p->m, p->weights_checksum_at), t,
                                           weights_checksum_bytes(p->n_fields)),
                         "write the checksum table", e);
}

int
weights_checksum_field(const struct weights_plan *p, uint32_t field)
{
    const struct field *f = &p->field[field];

    return p->m->op->mem.checksum(p->m->lane,
                                  &on_device(p->m, p->weights_checksum_at)->entry[field].sum,
                                  (char *)p->m->weights.base + f->offset, f->bytes);
}

int
weights_checksum_end(const struct weights_plan *p, struct err *e)
{
    static const uint64_t complete = 1;
    int r = p->m->op->mem.put(p->m->lane, &on_device(p->m, p->weights_checksum_at)->complete,
                              &complete, sizeof complete);

    return load_lane_end(p->m, r, "write the checksum table", e);
}

/* True if table s is complete and equals `want` in everything except the checksums. */
static bool
is_ours(const struct weights_checksum *s, const struct weights_checksum *want)
{
    if (s->magic != want->magic || s->version != want->version || s->n != want->n) return false;
    if (s->complete != 1 || memcmp(s->fingerprint, want->fingerprint, sizeof s->fingerprint))
        return false;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->entry[i].offset != want->entry[i].offset ||
            s->entry[i].bytes != want->entry[i].bytes)
            return false;
    return true;
}

int
weights_checksum_keep(const struct weights_plan *p, struct err *e)
{
    struct model *m = p->m;
    uint64_t bytes = weights_checksum_bytes(p->n_fields);
    CLEAN(free_table) struct weights_checksum *there = malloc(bytes);

    m->weights_checksum = table_new(p, e);
    m->weights_checksum_at = p->weights_checksum_at;
    if (!m->weights_checksum) return -ENOMEM;
    if (!there) return err_set(e, -ENOMEM, "no host memory for %u checksums", p->n_fields);
    TRY(load_lane_end(m,
                      m->op->mem.get(m->lane, there, on_device(m, p->weights_checksum_at), bytes),
                      "read the checksum table", e));
    for (uint32_t i = 0; i < p->n_fields; i++)
        m->weights_checksum->entry[i].sum = there->entry[i].sum;
    return 0;
}

int
weights_checksum_again(struct model *m, struct err *e)
{
    const struct weights_checksum *s = m->weights_checksum;
    CLEAN(free_table) struct weights_checksum *now = malloc(weights_checksum_bytes(s->n));
    int n = 0;

    if (!now) return err_set(e, -ENOMEM, "no memory to check %u tensors", s->n);
    memcpy(now, s, weights_checksum_bytes(s->n));
    TRY(compute(m, m->weights_checksum_at, now, "check the weights again", e));
    for (uint32_t i = 0; i < s->n; i++)
        n += s->entry[i].bytes && now->entry[i].found != s->entry[i].sum;
    return n;
}

int
weights_checksum_check(struct weights_plan *p, struct err *e)
{
    CLEAN(free_table) struct weights_checksum *want = table_new(p, e);
    CLEAN(free_table) struct weights_checksum *s = table_new(p, e);
    int n = 0;

    if (!want || !s) return -ENOMEM;
    TRY(compute(p->m, p->weights_checksum_at, s, "check adopted weights", e));
    p->table_bad = !is_ours(s, want);
    for (uint32_t i = 0; i < p->n_fields; i++) {
        struct field *f = &p->field[i];

        f->stale = f->bytes && (p->table_bad || s->entry[i].sum != s->entry[i].found);
        n += f->stale;
    }
    return n;
}

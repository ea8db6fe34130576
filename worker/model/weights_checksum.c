/* weights_checksum.c - see weights_checksum.h. */
#include "worker/model/weights_checksum.h"

#include "worker/model/load_lane.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SEAL_MAGIC UINT64_C(0x6c616573676c)
enum { SEAL_VERSION = 1 };

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

/* Device addresses. */
static struct weights_checksum *
weights_checksum_at(const struct weights_plan *p)
{
    return (struct weights_checksum *)((char *)p->m->weights.base + p->weights_checksum_at);
}

/* The table of an arena that is not filled yet. NULL: no memory. */
static struct weights_checksum *
seal_new(const struct weights_plan *p)
{
    struct weights_checksum *s = calloc(1, weights_checksum_bytes(p->n_fields));

    if (!s) return NULL;
    s->magic = SEAL_MAGIC;
    s->version = SEAL_VERSION;
    s->n = p->n_fields;
    memcpy(s->fingerprint, p->m->fingerprint, sizeof s->fingerprint);
    for (uint32_t i = 0; i < p->n_fields; i++) {
        s->entry[i].offset = p->field[i].offset;
        s->entry[i].bytes = p->field[i].bytes;
    }
    return s;
}

int
weights_checksum_begin(const struct weights_plan *p, struct err *e)
{
    struct weights_checksum *s = seal_new(p);
    int r;

    if (!s) return err_set(e, -ENOMEM, "no memory for the checksums of %u tensors", p->n_fields);
    r = p->m->op->mem.put(p->m->lane, weights_checksum_at(p), s,
                          weights_checksum_bytes(p->n_fields));
    r = load_lane_end(p->m, r, "write the checksum table", e);
    free(s);
    return r;
}

int
weights_checksum_field(const struct weights_plan *p, uint32_t field)
{
    const struct field *f = &p->field[field];

    return p->m->op->mem.checksum(p->m->lane, &weights_checksum_at(p)->entry[field].sum,
                                  (char *)p->m->weights.base + f->offset, f->bytes);
}

int
weights_checksum_end(const struct weights_plan *p, struct err *e)
{
    static const uint64_t complete = 1;
    int r = p->m->op->mem.put(p->m->lane, &weights_checksum_at(p)->complete, &complete,
                              sizeof complete);

    return load_lane_end(p->m, r, "write the checksum table", e);
}

/* True if everything except the checksums matches this plan. */
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

static int
read_fields(struct weights_plan *p, struct weights_checksum *s, struct err *e)
{
    const struct gpu_ops *op = p->m->op;
    int r = 0;

    for (uint32_t i = 0; i < p->n_fields && r == 0; i++)
        if (p->field[i].bytes)
            r = op->mem.checksum(p->m->lane, &weights_checksum_at(p)->entry[i].found,
                                 (char *)p->m->weights.base + p->field[i].offset,
                                 p->field[i].bytes);
    if (r == 0)
        r = op->mem.get(p->m->lane, s, weights_checksum_at(p), weights_checksum_bytes(p->n_fields));
    return load_lane_end(p->m, r, "check adopted weights", e);
}

int
weights_checksum_keep(const struct weights_plan *p, struct err *e)
{
    struct model *m = p->m;
    uint64_t bytes = weights_checksum_bytes(p->n_fields);
    struct weights_checksum *there = malloc(bytes);
    int r = 0;

    m->weights_checksum = seal_new(p);
    m->weights_checksum_at = p->weights_checksum_at;
    if (!there || !m->weights_checksum)
        r = err_set(e, -ENOMEM, "no memory for %u checksums", p->n_fields);
    if (r == 0)
        r = load_lane_end(m, m->op->mem.get(m->lane, there, weights_checksum_at(p), bytes),
                          "read the checksum table", e);
    for (uint32_t i = 0; i < p->n_fields && r == 0; i++)
        m->weights_checksum->entry[i].sum = there->entry[i].sum;
    free(there);
    return r;
}

int
weights_checksum_again(struct model *m, struct err *e)
{
    struct weights_checksum *s = m->weights_checksum,
                            *there = (struct weights_checksum *)((char *)m->weights.base +
                                                                 m->weights_checksum_at);
    struct entry *found = malloc(s->n * sizeof *found);
    int r = found ? 0 : err_set(e, -ENOMEM, "no memory to check %u tensors", s->n);

    for (uint32_t i = 0; i < s->n && r == 0; i++)
        if (s->entry[i].bytes)
            r = m->op->mem.checksum(m->lane, &there->entry[i].found,
                                    (char *)m->weights.base + s->entry[i].offset,
                                    s->entry[i].bytes);
    if (r == 0) r = m->op->mem.get(m->lane, found, there->entry, s->n * sizeof *found);
    if (found) r = load_lane_end(m, r, "check the weights again", e);
    for (uint32_t i = 0, n = r < 0 ? 0 : s->n; i < n; i++)
        r += s->entry[i].bytes && found[i].found != s->entry[i].sum;
    free(found);
    return r;
}

int
weights_checksum_check(struct weights_plan *p, struct err *e)
{
    struct weights_checksum *want = seal_new(p), *s = seal_new(p);
    int r = want && s ? read_fields(p, s, e)
                      : err_set(e, -ENOMEM, "no memory to check %u tensors", p->n_fields);

    if (r == 0) {
        p->seal_bad = !is_ours(s, want);
        for (uint32_t i = 0; i < p->n_fields; i++) {
            struct field *f = &p->field[i];

            f->stale = f->bytes && (p->seal_bad || s->entry[i].sum != s->entry[i].found);
            r += f->stale;
        }
    }
    free(want);
    free(s);
    return r;
}

/* cpu_copy.c - ops of the CPU device that move bytes: copies, checksums, gather_rows, edits of
 * block tables, resolve_tokens, mark_tokens. */
#include "gpu/cpu/cpu_ops.h"

enum { COPY_PART = 256 << 10 }; /* bytes of a copy that are worth another thread */

struct copy {
    char *dst;
    const char *src;
    size_t bytes;
};

CPU_JOB(run_copy)
{
    const struct copy *c = args;
    size_t first = c->bytes * part / parts, end = c->bytes * (part + 1) / parts;

    memmove(c->dst + first, c->src + first, end - first);
}

int
cpu_copy(struct lane *l, void *dst, const void *src, size_t bytes)
{
    struct copy c = { dst, src, bytes };

    return cpu_queue(l, run_copy, &c, sizeof c, cpu_parts(64, bytes, COPY_PART));
}

struct blocks_args {
    const struct block_copy *copy;
    uint32_t n;
    struct block_size size;
};

CPU_JOB(run_copy_blocks)
{
    const struct blocks_args *a = args;

    for (CPU_SHARE(i, a->n))
        for (size_t at = 0; at < a->size.bytes; at += a->size.pitch)
            memcpy((char *)a->copy[i].to + at, (const char *)a->copy[i].from + at, a->size.used);
}

int
cpu_copy_blocks(struct lane *l, const struct block_copy *copy, const struct block_copy *same,
                uint32_t n, struct block_size size)
{
    struct blocks_args a = { copy, n, size };
    uint64_t all = (uint64_t)n * (size.bytes / size.pitch * size.used);

    (void)same;
    return cpu_queue(l, run_copy_blocks, &a, sizeof a, cpu_parts(n, all, COPY_PART));
}

struct checksum_args {
    uint64_t *sum;
    const uint64_t *p; /* 16-byte aligned */
    size_t bytes;
};

/* Returns the mix function of splitmix64. Source: Steele, Lea and Flood, OOPSLA 2014. */
static uint64_t
mix64(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

CPU_JOB(run_clear)
{
    const struct checksum_args *a = args;

    *a->sum = 0;
}

/* Adds the sum of this part to *a->sum. Addition modulo 2^64 gives the same sum in any order. */
CPU_JOB(run_checksum)
{
    const struct checksum_args *a = args;
    const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
    const uint64_t *p = a->p;
    size_t words = a->bytes / sizeof *p, rest = a->bytes % sizeof *p;
    size_t end = words * (part + 1) / parts;
    uint64_t sum = 0, last = 0;

    for (size_t i = words * part / parts; i < end; i++) sum += mix64(p[i] + golden * (i + 1));
    if (rest && part + 1 == parts) {
        memcpy(&last, p + words, rest);
        sum += mix64(last + golden * (words + 1));
    }
    __atomic_fetch_add(a->sum, sum, __ATOMIC_RELAXED);
}

int
cpu_checksum(struct lane *l, uint64_t *sum, const void *p, size_t bytes)
{
    struct checksum_args a = { sum, p, bytes };

    TRY(cpu_queue(l, run_clear, &a, sizeof a, 1));
    return cpu_queue(l, run_checksum, &a, sizeof a, cpu_parts(64, bytes, COPY_PART));
}

struct gather_args {
    struct tensor y, x;
    const uint32_t *which;
};

CPU_JOB(run_rows)
{
    const struct gather_args *a = args;
    size_t bytes = dtype_bytes(a->x.dtype, a->x.dim[1]);

    for (CPU_SHARE(i, a->y.dim[0])) {
        check(a->which[i] < a->x.dim[0]);
        memcpy(row_of(&a->y, i), row_of(&a->x, a->which[i]), bytes);
    }
}

int
cpu_gather_rows(struct lane *l, struct tensor y, struct tensor x, const uint32_t *which)
{
    struct gather_args a = { y, x, which };
    size_t bytes = dtype_bytes(x.dtype, x.dim[1]) * y.dim[0];

    return cpu_queue(l, run_rows, &a, sizeof a, cpu_parts(y.dim[0], bytes, COPY_PART));
}

struct edit_args {
    struct tables t;
    const struct table_edit *edit;
    uint32_t n;
};

CPU_JOB(run_edit)
{
    const struct edit_args *a = args;

    for (uint32_t i = 0; i < a->n; i++) {
        const struct table_edit *e = &a->edit[i];

        check(e->table < a->t.n && e->entry < a->t.stride[e->table]);
        a->t.table[e->table][(size_t)e->slot * a->t.stride[e->table] + e->entry] = e->at;
    }
}

int
cpu_update_tables(struct lane *l, struct tables t, const struct table_edit *edit, uint32_t n)
{
    struct edit_args a = { t, edit, n };

    return cpu_queue(l, run_edit, &a, sizeof a, 1);
}

struct tokens_args {
    struct step_tokens r;
    const int32_t *last;
};

CPU_JOB(run_tokens)
{
    const struct tokens_args *a = args;

    for (uint32_t i = 0; i < a->r.n_tokens; i++)
        if (a->r.token[i] == -1 && a->r.slot[i] != SLOT_NONE) a->r.token[i] = a->last[a->r.slot[i]];
}

int
cpu_resolve_tokens(struct lane *l, struct step_tokens r, const int32_t *last)
{
    struct tokens_args a = { r, last };

    return cpu_queue(l, run_tokens, &a, sizeof a, 1);
}

struct see_args {
    struct token_history h;
    struct step_tokens r;
    const struct segment *segment;
    uint32_t n_segments;
};

CPU_JOB(run_see)
{
    const struct see_args *a = args;

    for (uint32_t i = 0; i < a->n_segments; i++) {
        const struct segment *segment = &a->segment[i];
        const int32_t *token = a->r.token + segment->first_token;
        uint32_t first = (uint32_t)segment->first_pos, *seen;

        if (segment->slot == SLOT_NONE) continue;
        seen = a->h.seen + (size_t)segment->slot * a->h.seen_words;
        if (first == 0) memset(seen, 0, a->h.seen_words * sizeof *seen);
        for (uint32_t k = 0; k < segment->n_tokens; k++) {
            uint32_t t = (uint32_t)token[k];

            if (t / 32 < a->h.seen_words) seen[t / 32] |= 1u << t % 32;
        }
        for (uint32_t k = 0; k < segment->n_tokens && first + k < a->h.stride && a->h.token; k++)
            a->h.token[(size_t)segment->slot * a->h.stride + first + k] = token[k];
    }
}

int
cpu_mark_tokens(struct lane *l, struct token_history h, struct step_tokens r,
                const struct segment *segment, uint32_t n_segments)
{
    struct see_args a = { h, r, segment, n_segments };

    return cpu_queue(l, run_see, &a, sizeof a, 1);
}

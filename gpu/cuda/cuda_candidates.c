/* cuda_candidates.c - parses gpu_options.kernels; see cuda_candidates.h. */
#include "gpu/cuda/cuda_candidates.h"

#include <stdio.h>

static const struct candidate *
candidate(const struct candidates *c, uint32_t i)
{
    return (const void *)((const char *)c->first + i * c->stride);
}

static bool
suits(const struct candidate *c, uint32_t sm)
{
    return sm >= c->min_sm && (!c->max_sm || sm <= c->max_sm);
}

static bool
is(const char *word, size_t n, const char *name)
{
    return strlen(name) == n && memcmp(word, name, n) == 0;
}

static void
add(char *list, size_t size, const char *name)
{
    size_t n = strlen(list);

    snprintf(list + n, size - n, "%s%s", n ? ", " : "", name);
}

static int
unknown_op(const char *word, size_t n, const struct candidates *table, uint32_t n_ops,
           struct err *e)
{
    char list[200] = "";

    for (uint32_t i = 0; i < n_ops; i++)
        if (candidate(&table[i], 0)->name) add(list, sizeof list, table[i].op);
    return err_set(e, -EINVAL, "option kernels: unknown op \"%.*s\"; known: %s", (int)MIN(n, 20u),
                   word, list);
}

static int
unknown_candidate(const char *word, size_t n, const struct candidates *c, struct err *e)
{
    char list[160] = "";

    for (uint32_t i = 0; candidate(c, i)->name; i++) add(list, sizeof list, candidate(c, i)->name);
    return err_set(e, -EINVAL, "option kernels: op %s has no candidate \"%.*s\"; known: %s", c->op,
                   (int)MIN(n, 20u), word, *list ? list : "none");
}

/* Parses one op=candidate. named: bits of the ops that the text has named so far. */
static int
take(const char *word, size_t n, const struct candidates *table, uint32_t n_ops, uint32_t sm,
     uint32_t *allowed, uint64_t *named, struct err *e)
{
    const char *eq = memchr(word, '=', n), *name;
    size_t op_len, name_len;
    uint32_t i = 0, j = 0;

    if (!eq)
        return err_set(e, -EINVAL, "option kernels: \"%.*s\" does not have the form op=candidate",
                       (int)MIN(n, 40u), word);
    op_len = (size_t)(eq - word);
    name = eq + 1;
    name_len = n - op_len - 1;
    while (i < n_ops && !is(word, op_len, table[i].op)) i++;
    if (i == n_ops) return unknown_op(word, op_len, table, n_ops, e);
    while (candidate(&table[i], j)->name && !is(name, name_len, candidate(&table[i], j)->name)) j++;
    if (!candidate(&table[i], j)->name) return unknown_candidate(name, name_len, &table[i], e);
    if (!suits(candidate(&table[i], j), sm))
        return err_set(e, -ENOTSUP, "option kernels: %s=%s does not run on this GPU (sm_%u)",
                       table[i].op, candidate(&table[i], j)->name, sm);
    if (!(*named >> i & 1)) allowed[i] = 0;
    *named |= (uint64_t)1 << i;
    allowed[i] |= 1u << j;
    return 0;
}

int
cuda_candidates_parse(const char *text, const struct candidates *table, uint32_t n, uint32_t sm,
                      uint32_t *allowed, struct err *e)
{
    uint64_t named = 0;

    check(n <= 64);
    for (uint32_t i = 0; i < n; i++) {
        allowed[i] = 0;
        for (uint32_t j = 0; candidate(&table[i], j)->name; j++) {
            check(j < 32);
            if (suits(candidate(&table[i], j), sm)) allowed[i] |= 1u << j;
        }
    }
    while (text && *text) {
        size_t len = strcspn(text, ",");

        TRY(take(text, len, table, n, sm, allowed, &named, e));
        text += len;
        if (*text == ',') text++;
    }
    return 0;
}

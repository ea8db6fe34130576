/* similar.c - see similar.h. */
#include "base/similar.h"

/* Levenshtein distance of a (at most 63 bytes) and b. */
static uint32_t
distance(const char *a, size_t n, const char *b)
{
    uint8_t row[64];

    check(n < ARRAY_LEN(row));
    for (size_t i = 0; i <= n; i++) row[i] = (uint8_t)i;
    for (size_t j = 0; j < 200 && b[j]; j++) {
        uint8_t diagonal = row[0];

        row[0] = (uint8_t)(j + 1);
        for (size_t i = 1; i <= n; i++) {
            uint8_t up = row[i];
            uint8_t best = (uint8_t)(diagonal + (a[i - 1] != b[j]));

            uint8_t side = MIN(up, row[i - 1]);

            row[i] = (uint8_t)MIN(best, side + 1);
            diagonal = up;
        }
    }
    return row[n];
}

void
similar_compare(struct similar *best, const char *unknown, size_t len, const char *name)
{
    uint32_t edits = len < 64 ? distance(unknown, len, name) : UINT32_MAX;

    if (edits > (len + 1) / 2 || (best->name && edits >= best->edits)) return;
    *best = (struct similar){ name, edits };
}

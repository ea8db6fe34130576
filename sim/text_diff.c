/* text_diff.c - see text_diff.h: longest common subsequence by dynamic programming. */
#include "sim/text_diff.h"

#include <stdlib.h>
#include <string.h>

void
diff_print(FILE *out, char *const *want, uint32_t n_want, char *const *got, uint32_t n_got)
{
    size_t wide = n_got + 1;
    uint32_t *same = calloc((n_want + 1) * wide, sizeof *same), i = 0, k = 0;

    /* same[a * wide + b]: common lines of want[a ..] and got[b ..]; NULL without memory */
    for (uint32_t a = n_want; same && a-- > 0;)
        for (uint32_t b = n_got; b-- > 0;)
            same[a * wide + b] = strcmp(want[a], got[b]) == 0
                                     ? same[(a + 1) * wide + b + 1] + 1
                                     : MAX(same[(a + 1) * wide + b], same[a * wide + b + 1]);
    while (i < n_want || k < n_got) {
        if (same && i < n_want && k < n_got && strcmp(want[i], got[k]) == 0) {
            fprintf(out, "      %s\n", want[i++]);
            k++;
        } else if (i < n_want &&
                   (k == n_got || !same || same[(i + 1) * wide + k] >= same[i * wide + k + 1])) {
            fprintf(out, "    - %s\n", want[i++]);
        } else {
            fprintf(out, "    + %s\n", got[k++]);
        }
    }
    free(same);
}

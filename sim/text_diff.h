/* text_diff.h - two lists of lines, as a person wants to see where they differ. */
#ifndef SIM_TEXT_DIFF_H
#define SIM_TEXT_DIFF_H

#include "base/base.h"

#include <stdio.h>

/* Lines of both as they are, of `want` alone after "-", of `got` alone after "+". */
void diff_print(FILE *out, char *const *want, uint32_t n_want, char *const *got, uint32_t n_got);

#endif

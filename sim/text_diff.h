/* text_diff.h - prints the differences of two lists of lines. */
#pragma once

#include "base/base.h"

#include <stdio.h>

/* Common lines as they are, lines only in `want` after "-", only in `got` after "+". */
void diff_print(FILE *out, char *const *want, uint32_t n_want, char *const *got, uint32_t n_got);

/* problems.h - collects the errors of a configuration, so that all are reported at once. */
#pragma once

#include "base/base.h"

enum { PROBLEMS_MAX = 32 };

struct problems {
    uint32_t n, n_more; /* stored; further ones, not stored */
    char text[PROBLEMS_MAX][300];
};

void problem(struct problems *p, const char *fmt, ...) PRINTF_LIKE(2, 3);

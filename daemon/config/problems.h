/* problems.h - what is wrong with a configuration, all of it at once. */
#ifndef DAEMON_CONFIG_PROBLEMS_H
#define DAEMON_CONFIG_PROBLEMS_H

#include "base/base.h"

enum { PROBLEMS_MAX = 32 };

struct problems {
    uint32_t n, n_more; /* told, and beyond what there is room for */
    char text[PROBLEMS_MAX][300];
};

void problem(struct problems *p, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif

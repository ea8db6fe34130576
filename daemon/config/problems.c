/* problems.c - see problems.h. */
#include "daemon/config/problems.h"

#include <stdarg.h>
#include <stdio.h>

void
problem(struct problems *p, const char *fmt, ...)
{
    va_list ap;

    if (p->n == PROBLEMS_MAX) {
        p->n_more++;
        return;
    }
    va_start(ap, fmt);
    vsnprintf(p->text[p->n++], sizeof p->text[0], fmt, ap);
    va_end(ap);
}

/* fail.c - errors of commands: the error line, the usage line, the received signal. */
#include "ctl/ctl.h"

#include <stdarg.h>
#include <stdio.h>

volatile sig_atomic_t ctl_signal;

int
ctl_fail(int code, const char *fmt, ...)
{
    va_list ap;

    fflush(stdout);
    fputs("laganctl: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return code;
}

int
command_usage(const struct command *c)
{
    if (*c->operands) return ctl_fail(CTL_USAGE, "usage: laganctl %s %s", c->words, c->operands);
    return ctl_fail(CTL_USAGE, "%s takes no argument (see `laganctl %s --help`)", c->words,
                    c->words);
}

/* err.c - see err.h. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>

void (*check_panic_message)(const char *sentence);

int
err_set(struct err *e, int code, const char *fmt, ...)
{
    check(code < 0);
    if (e) {
        va_list ap;

        e->code = code;
        va_start(ap, fmt);
        vsnprintf(e->text, sizeof e->text, fmt, ap);
        va_end(ap);
    }
    return code;
}

int
err_while(struct err *e, int code, const char *fmt, ...)
{
    if (e) {
        char inner[sizeof e->text];
        size_t n;
        va_list ap;

        memcpy(inner, e->text, sizeof inner);
        va_start(ap, fmt);
        vsnprintf(e->text, sizeof e->text, fmt, ap);
        va_end(ap);
        n = strlen(e->text);
        snprintf(e->text + n, sizeof e->text - n, ": %s", inner);
    }
    return code;
}

void
check_failed(const char *cond, const char *file, int line)
{
    char text[240];

    snprintf(text, sizeof text, "check failed: %s (%s:%d)", cond, file, line);
    if (check_panic_message)
        check_panic_message(text);
    else
        fprintf(stderr, "%s\n", text);
    abort();
}

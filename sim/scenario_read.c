/* scenario_read.c - reads a scenario file: see scenario.h. */
#include "sim/scenario.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int
script_read(struct script **ret, const char *path, struct err *e)
{
    FILE *f = fopen(path, "re");
    char *text = malloc(SCRIPT_MAX_BYTES + 1);
    size_t n;
    int r;

    if (!f || !text) {
        r = err_set(e, f ? -ENOMEM : -errno, "%s: %s", path, strerror(f ? ENOMEM : errno));
    } else {
        n = fread(text, 1, SCRIPT_MAX_BYTES + 1, f);
        r = ferror(f) ? err_set(e, -EIO, "%s: cannot be read", path)
                      : script_parse(ret, path, text, n, e);
    }
    if (f) fclose(f);
    free(text);
    return r;
}

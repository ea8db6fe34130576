/* yaml.h - reads a configuration file as keys and values with their positions.
 *
 * Accepted subset: mappings nested to depth 8, whose keys are joined by '.'; scalars; and one list,
 * models, whose entries are mappings. Anchors, aliases, tags, several documents and duplicate keys
 * are errors. All errors are reported, each with file:line:column. */
#pragma once

#include "base/base.h"
#include "base/err.h"

/* The errors of a configuration, so that all are reported at once. */
enum { PROBLEMS_MAX = 32 };
struct problems {
    uint32_t n, n_more; /* stored; further ones, not stored */
    char text[PROBLEMS_MAX][300];
};
void problem(struct problems *p, const char *fmt, ...) PRINTF_LIKE(2, 3); /* adds one */

enum { YAML_TOP = -1 }; /* a key outside models */

/* model: index in models, or YAML_TOP. where: "lagan.yaml:12:5". */
typedef void yaml_key(void *arg, int model, const char *key, const char *value, const char *where,
                      unsigned line);

/* Calls take for each key. -ENOENT: no such file. Returns 0 if the file was parsed; errors are in
 * *p. */
int yaml_read(const char *path, yaml_key *take, void *arg, struct problems *p) MUST_USE;

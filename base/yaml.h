/* yaml.h - reads a configuration file as keys and values with their positions.
 *
 * Accepted subset: mappings nested to depth 8, whose keys are joined by '.'; scalars; and either
 * one list whose entries are mappings, or lists of scalars. Anchors, aliases, tags, several
 * documents and duplicate keys are errors. All errors are reported, each with file:line:column. */
#pragma once
#include "base/base.h"
#include "base/err.h"

/* The errors of a configuration, collected so that all of them are reported at once. */
enum { PROBLEMS_MAX = 32 };
struct problems {
    uint32_t n, n_more; /* errors in text[]; further errors, not stored */
    uint32_t n_denied;  /* errors that a permission caused: all of them, exit code 77 */
    char text[PROBLEMS_MAX][480];
};
void problem(struct problems *p, const char *fmt, ...) PRINTF_LIKE(2, 3); /* adds an error */

enum { YAML_TOP = -1 }; /* entry of a key that is not in the list of mappings */

/* Callback for one key. value: NULL if it is a list that the file may not have. entry: index in the
 * list of mappings, or YAML_TOP. where: "lagan.yaml:12:5". */
typedef void yaml_key(void *arg, int entry, const char *key, const char *value, const char *where,
                      unsigned line);

/* Reads the file and calls take(arg, ...) for each key. entries: key of the list of mappings; NULL:
 * the file has none, and take() is called for each scalar of a list. Returns 0 if the file was
 * parsed, even if errors were added to *p. -ENOENT: no such file; adds no error. */
int yaml_read(const char *path, const char *entries, yaml_key *take, void *arg,
              struct problems *p) MUST_USE;

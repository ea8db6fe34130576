/* yaml.h - a configuration file as keys and values, each with the place it stands at.
 *
 * The subset that a configuration needs: mappings nested to depth 8, whose keys are joined by '.';
 * scalars; and the one list, models, whose entries are mappings. Anchors, aliases, tags, several
 * documents and keys given twice are refused. Everything wrong is told at once, with file:line:column.
 */
#ifndef DAEMON_CONFIG_YAML_H
#define DAEMON_CONFIG_YAML_H

#include "base/base.h"
#include "base/err.h"
#include "daemon/config/problems.h"

enum { YAML_TOP = -1 }; /* the key stands outside models */

/* model: the entry of models it belongs to, or YAML_TOP. where: "lagan.yaml:12:5". */
typedef void yaml_key(void *arg, int model, const char *key, const char *value, const char *where,
                      unsigned line);

/* -ENOENT: there is no such file. Other failures are in *p; 0 when the file could be walked. */
int yaml_read(const char *path, yaml_key *take, void *arg, struct problems *p) MUST_USE;
int yaml_text(const char *name, const char *text, size_t n, yaml_key *take, void *arg,
              struct problems *p) MUST_USE;

#endif

/* request_options.h - request keys from command line options and from JSON lines. */
#pragma once

#include "ctl/ctl.h"

enum request_field {
#define X(kind, name, least, most, preset, record, fallback, sentence) FIELD_##name,
    LAGAN_FIELDS(X)
#undef X
        N_FIELDS
};

struct request_args {
    const char *given[N_FIELDS]; /* text of the option; NULL: not given */
    const char *stop[LAGAN_MAX_STOPS + 1];
    size_t n_stop;
};

/* Options of all keys, then those of the table rest; the last has key NULL. */
#define REQUEST_OPTS_MAX (N_FIELDS + 8)
void request_opts(struct opt *table, const struct opt *rest);

/* Parses all options of a command: keys into a, --json, options of the table own into to, with
 * their defaults. For the sentence of -EINVAL: all is the table of all options, prompt says how a
 * prompt is given. */
int request_read(struct request_args *a, const struct opt *all, const struct opt *own, void *to,
                 bool *json, const char *prompt, int argc, char **argv, struct err *e) MUST_USE;

/* Writes the options into r. -EINVAL: a value has the wrong type. */
int request_from_args(struct lagan_request *r, const struct request_args *a,
                      struct err *e) MUST_USE;

/* Writes the keys of a JSON line into r, replacing present ones; skips "tag". lagand validates the
 * values. */
int request_from_json(struct lagan_request *r, const json_t *line, struct err *e) MUST_USE;

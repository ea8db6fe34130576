/* request_options.h - makes requests from command line options and from JSON lines. */
#pragma once
#include "ctl/ctl.h"

enum request_field {
#define X(kind, name, least, most, preset, record, fallback, sentence) FIELD_##name,
    LAGAN_FIELDS(X)
#undef X
        N_FIELDS
};

struct request_args {
    const char *given[N_FIELDS]; /* by key: value of the option as text; NULL: not given */
    const char *stop[LAGAN_MAX_STOPS + 1];
    size_t n_stop;
};

/* Fills table with an option for each key, then the rows of rest; the last has key NULL. */
#define REQUEST_OPTS_MAX (N_FIELDS + 8)
void request_opts(struct opt *table, const struct opt *rest);

/* Parses all options of a command: options of keys into *a, --json into *json, options of the table
 * own into the struct *to, with their defaults. For the error sentence of -EINVAL: all is the table
 * of all options; prompt says how the command takes its prompt. */
int request_read(struct request_args *a, const struct opt *all, const struct opt *own, void *to,
                 bool *json, const char *prompt, int argc, char **argv, struct err *e) MUST_USE;

/* Sets the keys of the given options (a) in r. -EINVAL: a value has the wrong type. */
int request_from_args(struct lagan_request *r, const struct request_args *a,
                      struct err *e) MUST_USE;

/* Sets the keys of a JSON line in r, except "tag"; they replace keys of r. */
int request_from_json(struct lagan_request *r, const json_t *line, struct err *e) MUST_USE;

/* request_options.h - the keys of a request, from options and from a line of JSON. */
#ifndef CTL_REQUEST_OPTIONS_H
#define CTL_REQUEST_OPTIONS_H

#include "ctl/ctl.h"

enum request_field {
#define X(kind, name, least, most, preset, record, fallback, sentence) FIELD_##name,
    LAGAN_FIELDS(X)
#undef X
        N_FIELDS
};

struct request_args {
    const char *given[N_FIELDS]; /* as on the command line; NULL: not given */
    const char *stop[LAGAN_MAX_STOPS + 1];
    size_t n_stop;
};

/* Options of every field, then those of the table rest; ended by key NULL. */
#define REQUEST_OPTS_MAX (N_FIELDS + 8)
void request_opts(struct opt *table, const struct opt *rest);

/* Take argv[*at] if it is a field's option, and its value. 1 taken, 0 another's, -EINVAL. */
int request_arg(struct request_args *a, int argc, char **argv, int *at, struct err *e) MUST_USE;

/* All options of a command: fields into a, --json, and those of the table own into to, which it fills with their
 * defaults. For the sentence of -EINVAL, all: what the command takes; prompt: where it takes that from. */
int request_read(struct request_args *a, const struct opt *all, const struct opt *own, void *to,
                 bool *json, const char *prompt, int argc, char **argv, struct err *e) MUST_USE;

/* Write the options into r. -EINVAL: a value that is not of its type. */
int request_from_args(struct lagan_request *r, const struct request_args *a,
                      struct err *e) MUST_USE;

/* Write a line's keys into r, over what is there; "tag" is left out. Values go as they are: lagand
 * says what is wrong with them. */
int request_from_json(struct lagan_request *r, const json_t *line, struct err *e) MUST_USE;

#endif

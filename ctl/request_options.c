/* request_options.c - see request_options.h. Each option is a key of LAGAN_FIELDS. */
#include "ctl/request_options.h"

#include <stdio.h>

enum kind { IDS, STR, U32, I32, U64, F64, OVER, BOOL, EARLY, STOPS, BIAS, ANY };

static const struct field {
    const char *key;
    enum kind kind;
    const char *preset, *sentence;
} fields[] = {
#define X(kind, name, least, most, preset, record, fallback, sentence) \
    { #name, kind, #preset, sentence },
    LAGAN_FIELDS(X)
#undef X
};

/* Returns true for keys of LAGAN_FIELDS that have no option. */
static bool
hidden(enum request_field f)
{
    return f == FIELD_idempotency_key || f == FIELD_ack_window || f == FIELD_resume ||
           f == FIELD_encoder_features;
}

static const char *
arg_word(const struct field *f)
{
    static const char *const words[] = {
        [IDS] = "1,2,3", [STR] = "TEXT",       [STOPS] = "TEXT",
        [F64] = "X",     [OVER] = "X",         [EARLY] = "true|false|never",
        [U32] = "N",     [I32] = "N",          [U64] = "N",
        [ANY] = "N",     [BIAS] = "ID:X,ID:X", [BOOL] = NULL,
    };

    return strncmp(f->key, "forced", 6) ? words[f->kind] : "ID";
}

/* Returns the default as text; NULL if it means off or depends on the model. */
static const char *
default_word(const struct field *f)
{
    bool number = f->kind == U32 || f->kind == F64 || f->kind == OVER;

    return number && strncmp(f->key, "logprobs", 8) && strncmp(f->key, "prompt_", 7) ? f->preset
                                                                                     : NULL;
}

void
request_opts(struct opt *table, const struct opt *rest)
{
    size_t n = 0;

    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];

        if (hidden(i)) continue;
        table[n++] = (struct opt){ .key = f->key,
                                   .type = f->kind == BOOL ? OPT_BOOL : OPT_STR,
                                   .arg = arg_word(f),
                                   .def = default_word(f),
                                   .sentence = f->sentence };
    }
    for (; rest->key; rest++) table[n++] = *rest;
    check(n < REQUEST_OPTS_MAX);
    table[n] = (struct opt){ 0 };
}

static const struct field *
field_of_option(const char *arg, size_t n)
{
    size_t i, k;

    for (i = 0; i < N_FIELDS; i++) {
        if (hidden(i) || strlen(fields[i].key) != n) continue;
        for (k = 0; k < n && (arg[k] == '-' ? '_' : arg[k]) == fields[i].key[k]; k++) continue;
        if (k == n) return &fields[i];
    }
    return NULL;
}

/* Parses the option at argv[*at] if it belongs to a key. Returns 1: yes; 0: no; -EINVAL. */
static int
request_arg(struct request_args *a, int argc, char **argv, int *at, struct err *e)
{
    const char *arg = argv[*at] + 2, *value;
    size_t n = strcspn(arg, "=");
    const struct field *f = strncmp(argv[*at], "--", 2) ? NULL : field_of_option(arg, n);

    if (!f) return 0;
    if (arg[n])
        value = arg + n + 1;
    else if (f->kind == BOOL)
        value = "true";
    else if (*at + 1 < argc)
        value = argv[++*at];
    else
        return err_set(e, -EINVAL, "--%.*s needs a value: %s", (int)n, arg, arg_word(f));
    ++*at;
    if (f->kind != STOPS && a->given[f - fields] && strcmp(a->given[f - fields], value))
        return err_set(e, -EINVAL,
                       "--%.*s is given as \"%.60s\" and as \"%.60s\"; it takes one value", (int)n,
                       arg, a->given[f - fields], value);
    a->given[f - fields] = value;
    if (f->kind == STOPS) {
        if (a->n_stop == LAGAN_MAX_STOPS)
            return err_set(e, -EINVAL, "--stop may be given at most %d times", LAGAN_MAX_STOPS);
        a->stop[a->n_stop++] = value;
    }
    return 1;
}

static int
own_option(const struct opt *all, const struct opt *own, void *to, uint64_t *given, int argc,
           char **argv, int *at, struct err *e)
{
    const struct opt *o;
    char name[64];
    int r;

    snprintf(name, sizeof name, "%.*s", (int)strcspn(argv[*at] + 2, "="), argv[*at] + 2);
    for (char *p = name; *p; p++) *p = *p == '-' ? '_' : *p;
    o = opt_find(own, name, strlen(name));
    if (o)
        return opt_argv(own, to, given,
                        o->type == OPT_BOOL || strchr(argv[*at], '=') ? *at + 1
                                                                      : MIN(*at + 2, argc),
                        argv, at, e);
    /* opt_set() fails and suggests a similar option */
    r = opt_set(all, to, name, "", "command line", e);
    return r < 0 ? r : err_set(e, -EINVAL, "there is no option '%.60s'", argv[*at]);
}

int
request_read(struct request_args *a, const struct opt *all, const struct opt *own, void *to,
             bool *json, const char *prompt, int argc, char **argv, struct err *e)
{
    uint64_t given = 0;
    int at = 0, r;

    opt_defaults(own, to);
    *json = false;
    while (at < argc) {
        if (!strcmp(argv[at], "--json")) {
            *json = true, at++;
            continue;
        }
        if (strncmp(argv[at], "--", 2) || !argv[at][2])
            return err_set(e, -EINVAL, "'%.60s' is not an option; %s", argv[at], prompt);
        TRY(r = request_arg(a, argc, argv, &at, e));
        if (r == 0) TRY(own_option(all, own, to, &given, argc, argv, &at, e));
    }
    return 0;
}

static int
whole_number(const char *s, int64_t *ret)
{
    char *end;

    errno = 0;
    *ret = strtoll(s, &end, 10);
    return errno || end == s || *end ? -EINVAL : 0;
}

/* Sets logit_bias from text such as 5:-100,7:2.5. */
static int
set_bias(struct lagan_request *r, const struct field *f, const char *s, struct err *e)
{
    int32_t id[LAGAN_MAX_BIAS];
    float bias[LAGAN_MAX_BIAS];
    size_t n = 0;

    while (n < LAGAN_MAX_BIAS) {
        char *end;
        long v = strtol(s, &end, 10);

        if (end == s || *end != ':' || v < 0 || v > INT32_MAX) break;
        s = end + 1;
        id[n] = (int32_t)v;
        bias[n++] = strtof(s, &end);
        if (end == s || (*end && *end != ',')) break;
        if (!*end) return lagan_set_bias(r, f->key, id, bias, n);
        s = end + 1;
    }
    return err_set(e, -EINVAL,
                   "%s: expected a list TOKEN_ID:BIAS,... of at most %d entries at '%.40s'", f->key,
                   LAGAN_MAX_BIAS, s);
}

static int
set_from_text(struct lagan_request *r, const struct field *f, const char *s, struct err *e)
{
    int32_t *ids;
    size_t n;
    int64_t v;
    double d;
    char *end;
    int k;

    switch (f->kind) {
    case IDS:
        k = parse_ids(s, &ids, &n, e);
        if (k < 0) return err_while(e, k, "%s", f->key);
        k = lagan_set_ids(r, f->key, ids, n);
        free(ids);
        return k;
    case U32:
    case I32:
    case U64:
        if (whole_number(s, &v) < 0)
            return err_set(e, -EINVAL, "%s: '%.40s' is not a whole number", f->key, s);
        return lagan_set_int(r, f->key, v);
    case BIAS:
        return set_bias(r, f, s, e);
    case F64:
    case OVER:
        d = strtod(s, &end);
        if (end == s || *end || d != d || d > 1e300 || d < -1e300)
            return err_set(e, -EINVAL, "%s: '%.40s' is not a number", f->key, s);
        return lagan_set_float(r, f->key, d);
    case BOOL:
    case EARLY:
        if (!strcmp(s, "true") || !strcmp(s, "false")) return lagan_set_bool(r, f->key, *s == 't');
        if (f->kind == EARLY && !strcmp(s, "never")) return lagan_set_str(r, f->key, s, 5);
        return err_set(e, -EINVAL, "%s: '%.40s' is not %s", f->key, s,
                       f->kind == EARLY ? "true, false or never" : "true or false");
    default:
        return lagan_set_str(r, f->key, s, strlen(s));
    }
}

int
request_from_args(struct lagan_request *r, const struct request_args *a, struct err *e)
{
    for (size_t i = 0; i < N_FIELDS; i++) {
        int k;

        if (!a->given[i]) continue;
        e->code = 0;
        if (fields[i].kind == STOPS)
            k = lagan_set_strs(r, fields[i].key, a->stop, a->n_stop);
        else
            k = set_from_text(r, &fields[i], a->given[i], e);
        if (k < 0) return e->code ? k : err_set(e, k, "%s", lagan_errmsg(NULL));
    }
    return 0;
}

/* Sets logit_bias from a JSON list such as [[5, -100], [7, 2.5]]. */
static int
set_pairs(struct lagan_request *r, const char *key, const json_t *list, struct err *e)
{
    int32_t id[LAGAN_MAX_BIAS];
    float bias[LAGAN_MAX_BIAS];
    size_t n = json_array_size(list), i;
    const json_t *x;

    if (n > LAGAN_MAX_BIAS)
        return err_set(e, -EINVAL, "%.64s has %zu entries, the maximum is %d", key, n,
                       LAGAN_MAX_BIAS);
    json_array_foreach(list, i, x)
    {
        json_int_t v = json_integer_value(json_array_get(x, 0));

        if (!json_is_integer(json_array_get(x, 0)) || !json_is_number(json_array_get(x, 1)) ||
            v < 0 || v > INT32_MAX)
            return err_set(e, -EINVAL, "%.64s[%zu] must be a pair [token id, bias]", key, i);
        id[i] = (int32_t)v;
        bias[i] = (float)json_number_value(json_array_get(x, 1));
    }
    return lagan_set_bias(r, key, id, bias, n);
}

static int
set_from_list(struct lagan_request *r, const char *key, const json_t *list, struct err *e)
{
    size_t n = json_array_size(list), i;
    const json_t *x;
    int k;

    if (!strcmp(key, "logit_bias")) return set_pairs(r, key, list, e);
    if (json_is_string(json_array_get(list, 0)) || (!n && !strcmp(key, "stop"))) {
        const char **s = calloc(n + 1, sizeof *s);

        if (!s) return err_set(e, -ENOMEM, "out of memory for the value of %.64s", key);
        json_array_foreach(list, i, x) s[i] = json_string_value(x) ? json_string_value(x) : "";
        k = lagan_set_strs(r, key, s, n);
        free(s);
        return k;
    }
    int32_t *ids = malloc((n + 1) * sizeof *ids);

    if (!ids) return err_set(e, -ENOMEM, "out of memory for the value of %.64s", key);
    json_array_foreach(list, i, x)
    {
        json_int_t v = json_integer_value(x);

        if (!json_is_integer(x) || v < INT32_MIN || v > INT32_MAX) {
            free(ids);
            return err_set(e, -EINVAL, "%.64s[%zu] is not a token id", key, i);
        }
        ids[i] = (int32_t)v;
    }
    k = lagan_set_ids(r, key, ids, n);
    free(ids);
    return k;
}

static int
set_json(struct lagan_request *r, const char *key, const json_t *v, struct err *e)
{
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    int k = text ? lagan_set_str(r, key, text, strlen(text))
                 : err_set(e, -ENOMEM, "out of memory for the value of %.64s", key);

    free(text);
    return k;
}

int
request_from_json(struct lagan_request *r, const json_t *line, struct err *e)
{
    const char *key;
    json_t *v;

    if (!json_is_object(line)) return err_set(e, -EINVAL, "the line is not a JSON object");
    json_object_foreach((json_t *)(uintptr_t)line, key, v)
    {
        int k = 0;

        e->code = 0;
        if (!strcmp(key, "tag") || json_is_null(v)) continue;
        if (json_is_integer(v))
            k = lagan_set_int(r, key, json_integer_value(v));
        else if (json_is_real(v))
            k = lagan_set_float(r, key, json_real_value(v));
        else if (json_is_boolean(v))
            k = lagan_set_bool(r, key, json_is_true(v));
        else if (json_is_string(v))
            k = lagan_set_str(r, key, json_string_value(v), json_string_length(v));
        else if (!strcmp(key, "messages"))
            k = set_json(r, key, v, e);
        else if (json_is_array(v))
            k = set_from_list(r, key, v, e);
        else if (!strcmp(key, "encoder_features"))
            k = lagan_set_bool(r, key, 1); /* any value: lagand rejects the key */
        else
            return err_set(e, -EINVAL, "%.64s is an object; no key of a request takes an object",
                           key);
        if (k < 0) return e->code ? k : err_set(e, k, "%s", lagan_errmsg(NULL));
    }
    return 0;
}

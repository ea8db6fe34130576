/* opt.c - see opt.h. In this order: parsers of values, set, argv, printed texts. */
#include "base/opt.h"

#include "base/similar.h"

#include <inttypes.h>
#include <math.h>

struct unit {
    const char *name;
    double times;
    bool read_only; /* accepted as input, but never printed */
};

/* Units that values are written with. A printed 0 has the first unit of the list. */
static const struct unit byte_units[] = {
    { "", 1, false },         { "B", 1, true },         { "KiB", 0x1p10, false },
    { "MiB", 0x1p20, false }, { "GiB", 0x1p30, false }, { "TiB", 0x1p40, false },
    { "kB", 1e3, true },      { "KB", 1e3, true },      { "MB", 1e6, true },
    { "GB", 1e9, true },      { "TB", 1e12, true },     { NULL },
};

static const struct unit time_units[] = {
    { "s", 1e9, false },
    { "ns", 1, false },
    { "us", 1e3, false },
    { "ms", 1e6, false },
    { "min", 60e9, false },
    { "h", 3600e9, false },
    { NULL },
};

/* clang-format off */
/* By opt_type: bytes of the field, largest value, units, description for errors and the manual. */
static const struct {
    size_t size;
    uint64_t most;
    const struct unit *units;
    const char *form;
} types[] = {
    [OPT_BOOL]  = { sizeof(bool), 1, NULL, "true or false" },
    [OPT_U32]   = { 4, UINT32_MAX, NULL, "a whole number of 0 or more" },
    [OPT_U64]   = { 8, UINT64_MAX, NULL, "a whole number of 0 or more" },
    [OPT_F64]   = { 8, UINT64_MAX, NULL, "a number" },
    [OPT_BYTES] = { 8, UINT64_MAX, byte_units, "a size such as 512, 64KiB or 1.5GiB" },
    [OPT_NSEC]  = { 8, INT64_MAX, time_units, "a time such as 250ms, 3s or 10min" },
    [OPT_ENUM]  = { 4, UINT32_MAX, NULL, NULL },
    [OPT_STR]   = { 0, 0, NULL, "text" },
    [OPT_I32]   = { 4, INT32_MAX, NULL, "a whole number" },
};
/* clang-format on */

static const char *
form_of(const struct opt *o)
{
    return o->type == OPT_ENUM ? o->choices : types[o->type].form;
}

/* Parses a number of digits only: " 1", "+1", "0x10" and "1e3" are rejected. */
static bool
parse_u64(const char *s, size_t n, uint64_t *ret)
{
    *ret = 0;
    for (size_t i = 0; i < n; i++)
        if (s[i] < '0' || s[i] > '9' || __builtin_mul_overflow(*ret, 10, ret) ||
            __builtin_add_overflow(*ret, (uint64_t)(s[i] - '0'), ret))
            return false;
    return n > 0;
}

static bool
parse_double(const char *s, double *ret)
{
    char *end;

    if (!(*s >= '0' && *s <= '9') && *s != '-' && *s != '.') return false;
    if (strpbrk(s, "xXpP")) return false;
    *ret = strtod(s, &end);
    return *end == 0 && isfinite(*ret);
}

/* Parses a number with a unit of u, as "1.5GiB". Integers are exact, fractions rounded. */
static bool
parse_units(const char *s, const struct unit *u, uint64_t *ret)
{
    size_t whole = strspn(s, "0123456789"), all = strspn(s, "0123456789.");
    char number[32];
    double v;

    *ret = 0;
    if (strcmp(s, "0") == 0) return true; /* 0 needs no unit */
    if (all == 0 || all >= sizeof number) return false;
    while (u->name && strcmp(s + all, u->name)) u++;
    if (!u->name) return false;
    if (whole == all)
        return parse_u64(s, whole, ret) && !__builtin_mul_overflow(*ret, (uint64_t)u->times, ret);
    memcpy(number, s, all);
    number[all] = 0;
    if (!parse_double(number, &v) || v * u->times >= 0x1p63) return false;
    *ret = (uint64_t)(v * u->times + 0.5);
    return true;
}

/* Sets *ret to the index of s in choices ("off|auto|fixed"). Returns false if it is not there. */
static bool
parse_choice(const char *choices, const char *s, uint64_t *ret)
{
    size_t len = strlen(s);

    for (*ret = 0;; ++*ret) {
        size_t n = strcspn(choices, "|");

        if (n == len && memcmp(choices, s, n) == 0) return true;
        if (!choices[n]) return false;
        choices += n + 1;
    }
}

/* Parses a value of any type but OPT_STR. *bits: the value as stored in the field, in its first
 * bytes (little-endian). *v: the value as a number, to compare with the range. */
static bool
parse_value(const struct opt *o, const char *s, uint64_t *bits, double *v)
{
    bool minus = o->type == OPT_I32 && *s == '-', ok;

    switch (o->type) {
    case OPT_F64:
        ok = parse_double(s, v);
        memcpy(bits, v, sizeof *bits);
        return ok;
    case OPT_BOOL:
        ok = parse_choice("false|true|no|yes|0|1", s, bits);
        *bits &= 1;
        break;
    case OPT_ENUM:
        ok = parse_choice(o->choices, s, bits);
        break;
    case OPT_BYTES:
    case OPT_NSEC:
        ok = parse_units(s, types[o->type].units, bits);
        break;
    default:
        ok = parse_u64(s + minus, strlen(s + minus), bits);
    }
    ok = ok && *bits <= types[o->type].most + minus;
    *v = minus ? -(double)*bits : (double)*bits;
    if (minus) *bits = -*bits;
    return ok;
}

static bool
power_of_two(double v)
{
    int e;

    return v > 0 && frexp(v, &e) == 0.5;
}

/* Prints v with the largest unit that divides it, so that the text parses to the same number. */
static void
print_units(char *buf, size_t n, uint64_t v, const struct unit *u)
{
    const struct unit *best = u;

    for (; v && u->name; u++)
        if (!u->read_only && v % (uint64_t)u->times == 0 &&
            (v % (uint64_t)best->times || u->times > best->times))
            best = u;
    snprintf(buf, n, "%" PRIu64 "%s", v / (uint64_t)best->times, best->name);
}

/* Writes the limit v of a range into buf, with a unit as opt_set() accepts it. */
static const char *
limit_text(const struct opt *o, double v, char *buf, size_t n)
{
    if (types[o->type].units) {
        print_units(buf, n, (uint64_t)v, types[o->type].units);
    } else {
        snprintf(buf, n, "%.15g", v);
    }
    return buf;
}

/* Writes the range: "from 1 to 128", "at least 1ms", or "" if only the type limits it. */
static const char *
range_of(const struct opt *o, char *buf, size_t n)
{
    const char *pow2 = o->flags & OPT_POW2 ? "a power of two " : "";
    char min[32], max[32];

    limit_text(o, o->min, min, sizeof min);
    limit_text(o, o->max, max, sizeof max);
    if (o->min == 0 && o->max == 0) {
        snprintf(buf, n, "%s", *pow2 ? "a power of two" : "");
    } else if (o->max == 0) {
        snprintf(buf, n, "%sat least %s", pow2, min);
    } else {
        snprintf(buf, n, "%sfrom %s to %s", pow2, min, max);
    }
    return buf;
}

static bool
in_range(const struct opt *o, double v)
{
    if (o->flags & OPT_POW2 && !power_of_two(v)) return false;
    if (o->min == 0 && o->max == 0) return true;
    return v >= o->min && (o->max == 0 || v <= o->max);
}

static int
set_str(const struct opt *o, char *to, const char *value, const char *where, struct err *e)
{
    size_t used = o->flags & OPT_REPEAT ? strlen(to) : 0;
    size_t n = strlen(value), joint = used > 0;

    if (used + joint + n >= o->size) {
        return err_set(e, -EINVAL, "%s: %s: the value has %zu bytes, the maximum is %zu", where,
                       o->key, used + joint + n, o->size - 1);
    }
    if (joint) to[used] = '\n';
    memcpy(to + used + joint, value, n + 1);
    return 0;
}

static int
set_value(const struct opt *o, void *base, const char *value, const char *where, struct err *e)
{
    char *to = (char *)base + o->offset, range[96];
    const char *or_auto = o->flags & OPT_AUTO ? ", or auto" : "";
    bool is_auto = *or_auto && strcmp(value, "auto") == 0;
    uint64_t bits = 0;
    double v = 0;

    if (o->type == OPT_STR) return set_str(o, to, value, where, e);
    if (!is_auto && !parse_value(o, value, &bits, &v))
        return err_set(e, -EINVAL, "%s: %s: \"%.60s\" is not %s%s%s", where, o->key, value,
                       o->type == OPT_ENUM ? "one of " : "", form_of(o), or_auto);
    if (!is_auto && !in_range(o, v))
        return err_set(e, -EINVAL, "%s: %s: %.60s is out of range; the value must be %s%s", where,
                       o->key, value, range_of(o, range, sizeof range), or_auto);
    memcpy(to, &bits, types[o->type].size);
    return 0;
}

const struct opt *
opt_find(const struct opt *table, const char *key, size_t len)
{
    for (const struct opt *o = table; o->key; o++) {
        if (strlen(o->key) == len && memcmp(o->key, key, len) == 0) return o;
    }
    return NULL;
}

static int
no_such_key(const struct opt *table, const char *key, size_t len, const char *where, struct err *e)
{
    struct similar near = { 0 };

    for (const struct opt *o = table; o->key; o++)
        if (!(o->flags & OPT_HIDDEN)) similar_compare(&near, key, len, o->key);
    if (!near.name) {
        return err_set(e, -ENOENT, "%s: unknown key \"%.*s\"", where, (int)MIN(len, 60u), key);
    }
    return err_set(e, -ENOENT, "%s: unknown key \"%.*s\"; did you mean %s?", where,
                   (int)MIN(len, 60u), key, near.name);
}

void
opt_defaults(const struct opt *table, void *to)
{
    for (const struct opt *o = table; o->key; o++) {
        struct err e = { 0 };
        size_t size = o->type == OPT_STR ? o->size : types[o->type].size;

        check(o->size == size); /* the field has the type of the row */
        memset((char *)to + o->offset, 0, size);
        if (o->def) check(set_value(o, to, o->def, "default", &e) == 0);
    }
}

int
opt_set(const struct opt *table, void *to, const char *key, const char *value, const char *where,
        struct err *e)
{
    const struct opt *o = opt_find(table, key, strlen(key));

    if (!o) return no_such_key(table, key, strlen(key), where, e);
    return set_value(o, to, value, where, e);
}

static const char ARGV[] = "command line";

/* Handles an option that was given before: -EINVAL unless both values are equal when parsed. */
static int
give_again(const struct opt *o, const void *to, const char *value, struct err *e)
{
    const char *has = (const char *)to + o->offset;
    struct opt alone = *o;
    uint64_t v = 0;
    char text[64];

    alone.offset = 0;
    if (o->type != OPT_STR) TRY(set_value(&alone, &v, value, ARGV, e));
    if (o->type == OPT_STR ? !strcmp(has, value) : !memcmp(has, &v, o->size)) return 0;
    return err_set(e, -EINVAL, "%s: %s is given as \"%s\" and as \"%.60s\"; it takes one value",
                   ARGV, o->key, opt_text(o, to, text, sizeof text), value);
}

int
opt_give(const struct opt *table, void *to, uint64_t *given, const char *key, const char *value,
         struct err *e)
{
    const struct opt *o = opt_find(table, key, strlen(key));
    uint64_t bit;

    if (!o) return no_such_key(table, key, strlen(key), ARGV, e);
    check(o - table < 64);
    bit = 1ull << (o - table);
    if (*given & bit && !(o->flags & OPT_REPEAT)) return give_again(o, to, value, e);
    TRY(set_value(o, to, value, ARGV, e));
    *given |= bit;
    return 0;
}

int
opt_argv(const struct opt *table, void *to, uint64_t *given, int argc, char **argv, int *at,
         struct err *e)
{
    for (; *at < argc; ++*at) {
        const char *arg = strcmp(argv[*at], "-h") ? argv[*at] : "--help", *value;
        size_t len;
        char key[64];
        const struct opt *o;

        if (strncmp(arg, "--", 2)) break;
        arg += 2;
        len = strcspn(arg, "=");
        if (!*arg) { /* "--" */
            ++*at;
            break;
        }
        if (len >= sizeof key) return no_such_key(table, arg, len, ARGV, e);
        for (size_t i = 0; i < len; i++) key[i] = arg[i] == '-' ? '_' : arg[i];
        key[len] = 0;
        o = opt_find(table, key, len);
        if (!o) return no_such_key(table, key, len, ARGV, e);
        if (arg[len] == '=') {
            value = arg + len + 1;
        } else if (o->type == OPT_BOOL) {
            value = "true";
        } else if (o->flags & OPT_BARE) {
            value = "0";
        } else if (*at + 1 < argc) {
            value = argv[++*at];
        } else {
            return err_set(e, -EINVAL, "%s: --%s needs a value: %s", ARGV, o->key,
                           o->type == OPT_STR && o->arg ? o->arg : form_of(o));
        }
        TRY(opt_give(table, to, given, key, value, e));
    }
    return 0;
}

const char *
opt_text(const struct opt *o, const void *from, char *buf, size_t n)
{
    const char *at = (const char *)from + o->offset, *choice = o->choices;
    uint64_t bits = 0;
    double f64;

    memcpy(&bits, at, types[o->type].size);
    if (o->flags & OPT_AUTO && bits == 0) {
        snprintf(buf, n, "auto");
        return buf;
    }
    switch (o->type) {
    case OPT_BOOL:
        snprintf(buf, n, "%s", bits ? "true" : "false");
        break;
    case OPT_STR:
        snprintf(buf, n, "%s", at);
        break;
    case OPT_I32:
        snprintf(buf, n, "%d", (int32_t)bits);
        break;
    case OPT_BYTES:
    case OPT_NSEC:
        print_units(buf, n, bits, types[o->type].units);
        break;
    case OPT_F64:
        memcpy(&f64, &bits, sizeof f64);
        /* the shortest text that parses to the same number: 0.1, not 0.10000000000000001 */
        for (int digits = 1; digits <= 17; digits++) {
            snprintf(buf, n, "%.*g", digits, f64);
            if (strtod(buf, NULL) == f64) break;
        }
        break;
    case OPT_ENUM:
        for (; bits && *choice; bits--) choice += strcspn(choice, "|") + 1;
        snprintf(buf, n, "%.*s", (int)strcspn(choice, "|"), choice);
        break;
    default:
        snprintf(buf, n, "%" PRIu64, bits);
    }
    return buf;
}

/* Prints text, broken before column 80; continuation lines are indented by indent. */
static void
print_wrapped(FILE *out, const char *text, size_t indent, size_t column)
{
    while (*text) {
        size_t n = strcspn(text, " ");

        if (column > indent && column + 1 + n > 79) {
            fprintf(out, "\n%*s", (int)indent, "");
            column = indent;
        }
        if (column > indent) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", (int)n, text);
        column += n;
        text += n + (text[n] == ' ');
    }
    fputc('\n', out);
}

static const char *
arg_of(const struct opt *o)
{
    return o->arg ? o->arg : o->type == OPT_ENUM ? o->choices : "";
}

/* Writes the key into buf as it is printed in this form; returns buf. */
static const char *
written_key(const struct opt *o, enum opt_form form, char *buf, size_t n)
{
    snprintf(buf, n, "%s%s", form == OPT_TYPED ? "--" : "", o->key);
    for (char *c = buf; *c && form == OPT_TYPED; c++) {
        if (*c == '_') *c = '-';
    }
    return buf;
}

void
opt_help(const struct opt *table, enum opt_form form, FILE *out)
{
    enum { SENTENCE_AT = 30 };

    for (const struct opt *o = table; o->key; o++) {
        const char *def;
        char text[640];
        size_t left;

        if (o->flags & OPT_HIDDEN) continue;
        left = (size_t)fprintf(out,
                               o->flags & OPT_BARE ? "  %s[=%s]"
                               : *arg_of(o)        ? "  %s %s"
                                                   : "  %s",
                               written_key(o, form, text, sizeof text), arg_of(o));
        if (left > SENTENCE_AT - 2) {
            fputc('\n', out);
            left = 0;
        }
        fprintf(out, "%*s", (int)(SENTENCE_AT - left), "");
        def = o->type == OPT_BOOL && !o->arg ? "" : o->def ? o->def : ""; /* a flag is off */
        snprintf(text, sizeof text, "%s%s%s%s", o->sentence, *def ? " [" : "", def,
                 *def ? "]" : "");
        print_wrapped(out, text, SENTENCE_AT, SENTENCE_AT);
    }
}

void
opt_roff(FILE *out, const char *s)
{
    static const char *const names[][2] = { { "\\", "\\e" },  { "-", "\\-" },   { "'", "\\(aq" },
                                            { "`", "\\(ga" }, { "~", "\\(ti" }, { "^", "\\(ha" } };

    if (*s == '.') fputs("\\&", out);
    for (; *s; s++) {
        size_t i = 0;

        while (i < ARRAY_LEN(names) && *s != *names[i][0]) i++;
        if (i < ARRAY_LEN(names)) {
            fputs(names[i][1], out);
        } else {
            fputc(*s, out);
        }
    }
}

/* Prints type, range and default of a row as a sentence; nothing for a flag of a command line. */
static void
manual_value(const struct opt *o, enum opt_form form, FILE *out)
{
    bool flag = o->type == OPT_BOOL && form == OPT_TYPED;
    bool kind = o->type != OPT_STR && !flag;
    bool def = o->def && *o->def && !flag;
    char range[96];

    if (kind) {
        fputs("The value is ", out);
        if (!*range_of(o, range, sizeof range)) {
            opt_roff(out, form_of(o));
        } else if (o->type == OPT_U32 || o->type == OPT_U64) { /* the range replaces "0 or more" */
            fprintf(out, "a whole number%s ", o->flags & OPT_POW2 ? "," : "");
            opt_roff(out, range);
        } else {
            opt_roff(out, form_of(o));
            fputs(", ", out);
            opt_roff(out, range);
        }
        if (o->flags & OPT_AUTO) fputs(", or auto", out);
    }
    if (def) {
        fputs(kind ? "; the default is " : "The default is ", out);
        opt_roff(out, o->def);
    }
    if (kind || def) fputs(".\n", out);
}

void
opt_manual(const struct opt *table, enum opt_form form, FILE *out)
{
    fputs(".Bl -tag -width Ds\n", out);
    for (const struct opt *o = table; o->key; o++) {
        char key[80];

        if (o->flags & OPT_HIDDEN) continue;
        fputs(".It Cm ", out);
        opt_roff(out, written_key(o, form, key, sizeof key));
        if (*arg_of(o)) {
            fputs(o->flags & OPT_BARE ? " Op Ar =" : " Ar ", out);
            opt_roff(out, arg_of(o));
        }
        fputc('\n', out);
        opt_roff(out, o->sentence);
        fputs(".\n", out);
        manual_value(o, form, out);
        if (o->flags & OPT_RESTART) fputs("A change needs a restart of the worker.\n", out);
    }
    fputs(".El\n", out);
}

/* msg_field.c - see msg_field.h. */
#include "wire/msg_field.h"

#include "base/similar.h"

static const struct {
    const char *key;
    enum msg_kind kind;
} fields[] = {
#define X(kind, name, least, most, preset, record, fallback, sentence) { #name, MSG_KIND_##kind },
    LAGAN_FIELDS(X)
#undef X
};

int
msg_field_kind(const char *key, size_t n, struct err *e)
{
    struct similar best = { 0 };

    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        if (strlen(fields[i].key) == n && !memcmp(fields[i].key, key, n))
            return (int)fields[i].kind;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) similar_compare(&best, key, n, fields[i].key);
    if (!best.name)
        return err_set(e, -ENOENT, "unknown request key \"%.*s\"", (int)MIN(n, 64u), key);
    return err_set(e, -ENOENT, "unknown request key \"%.*s\"; did you mean %s?", (int)MIN(n, 64u),
                   key, best.name);
}

const char *
msg_kind_name(enum msg_kind kind)
{
    static const char *const names[] = {
#define X(kind, sentence) [MSG_KIND_##kind] = sentence,
        LAGAN_KINDS(X)
#undef X
    };

    return names[kind];
}

/* control_verbs.h - the verbs that lagand calls on a worker's control channel.
 *
 * Args and result of a verb are those of the row with the same identifier in LAGAN_VERBS
 * (lagan_wire.h), because lagand passes both on unchanged. lagand names a verb by its enum value;
 * function verb_ID() of worker/ops/control.c serves verb ID. A verb without it does not compile.
 */
#pragma once

#define CONTROL_VERBS(X) \
    X(loglevel, "loglevel") \
    X(kv_flush, "kv flush") \
    X(tune, "tune") \
    X(tune_status, "tune status") \
    X(split_show, "split show") \
    X(split_auto, "split auto") \
    X(split_off, "split off") \
    X(split_set, "split set")

enum control_verb {
#define X(id, name) CONTROL_##id,
    CONTROL_VERBS(X)
#undef X
};

static inline const char *
control_verb_name(enum control_verb v)
{
    static const char *const names[] = {
#define X(id, name) name,
        CONTROL_VERBS(X)
#undef X
    };

    return names[v];
}

/* msg_field.h - the keys of SUBMIT: kind of the value, and a suggestion for an unknown key. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "include/lagan_wire.h"

enum msg_kind {
#define X(kind, sentence) MSG_KIND_##kind,
    LAGAN_KINDS(X)
#undef X
};

/* Returns the kind of a key of LAGAN_FIELDS; n: its bytes. -ENOENT: there is no such key; the
 * sentence of e names the most similar key. */
int msg_field_kind(const char *key, size_t n, struct err *e) MUST_USE;
const char *msg_kind_name(enum msg_kind kind); /* "an integer" */

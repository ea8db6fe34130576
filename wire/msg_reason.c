/* msg_reason.c - see msg_reason.h. */
#include "wire/msg_reason.h"

#include "include/lagan_wire.h"

#include <string.h>

const char *
msg_reason(uint32_t reason, bool *retry)
{
    if (retry) *retry = false;
    switch (reason) {
#define X(number, name, word, sentence) \
    case number: \
        return word;
        LAGAN_FINISHES(X)
#undef X
#define X(number, name, word, again, sentence) \
    case number: \
        if (retry) *retry = again; \
        return word;
        LAGAN_ERRORS(X)
#undef X
    default:
        return NULL;
    }
}

const char *
msg_reason_sentence(uint32_t reason)
{
    switch (reason) {
#define X(number, name, word, sentence) \
    case number: \
        return sentence;
        LAGAN_FINISHES(X)
#undef X
#define X(number, name, word, again, sentence) \
    case number: \
        return sentence;
        LAGAN_ERRORS(X)
#undef X
    default:
        return NULL;
    }
}

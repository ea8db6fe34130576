/* msg_reason.c - the table of finish reasons and errors, generated from lagan_wire.h. */
#include "wire/msg_reason.h"

#include "include/lagan_wire.h"

static const struct reason {
    const char *name, *sentence;
    bool retry;
} reasons[] = {
#define X(number, name, word, sentence) [number] = { word, sentence, false },
    LAGAN_FINISHES(X)
#undef X
#define X(number, name, word, retry, sentence) [number] = { word, sentence, retry },
        LAGAN_ERRORS(X)
#undef X
};

const char *
msg_reason(uint32_t reason, bool *retry)
{
    bool known = reason < ARRAY_LEN(reasons);

    if (retry) *retry = known && reasons[reason].retry;
    return known ? reasons[reason].name : NULL;
}

const char *
msg_reason_sentence(uint32_t reason)
{
    return reason < ARRAY_LEN(reasons) ? reasons[reason].sentence : NULL;
}

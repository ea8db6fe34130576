/* msg_reason.h - the words of the closed lists of lagan_wire.h: how an output ends, and errors.
 *
 * Apart from msg.h, so that programs without MessagePack say them too.
 */
#ifndef WIRE_MSG_REASON_H
#define WIRE_MSG_REASON_H

#include "base/base.h"

/* "eos", "too_long"; NULL: unknown. retry: may be NULL. */
const char *msg_reason(uint32_t reason, bool *retry);
const char *msg_reason_sentence(uint32_t reason);

#endif

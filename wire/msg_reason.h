/* msg_reason.h - returns the name and the sentence of a finish reason or error of lagan_wire.h.
 *
 * Separate from msg.h, because some programs use reasons, but not MessagePack. */
#pragma once
#include "base/base.h"

/* Returns the name of enum lagan_reason, such as "eos"; NULL: the number is unknown. Sets *retry to
 * true if the same request may succeed later; retry may be NULL. */
const char *msg_reason(uint32_t reason, bool *retry);
const char *msg_reason_sentence(uint32_t reason);

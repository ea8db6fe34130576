/* msg_reason.h - names and sentences of finish reasons and errors (lagan_wire.h).
 *
 * Separate from msg.h for programs without MessagePack. */
#pragma once

#include "base/base.h"

/* "eos", "too_long", ...; NULL: unknown. *retry: a retry may succeed; may be NULL. */
const char *msg_reason(uint32_t reason, bool *retry);
const char *msg_reason_sentence(uint32_t reason);

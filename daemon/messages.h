/* messages.h - what lagand does with a client's frame: one function for each message type.
 *
 * The net part calls messages_frame() through d->events->frame. A frame that is not a valid message
 * is answered with an ERROR message.
 */
#pragma once

#include "daemon/daemon.h"

/* Decodes one whole frame of n bytes from c, validates it and answers it. c may be dropped by the
 * call. */
void messages_frame(struct daemon *d, struct client *c, const void *frame, size_t n);

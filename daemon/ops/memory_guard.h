/* memory_guard.h - closes connections when lagand uses much more memory than its requests need.
 *
 * lagand knows the memory of its requests and limits it by api.memory. It does not know the memory
 * that libzmq uses for tcp connections: unread frames, a partly received frame, a message of many
 * frames. One connection cannot use much, but 1000 can. lagand therefore measures its memory every
 * 0.25 s, with more than 6 connections every 0.05 s, and more often while it grows. If lagand uses
 * more than the requests need plus MEMORY_GUARD_BYTES, it closes connections, in this order: those
 * that have sent no message, those without a request, those that do not read, all. liblagan
 * reconnects and resumes its requests. */
#pragma once
#include "daemon/daemon.h"

#define MEMORY_GUARD_BYTES (256u << 20)

struct memory_guard {          /* all zero at the start */
    uint64_t base, last;       /* bytes in use at the first check and at the last one */
    nsec calm_at;              /* until then free memory is not returned to the system */
    nsec closed_at, logged_at; /* when connections were last closed; when that was last logged */
};

/* Measures lagand's memory and closes connections if it is too large. Returns when to call the
 * function again; NSEC_NEVER: with the next tick. */
nsec memory_guard_look(struct daemon *d);

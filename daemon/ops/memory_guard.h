/* memory_guard.h - closes connections when lagand uses more memory than its requests account for.
 *
 * Memory of requests is known and bounded by api.memory. The memory that libzmq holds for tcp
 * connections is not known: unread frames, a partly received frame, a message with endless frames.
 * Each is bounded or could be, but there may be 1000 connections. lagand therefore checks its
 * memory every 0.25 s, with more than a few connections every 0.05 s, and more often while it
 * grows. Above MEMORY_GUARD_BYTES beyond its requests it closes connections, in this order: those
 * without a message, those without a request, those that do not read, all. liblagan reconnects and
 * resumes. */
#pragma once

#include "daemon/daemon.h"

#define MEMORY_GUARD_BYTES (256u << 20)

struct memory_guard {          /* all zero at the start */
    uint64_t base, last;       /* bytes in use at the start and at the last check */
    nsec calm_at;              /* from then on free memory is returned to the system */
    nsec closed_at, logged_at; /* when connections were closed and that was logged; 0: never */
};

/* Checks the memory and acts. Returns when to call it next; NSEC_NEVER: with the next tick. */
nsec memory_guard_look(struct daemon *d);

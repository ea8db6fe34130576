/* memory_guard.h - memory that nobody has accounted for.
 *
 * What requests take is known, and bounded by api.memory. What ZeroMQ holds for a connection over tcp is not: frames
 * that have come and were not taken, one that has come in part, and a message of frames without end. Each is bounded,
 * or could be, but there may be a thousand connections. So lagand looks at what it has in use every quarter of a second, of
 * more than a few connections every twentieth, and more often while it grows. What is MEMORY_GUARD_BYTES beyond its
 * requests is taken back from connections: first from those that have said nothing, then those that have asked for
 * nothing, then those that do not read, then all. liblagan connects again and goes on.
 */
#ifndef DAEMON_OPS_MEMORY_GUARD_H
#define DAEMON_OPS_MEMORY_GUARD_H

#include "daemon/daemon.h"

#define MEMORY_GUARD_BYTES (256u << 20)

struct memory_guard *memory_guard_new(void) MUST_USE; /* NULL: no memory */
struct memory_guard *memory_guard_free(struct memory_guard *g);

/* Look, and do something about it. When it wants to look again, NSEC_NEVER: with the next tick. */
nsec memory_guard_look(struct daemon *d);

#endif

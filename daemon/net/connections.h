/* connections.h - table of the client connections of unix_server.h and, over tcp, of libzmq.
 *
 * The table limits their number; the caller chooses the connection to close. libzmq accepts every
 * connection and has no call that ends one: lagand shuts its socket down and forgets it, and the
 * thread of libzmq then releases it. The index is the descriptor; the kernel's socket cookie tells
 * a socket of libzmq from a later one with the same descriptor. */
#pragma once

#include "base/base.h"
#include "base/clock.h"
#include "daemon/net/session.h"

struct connections;

/* most: limit of open connections. NULL: no memory. */
struct connections *connections_new(uint32_t most) MUST_USE;
struct connections *connections_free(struct connections *c);

/* Adds an accepted connection. Returns true if the limit is exceeded; the caller then closes one.
 */
bool connections_opened(struct connections *c, int fd, nsec now) MUST_USE;
/* Removes it. Returns its client's handle (session.h); CLIENT_NONE: it has sent no message. */
uint32_t connections_closed(struct connections *c, int fd);
void connections_set_client(struct connections *c, int fd, uint32_t handle); /* a message came */
uint32_t connections_n(const struct connections *c);
/* The oldest connection without a message, and when it was opened; -1: none. */
int connections_oldest_unidentified(const struct connections *c, nsec *since);

uint64_t connections_cookie(int fd); /* of the kernel; 0: not a socket */
/* Shuts the socket down if it still has that cookie. */
void connections_shutdown(struct connections *c, int fd, uint64_t cookie);
/* Shuts a connection without a message down. */
void connections_shutdown_unidentified(struct connections *c, int fd);

/* connections.h - table of the open client connections: those of unix_server.h and, over tcp, those
 * of libzmq. It limits their number; the caller chooses the connection to close.
 *
 * libzmq accepts every connection and has no call that closes one. lagand therefore calls
 * shutdown() on its socket and removes it from the table; libzmq's thread then closes the socket.
 * The index of the table is the descriptor. Because libzmq may close a socket at any time, the
 * kernel's socket cookie (SO_COOKIE) distinguishes the socket from a later one with the same
 * descriptor. An "unidentified" connection has sent no message yet. */
#pragma once
#include "base/base.h"
#include "base/clock.h"
#include "daemon/net/session.h"

struct connections;

/* Creates a table for at most `most` open connections. NULL: no memory. */
struct connections *connections_new(uint32_t most) MUST_USE;
struct connections *connections_free(struct connections *c);

/* Adds an accepted connection. Returns true if the caller must close one: the limit is exceeded. */
bool connections_opened(struct connections *c, int fd, nsec now) MUST_USE;
/* Removes a connection. Returns the handle of its client (session.h); CLIENT_NONE: unidentified. */
uint32_t connections_closed(struct connections *c, int fd);
/* Stores the client of connection fd, from which a message has arrived. */
void connections_set_client(struct connections *c, int fd, uint32_t handle);
uint32_t connections_n(const struct connections *c);
/* Returns the descriptor of the oldest unidentified connection, opened at *since; -1: none. */
int connections_oldest_unidentified(const struct connections *c, nsec *since);

uint64_t connections_cookie(int fd); /* returns SO_COOKIE of a socket; 0: fd is not a socket */
/* Calls shutdown() on fd and removes it from the table, if fd still has that cookie. */
void connections_shutdown(struct connections *c, int fd, uint64_t cookie);
/* connections_shutdown() of an unidentified connection, with the cookie that the table has. */
void connections_shutdown_unidentified(struct connections *c, int fd);

/* connections.h - the sockets behind our clients, as unix_server.h and, over tcp, ZeroMQ's monitor name them.
 *
 * At most so many are open: the caller chooses who goes then. ZeroMQ accepts whoever comes and has no way to end one
 * connection: so that is done by shutting its socket down, and it is none of ours from then on. ZeroMQ's own thread
 * finds that and gives everything back. A place is a descriptor's number; the kernel's cookie tells one socket of
 * ZeroMQ's from the next with that number.
 */
#ifndef DAEMON_NET_CONNECTIONS_H
#define DAEMON_NET_CONNECTIONS_H

#include "base/base.h"
#include "base/clock.h"
#include "daemon/net/session.h"

struct connections;

/* most: at once. NULL: no memory. */
struct connections *connections_new(uint32_t most) MUST_USE;
struct connections *connections_free(struct connections *c);

/* One was accepted. true: they are more than may be, and somebody must make room. */
bool connections_opened(struct connections *c, int fd, nsec now) MUST_USE;
/* Who it was, by session.h's handle; CLIENT_NONE: it had said nothing. */
uint32_t connections_closed(struct connections *c, int fd);
void connections_heard(struct connections *c, int fd, uint32_t handle); /* it has said something */
uint32_t connections_n(const struct connections *c);
/* The one that has said nothing for longest, and since when; -1: none. */
int connections_silent(const struct connections *c, nsec *since);

/* By which the kernel tells this socket from any other, 0: it is none. */
uint64_t connections_cookie(int fd);
/* End the socket of that number, if it is still the one with that cookie. */
void connections_cut(struct connections *c, int fd, uint64_t cookie);
void connections_cut_silent(struct connections *c, int fd); /* one that was named here */

#endif

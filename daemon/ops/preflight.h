/* preflight.h - before lagand begins again: would the program that lies there now, with our command line?
 *
 * It is asked with --check while requests go on. A configuration that is wrong, or a program that cannot be run, is said to
 * who asked for the new lagand, and this one stays: once it has ended its workers there is no way back.
 */
#ifndef DAEMON_OPS_PREFLIGHT_H
#define DAEMON_OPS_PREFLIGHT_H

#include "base/base.h"
#include "daemon/daemon.h"

struct client;

/* The client hears what comes of it; when nothing is wrong, serve_reexec(). One at a time. */
void preflight_start(struct daemon *d, struct client *c, uint64_t rid);
void preflight_end(struct daemon *d); /* lagand is leaving */

#endif

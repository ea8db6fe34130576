/* fdstore.h - descriptors that outlive lagand: systemd's fd store, or what a lagand hands its successor.
 *
 * Each has a name. "ledger" is the ledger log; "history" what event_log.h keeps; "w0.pid" worker 0's process, so
 * that nobody touches its memory before it has gone; "w0=weights=..." an arena of worker 0, with its note
 * (ipc/fd_channel.h) in the name, because what lies in a device cannot be read from here; "api.sock" the clients'
 * socket, where that is systemd's own (systemd/lagand.socket). Without systemd all of this does nothing.
 */
#ifndef DAEMON_PERSIST_FDSTORE_H
#define DAEMON_PERSIST_FDSTORE_H

#include "base/base.h"
#include "ipc/fd_channel.h"

enum { FDSTORE_MAX = 256, FDSTORE_NAME = 160 };

struct fdstore { /* what a predecessor left and nobody has taken yet */
    uint32_t n;
    struct store_fd {
        int fd;
        char name[FDSTORE_NAME];
    } at[FDSTORE_MAX];
};

void fdstore_read(struct fdstore *s); /* from our environment, which is cleared of it */
/* The one with that name, ours now; -1: there is none. */
int fdstore_take(struct fdstore *s, const char *name);
void fdstore_close(struct fdstore *s); /* the rest, and out of systemd's */

/* To be found by the next lagand; fd stays ours. One with the same name goes first. */
void fdstore_put(const char *name, int fd);
void fdstore_drop(const char *name);

/* The name of worker i's arena; -EINVAL: the arena's own name would not do as a part of one. */
int fdstore_arena_name(char buf[FDSTORE_NAME], uint32_t worker,
                       const struct fd_channel_note *note) MUST_USE;
/* Is it such a name? Then which. */
bool fdstore_arena(const char *name, uint32_t *worker, struct fd_channel_note *note);

#endif

/* store.h - descriptors that outlive lagand: systemd's fd store, or what a lagand hands its successor.
 *
 * Each has a name. "ledger" is the mirror; "history" what history.h keeps; "w0.pid" worker 0's process, so
 * that nobody touches its memory before it has gone; "w0=weights=..." an arena of worker 0, with its note
 * (ipc/fd_channel.h) in the name, because what lies in a device cannot be read from here; "api.sock" the clients'
 * socket, where that is systemd's own (systemd/lagand.socket). Without systemd all of this does nothing.
 */
#ifndef DAEMON_STORE_H
#define DAEMON_STORE_H

#include "base/base.h"
#include "ipc/fd_channel.h"

enum { STORE_MAX = 256, STORE_NAME = 160 };

struct store { /* what a predecessor left and nobody has taken yet */
    uint32_t n;
    struct store_fd {
        int fd;
        char name[STORE_NAME];
    } at[STORE_MAX];
};

void store_read(struct store *s); /* from our environment, which is cleared of it */
/* The one with that name, ours now; -1: there is none. */
int store_take(struct store *s, const char *name);
void store_close(struct store *s); /* the rest, and out of systemd's */

/* To be found by the next lagand; fd stays ours. One with the same name goes first. */
void store_put(const char *name, int fd);
void store_drop(const char *name);

/* The name of worker i's arena; -EINVAL: the arena's own name would not do as a part of one. */
int store_arena_name(char buf[STORE_NAME], uint32_t worker,
                     const struct fd_channel_note *note) MUST_USE;
/* Is it such a name? Then which. */
bool store_arena(const char *name, uint32_t *worker, struct fd_channel_note *note);

#endif

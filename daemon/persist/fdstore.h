/* fdstore.h - descriptors that outlive lagand, in systemd's fd store or passed at a re-exec.
 *
 *     name             content
 *     ledger           ledger log
 *     history          event log
 *     w0.pid           pidfd of worker 0: its memory is not used before it has ended
 *     w0=weights=...   arena of worker 0, with its note (ipc/fd_channel.h) in the name,
 *                      because lagand cannot read device memory
 *     api.sock         clients' socket, if systemd opened it (systemd/lagand.socket)
 *
 * Without systemd the calls have no effect. */
#pragma once

#include "base/base.h"
#include "ipc/fd_channel.h"

enum { FDSTORE_MAX = 256, FDSTORE_NAME = 160 };

struct fdstore { /* descriptors of the previous lagand that are not taken yet */
    uint32_t n;
    struct store_fd {
        int fd;
        char name[FDSTORE_NAME];
    } at[FDSTORE_MAX];
};

void fdstore_read(struct fdstore *s); /* from LISTEN_FDS, which is removed from the environment */
/* The descriptor of that name, which the caller then owns; -1: none. */
int fdstore_take(struct fdstore *s, const char *name);
void fdstore_close(struct fdstore *s); /* closes the rest and removes it from systemd's fd store */

/* Stores a copy of fd for the next lagand; replaces one of the same name. */
void fdstore_put(const char *name, int fd);
void fdstore_drop(const char *name);

/* The name of an arena of that worker. -EINVAL: the name in the note has other characters than a-z,
 * 0-9. */
int fdstore_arena_name(char buf[FDSTORE_NAME], uint32_t worker,
                       const struct fd_channel_note *note) MUST_USE;
/* Parses such a name. Returns false if it is another one. */
bool fdstore_arena(const char *name, uint32_t *worker, struct fd_channel_note *note);

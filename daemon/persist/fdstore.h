/* fdstore.h - names and stores the descriptors that outlive lagand: they are in systemd's fd store,
 * or are passed on directly at a re-exec.
 *
 *     name             content
 *     ledger           ledger log
 *     history          event log
 *     w0.pid           pidfd of the process of worker 0, which must end before its arenas are used
 *     w0=weights=...   arena of worker 0; its note (ipc/fd_channel.h: name, size) is in the name,
 *                      because lagand cannot read the note from an arena in device memory
 *     w0.kv_limit      limit of the KV memory of worker 0 after OOM kills (supervise/oom.h)
 *     api.sock         listening socket for clients, if systemd opened it (systemd/lagand.socket)
 *
 * Without systemd fdstore_put() and fdstore_drop() have no effect. */
#pragma once
#include "base/base.h"
#include "ipc/fd_channel.h"

enum { FDSTORE_MAX = 256, FDSTORE_NAME = 160 };

struct fdstore { /* descriptors of the previous lagand that no part has taken yet */
    uint32_t n;
    struct store_fd {
        int fd;
        char name[FDSTORE_NAME];
    } at[FDSTORE_MAX];
};

/* Reads the inherited descriptors from LISTEN_FDS and removes the variable from the environment. */
void fdstore_read(struct fdstore *s);
/* Returns the inherited descriptor `name`, which the caller then owns; -1: there is none. */
int fdstore_take(struct fdstore *s, const char *name);
/* Closes the descriptors that were not taken and removes them from systemd's fd store. */
void fdstore_close(struct fdstore *s);

/* Puts a copy of fd into systemd's fd store, in place of a descriptor of the same name. */
void fdstore_put(const char *name, int fd);
void fdstore_drop(const char *name); /* removes it from systemd's fd store */

/* Formats the fd store's name of an arena; worker: arenas.worker (supervise/arenas.h). -EINVAL: the
 * name in the note has other characters than a-z, 0-9. */
int fdstore_arena_name(char buf[FDSTORE_NAME], uint32_t worker,
                       const struct fd_channel_note *note) MUST_USE;
/* Parses the name of an arena into *worker and *note. Returns false if name is no such name. */
bool fdstore_arena(const char *name, uint32_t *worker, struct fd_channel_note *note);

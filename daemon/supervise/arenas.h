/* arenas.h - memory of a worker that outlives its process: descriptors by name, kept for the
 * replacement. */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "daemon/supervise/supervisor.h"
#include "ipc/fd_channel.h"

enum { MAX_ARENAS = 16, MAX_HANDED = 64 };

struct arenas {
    uint32_t worker; /* its number, a part of the names in the fd store */
    uint32_t n;
    struct kept_arena {
        struct fd_channel_note note;
        int fd;
    } at[MAX_ARENAS];
    uint32_t n_taken; /* messages of the present worker */
    bool adopted;     /* the present worker got some of them */
    nsec adopted_at;
    uint32_t strikes;     /* the worker's own faults, each within a minute of an adoption */
    bool verify_contents; /* a stray write is possible: send with FD_CHANNEL_VERIFY */
};

/* Adds an arena of a previous lagand from the fd store. Owns fd on success. -EBADMSG: the
 * descriptor does not match its note. */
int arenas_keep(struct arenas *a, const struct fd_channel_note *note, int fd,
                struct err *e) MUST_USE;
/* Adds all arenas that the worker has sent so far. -EPIPE: the worker has closed its fd channel.
 * -EBADMSG: protocol error. */
int arenas_take(struct arenas *a, int sock, struct err *e) MUST_USE;
/* Queues the complete arenas of that name (NULL: all) in the socket. Returns their number. */
int arenas_send(const struct arenas *a, const char *name, int sock, struct err *e) MUST_USE;
/* Sends all complete arenas to the replacement. Returns their number. */
int arenas_give(struct arenas *a, int sock, nsec now, struct err *e) MUST_USE;
/* Drops what the replacement must not get after this death; see the table of supervisor.h. */
void arenas_after_death(struct arenas *a, const struct death *d, nsec now);
/* Returns true if that death invalidates all arenas, and with them a standby that has mapped some.
 */
bool arenas_given_up(const struct arenas *a, const struct death *d);
void arenas_drop(struct arenas *a, const char *name); /* also from the fd store; name NULL: all */
void arenas_drop_kv(struct arenas *a);                /* KV and its manifest */
void arenas_close(struct arenas *a);                  /* the fd store keeps its copies */

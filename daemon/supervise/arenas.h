/* arenas.h - lagand's descriptors of the arenas (weights, KV, manifest) of one process of a worker.
 *
 * The process sends them over its fd channel (ipc/fd_channel.h). lagand keeps them, also in the fd
 * store, and sends the complete arenas to the replacement of the process. An arena is "complete" if
 * the process has written all its contents and set FD_CHANNEL_COMPLETE in its note. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "daemon/supervise/supervisor.h"
#include "ipc/fd_channel.h"

enum { MAX_ARENAS = 16, MAX_HANDED = 64 };

struct arenas {
    uint32_t worker; /* worker index + rank * MAX_WORKERS: part of the names in the fd store */
    uint32_t n;
    struct kept_arena {
        struct fd_channel_note note;
        int fd;
    } at[MAX_ARENAS];
    uint32_t n_taken; /* fd channel messages from the present process, at most MAX_HANDED */
    bool adopted;     /* the present process got at least one arena at its start, at adopted_at */
    nsec adopted_at;
    uint32_t strikes;     /* successive faults or OOM kills, each within a minute of an adoption */
    bool verify_contents; /* a stray write is possible: arenas are sent with FD_CHANNEL_VERIFY */
};

/* Adds one arena, in place of an arena of the same name. Owns fd on success. -EBADMSG: the file is
 * smaller than its note says, or there are more than MAX_ARENAS arenas. */
int arenas_keep(struct arenas *a, const struct fd_channel_note *note, int fd,
                struct err *e) MUST_USE;
/* Adds all arenas that the process has sent over its fd channel so far. -EPIPE: the process has
 * closed the channel. -EBADMSG: protocol error. */
int arenas_take(struct arenas *a, int sock, struct err *e) MUST_USE;
/* Writes the complete arenas `name` (NULL: all) into the fd channel sock. Returns how many. */
int arenas_send(const struct arenas *a, const char *name, int sock, struct err *e) MUST_USE;
/* Sends all complete arenas to the replacement process and notes the adoption. Returns how many. */
int arenas_give(struct arenas *a, int sock, nsec now, struct err *e) MUST_USE;
/* Drops the arenas that the replacement must not get after death d: the manifest if KV may not be
 * adopted (DEATH_CAUSES), KV at the 2nd strike, all arenas if arenas_given_up(). An OOM kill is a
 * strike, but never the 3rd one. */
void arenas_after_death(struct arenas *a, const struct death *d, nsec now);
/* Returns true at the 3rd strike, or if the device is lost: a standby must be stopped then too. */
bool arenas_given_up(const struct arenas *a, const struct death *d);
uint64_t arenas_bytes(const struct arenas *a, const char *name); /* name NULL: of all */
/* Closes the arena `name` (NULL: all) and removes its copy from the fd store. */
void arenas_drop(struct arenas *a, const char *name);
void arenas_drop_kv(struct arenas *a); /* drops KV, its host tier and its manifest */
void arenas_close(struct arenas *a);   /* closes all; the copies in the fd store stay */

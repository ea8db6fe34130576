/* arenas.h - the memory a worker leaves behind: descriptors by name, kept for its successor. */
#ifndef DAEMON_SUPERVISE_ARENAS_H
#define DAEMON_SUPERVISE_ARENAS_H

#include "base/base.h"
#include "base/err.h"
#include "daemon/supervise/supervisor.h"
#include "ipc/fd_channel.h"

enum { MAX_ARENAS = 16, MAX_HANDED = 64 };

struct arenas {
    uint32_t worker; /* whose: a part of their names in the fd store */
    uint32_t n;
    struct kept_arena {
        struct fd_channel_note note;
        int fd;
    } at[MAX_ARENAS];
    uint32_t n_taken; /* messages of the present worker */
    bool adopted;     /* it was given some */
    nsec adopted_at;
    uint32_t strikes;     /* faults of its own, each within a minute of an adoption */
    bool verify_contents; /* somebody wild may have written to them: FD_CHANNEL_VERIFY */
};

/* Take one that a former lagand kept, from its fd store: fd is ours. -EBADMSG: it is not what its note
 * says, and stays the caller's. */
int arenas_keep(struct arenas *a, const struct fd_channel_note *note, int fd,
                struct err *e) MUST_USE;
/* Take all that the worker has sent up by now. 0; -EPIPE: it has closed; -EBADMSG. */
int arenas_take(struct arenas *a, int sock, struct err *e) MUST_USE;
/* Send all that are whole to the next worker; it finds them when it looks. How many. */
int arenas_give(struct arenas *a, int sock, nsec now, struct err *e) MUST_USE;
/* The weights alone, to a standby, while their worker lives. */
int arenas_lend(struct arenas *a, int sock, struct err *e) MUST_USE;
/* A worker has died: what may its successor have? By the table of supervisor.h. */
void arenas_after_death(struct arenas *a, const struct death *d, nsec now);
/* Then: nothing of before is to be used again, so no standby that has mapped it either. */
bool arenas_given_up(const struct arenas *a, const struct death *d);
void arenas_drop(struct arenas *a, const char *name); /* out of the store too; NULL: all */
void arenas_drop_kv(struct arenas *a);                /* with what belongs to it */
void arenas_close(struct arenas *a); /* what is in the store is found there again */

#endif

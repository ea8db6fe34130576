/* systemd.h - what systemd does for lagand: it hears what it is told, and keeps descriptors for it.
 *
 * A thread reads the notify socket. A child that is to become lagand gets what is kept as systemd passes it.
 */
#pragma once

#include "base/base.h"

#include <pthread.h>

enum { SYSTEMD_STORE = 256, SYSTEMD_NAME = 200 };

struct systemd {
    int socket; /* lagand's NOTIFY_SOCKET */
    uint32_t n_marks;
    char path[108];
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    char told[8192];      /* what has come, one datagram a line */
    struct systemd_fd {
        int fd;
        char name[SYSTEMD_NAME];
    } store[SYSTEMD_STORE];
    uint32_t n_store;
};

void systemd_open(struct systemd *s, const char *dir); /* the socket lies in it */
void systemd_close(struct systemd *s);

/* fork(), when all that a dead lagand has said is worked in; in the child the store lies from descriptor 3
 * on. What had been told is not asked for any more. */
pid_t systemd_fork(struct systemd *s);

bool systemd_told(struct systemd *s, const char *word); /* has a datagram said that? */
void systemd_untold(struct systemd *s);                 /* what has been told so far is over */
uint32_t systemd_stored(struct systemd *s, const char *name); /* how many begin with that */
void systemd_forget(struct systemd *s, const char *name);     /* out of the store */
void systemd_keep(struct systemd *s, const char *name);       /* an empty memfd into it */
/* Listen there, as for a .socket unit; given to every lagand like what is in the store. */
void systemd_listen(struct systemd *s, const char *name, const char *path);

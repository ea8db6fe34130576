/* systemd.h - the part of systemd that lagand uses: the notify socket and the fd store.
 *
 * A thread reads the notify socket. A child that executes lagand gets the descriptors of the store
 * as systemd passes them.
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
    pthread_mutex_t lock; /* of all fields below */
    char notices[8192];   /* one datagram a line */
    struct systemd_fd {
        int fd;
        char name[SYSTEMD_NAME];
    } store[SYSTEMD_STORE];
    uint32_t n_store;
};

void systemd_open(struct systemd *s, const char *dir); /* makes the socket in dir */
void systemd_close(struct systemd *s);

/* fork() after all datagrams of an ended lagand are processed; clears the notices. In the child the
 * descriptors of the store begin at 3. */
pid_t systemd_fork(struct systemd *s);

bool systemd_notified(struct systemd *s, const char *text); /* a notice has that text */
void systemd_clear_notices(struct systemd *s);
uint32_t systemd_stored(struct systemd *s, const char *name); /* descriptors whose name begins so */
void systemd_forget(struct systemd *s, const char *name);     /* removes it from the store */
void systemd_keep(struct systemd *s, const char *name);       /* stores an empty memfd */
/* Listens at path like a .socket unit and stores the socket: every lagand gets it. */
void systemd_listen(struct systemd *s, const char *name, const char *path);

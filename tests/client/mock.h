/* mock.h - start and end mock_lagand (see there) from a test. */
#ifndef TESTS_CLIENT_MOCK_H
#define TESTS_CLIENT_MOCK_H

#include <sys/types.h>

struct mock {
    pid_t pid;
    char dir[64];
    char endpoint[96];    /* of its api.sock */
    const char *refusals; /* NULL: none */
};

/* A directory for sockets, nobody in it yet. */
void mock_dir(struct mock *m);
/* Start it there and wait until it listens. proto: the version its WELCOME names. */
void mock_start(struct mock *m, const char *proto);
void mock_kill(struct mock *m); /* SIGKILL, reaped */
void mock_done(struct mock *m); /* kill it and remove the directory */

#endif

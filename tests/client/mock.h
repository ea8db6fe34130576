/* mock.h - starts and ends mock_lagand for a test. */
#pragma once
#include <sys/types.h>

struct mock {
    pid_t pid;
    char dir[64];
    char endpoint[96];    /* of its api.sock */
    const char *refusals; /* NULL: none */
};

/* Creates a directory for the sockets; starts no process. */
void mock_dir(struct mock *m);
/* Starts mock_lagand and waits until it listens. proto: version in its WELCOME. */
void mock_start(struct mock *m, const char *proto);
void mock_kill(struct mock *m); /* SIGKILL, reaped */
void mock_done(struct mock *m); /* kills it and removes the directory */

/* mock.c - see mock.h. */
#include "tests/client/mock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

void
mock_dir(struct mock *m)
{
    m->pid = 0;
    m->refusals = NULL;
    strcpy(m->dir, "/tmp/lagan-mock-XXXXXX");
    if (!mkdtemp(m->dir)) abort();
    snprintf(m->endpoint, sizeof m->endpoint, "ipc://%s/api.sock", m->dir);
}

static int
listens(const struct mock *m)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), r;

    snprintf(at.sun_path, sizeof at.sun_path, "%s/ctl.sock", m->dir); /* bound after api.sock */
    r = connect(fd, (struct sockaddr *)&at, sizeof at);
    close(fd);
    return r == 0;
}

void
mock_start(struct mock *m, const char *proto)
{
    int tries = 2000;

    m->pid = fork();
    if (m->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("tests/client/mock_lagand", "mock_lagand", m->dir, proto,
              m->refusals ? m->refusals : "0", (char *)NULL);
        _exit(127);
    }
    while (!listens(m) && --tries) usleep(2000);
    if (!tries) abort();
}

void
mock_kill(struct mock *m)
{
    if (!m->pid) return;
    kill(m->pid, SIGKILL);
    waitpid(m->pid, NULL, 0);
    m->pid = 0;
}

void
mock_done(struct mock *m)
{
    char path[96];

    mock_kill(m);
    snprintf(path, sizeof path, "%s/api.sock", m->dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/ctl.sock", m->dir);
    unlink(path);
    rmdir(m->dir);
}

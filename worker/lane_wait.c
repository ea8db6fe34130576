/* lane_wait.c - collects finished steps, and puts the engine thread to sleep until an event. */
#include "worker/lane_wait.h"

#include "base/clock.h"
#include "ipc/channel.h"
#include "worker/exec/exec.h"
#include "worker/sched/scheduler.h"

#include <unistd.h>

const struct batch_result *
lane_wait_finished(struct worker *w, const struct worker_lane *lane, unsigned i)
{
    const struct batch_result *res;

    if (lane->started == lane->finished || exec_finish(w->exec, i, &res) < 0) return NULL;
    check(res->step == lane->finished + 1);
    return res;
}

static nfds_t
add_fd(struct pollfd *p, nfds_t n, int fd)
{
    if (fd >= 0) p[n++] = (struct pollfd){ .fd = fd, .events = POLLIN };
    return n;
}

int
lane_wait_sleep(struct worker *w, const struct lane_wait *f)
{
    struct pollfd p[1 + ARRAY_LEN(f->fd) + MAX_LANES] = { { .fd = w->channel->doorbell.fd,
                                                            .events = POLLIN } };
    const struct timespec t = { .tv_sec = f->max_sleep / NSEC_S, .tv_nsec = f->max_sleep % NSEC_S };
    nfds_t n = 1;
    int r;

    for (size_t i = 0; i < ARRAY_LEN(f->fd); i++) n = add_fd(p, n, f->fd[i]);
    for (unsigned i = 0; w->loaded && i < w->limits->n_lanes; i++)
        n = add_fd(p, n, exec_fd(w->exec, i));
    r = doorbell_sleep(&w->channel->doorbell, f->output_blocked, f->ready, f->arg);
    if (r < 0) return r;
    if (r > 0 && ppoll(p, n, &t, NULL) < 0 && errno != EINTR) check(!"poll");
    doorbell_wake(&w->channel->doorbell);
    if (p[0].revents) doorbell_set_readable(&w->channel->doorbell);
    for (nfds_t i = 1; i < n; i++) {
        uint64_t count;

        if (!p[i].revents) continue;
        while (read(p[i].fd, &count, sizeof count) < 0 && errno == EINTR) {
        }
    }
    return 0;
}

/* load_lane.c - see load_lane.h. */
#include "worker/model/load_lane.h"

#include <errno.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

int
load_lane_open(struct model *m, struct err *e)
{
    return m->op->lane_open(m->gpu, gpu_units(m->gpu), &m->lane, e);
}

void
load_lane_close(struct model *m)
{
    m->op->lane_close(m->lane);
    m->lane = NULL;
}

int64_t
load_lane_mark(struct model *m)
{
    int r = m->op->lane_mark(m->lane, ++m->lane_step);

    return r < 0 ? r : (int64_t)m->lane_step;
}

int
load_lane_wait(const struct model *m, int64_t mark, const char *what, struct err *e)
{
    const struct gpu_ops *op = m->op;
    struct timespec nap = { .tv_nsec = 20000 }; /* what is waited for takes a good part of a ms */
    int fd = op->lane_fd(m->lane), r = mark < 0 ? (int)mark : op->lane_error(m->lane);
    uint64_t marks;

    while (r == 0 && op->lane_done(m->lane) < (uint64_t)mark) {
        struct pollfd p = { .fd = fd, .events = POLLIN };

        if (fd < 0)
            nanosleep(&nap, NULL);
        else if (poll(&p, 1, 1000) > 0 && read(fd, &marks, sizeof marks) < 0 && errno != EAGAIN &&
                 errno != EINTR)
            r = -errno;
        if (r == 0) r = op->lane_error(m->lane);
    }
    if (r == 0) r = op->lane_error(m->lane);
    return r < 0 ? err_set(e, r, "%s: %s", what, gpu_why(m->gpu)) : 0;
}

int
load_lane_end(struct model *m, int r, const char *what, struct err *e)
{
    return load_lane_wait(m, r < 0 ? r : load_lane_mark(m), what, e);
}

void
load_lane_drain(struct model *m)
{
    int r = load_lane_wait(m, load_lane_mark(m), "drain", NULL);

    (void)r;
}

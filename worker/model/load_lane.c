/* load_lane.c - the lane that loads a model: opens it, queues marks, waits for them (weights.h). */
#include "worker/model/weights.h"

int
load_lane_open(struct model *m, struct err *e)
{
    return m->op->lane.open(m->gpu, gpu_facts(m->gpu).units, &m->lane, e);
}

void
load_lane_close(struct model *m)
{
    m->op->lane.close(m->lane);
    m->lane = NULL;
}

int64_t
load_lane_mark(struct model *m)
{
    int r = m->op->lane.mark(m->lane, ++m->lane_step);

    return r < 0 ? r : (int64_t)m->lane_step;
}

int
load_lane_wait(const struct model *m, int64_t mark, const char *what, struct err *e)
{
    int r = mark < 0 ? (int)mark : gpu_wait(m->lane, (uint64_t)mark, UINT64_MAX);

    return r < 0 ? err_set(e, r, "cannot %s: %s", what, gpu_why(m->gpu)) : 0;
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

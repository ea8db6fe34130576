/* late_worker.c - lagan-worker with a planted fault: blocks leave their old manifest entries after
 * the launch of the step that writes them for another sequence, not before.
 *
 * Two functions are wrapped at link time (--wrap). The delay between them lets the device write
 * first.
 */
#include "worker/exec/exec.h"
#include "worker/handover/adopt_log.h"
#include "worker/worker.h"

#include <poll.h>

void __real_adopt_log_launch(struct worker *w, const struct batch *b);
void __wrap_adopt_log_launch(struct worker *w, const struct batch *b);
int __real_exec_start(struct exec *x, const struct batch *b, struct err *e);
int __wrap_exec_start(struct exec *x, const struct batch *b, struct err *e);

static struct worker *worker;

void
__wrap_adopt_log_launch(struct worker *w, const struct batch *b)
{
    (void)b;
    worker = w;
}

int
__wrap_exec_start(struct exec *x, const struct batch *b, struct err *e)
{
    int r = __real_exec_start(x, b, e);

    do poll(NULL, 0, 1);
    while (r == 0 && exec_done(x, b->lane) < b->step);
    __real_adopt_log_launch(worker, b);
    return r;
}

/* rolling_restart.c - see rolling_restart.h. */
#include "daemon/supervise/rolling_restart.h"

#include "base/log.h"
#include "daemon/persist/event_log.h"
#include "daemon/supervise/worker.h"

#include <systemd/sd-daemon.h>

void
rolling_restart_notify(void)
{
    sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(clock_now() / NSEC_US));
}

static void
replace(struct daemon *d)
{
    struct worker *w = d->worker[d->rolling - 1];

    d->rolled_epoch = worker_info(w)->epoch;
    worker_event(w, EV_REPLACE);
}

int
rolling_restart_start(struct daemon *d, const char *by)
{
    int n = 0;

    if (d->draining) return -ESHUTDOWN;
    if (d->rolling) return -EBUSY;
    for (uint32_t i = 0; i < d->n_workers; i++) n += !worker_over(d->worker[i]);
    log_info("reload: replacing the workers one after the other (%d in total)", n);
    event_log_add(d, "operator", "", "reload%s", by);
    rolling_restart_notify();
    d->rolling = 1;
    replace(d);
    return n;
}

void
rolling_restart_step(struct daemon *d)
{
    if (d->draining) d->rolling = 0; /* a lagand that stops ends the rolling restart */
    while (d->rolling) {
        const struct worker *w = d->worker[d->rolling - 1];
        bool replaced = worker_info(w)->epoch != d->rolled_epoch,
             fails = replaced && worker_state(w) == SUPER_BACKOFF;

        if (!fails && !worker_over(w) && !(replaced && worker_state(w) == SUPER_READY)) return;
        if (fails || worker_state(w) == SUPER_FAILED)
            log_err("reload stopped: worker %s did not become ready; the other workers keep "
                    "running the "
                    "previous program",
                    worker_info(w)->name);
        d->rolling = fails || d->rolling == d->n_workers ? 0 : d->rolling + 1;
        if (d->rolling)
            replace(d);
        else
            sd_notify(0, "READY=1");
    }
}

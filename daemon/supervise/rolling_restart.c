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

/* Replaces the next worker of the set. Sets d->rolling to 0 if there is none. */
static void
replace_next(struct daemon *d)
{
    do d->rolling = d->rolling < d->n_workers ? d->rolling + 1 : 0;
    while (d->rolling && !(d->rolling_set >> (d->rolling - 1) & 1));
    if (!d->rolling) return;
    d->rolled_epoch = worker_info(d->worker[d->rolling - 1])->epoch;
    worker_event(d->worker[d->rolling - 1], EV_REPLACE);
}

int
rolling_restart_start(struct daemon *d, uint64_t set, const char *by)
{
    int n = 0;

    if (d->draining) return -ESHUTDOWN;
    if (d->rolling) return -EBUSY;
    for (uint32_t i = 0; i < d->n_workers; i++) {
        if (worker_info(d->worker[i])->retired) set &= ~(UINT64_C(1) << i);
        n += (set >> i & 1) && !worker_over(d->worker[i]);
    }
    event_log_add(d, "operator", "", "reload%s", by);
    if (!n && !set) return 0;
    log_info("reload: replacing the workers one after the other (%d in total)", n);
    rolling_restart_notify();
    d->rolling_set = set;
    replace_next(d);
    if (!d->rolling) sd_notify(0, "READY=1");
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
        if (fails)
            d->rolling = 0;
        else
            replace_next(d);
        if (!d->rolling) sd_notify(0, "READY=1");
    }
}

/* worker_rings.c - request ring, response ring and doorbell of a worker; see worker.h. */
#include "base/failpoint.h"
#include "daemon/supervise/control_channel.h"
#include "daemon/supervise/process.h"
#include "daemon/supervise/worker_struct.h"
#include "ipc/records.h"

enum { MAX_RECORDS = 1024, MAX_BYTES = 256 << 10 }; /* limits of worker_receive() */
/* The bytes of the edge-triggered doorbell are read at every 32nd event, because the socket holds
 * only some hundred bytes, and if no record was read since the previous event, because the worker
 * may then signal without writing records: the check for doorbell storms counts the bytes read. */
enum { DRAIN_EVERY = 32 };
/* A doorbell storm: in STORM_TIME more than STORM_LEAST bytes, and more than 10 for each record. */
enum { STORM_FACTOR = 10, STORM_LEAST = 2000 };
static const nsec STORM_TIME = NSEC_S;

/* ---- response ring */

/* Passes records of the response ring to worker_record(). -EBADMSG: protocol error. */
static int
receive(struct worker *w, uint32_t max_records, size_t max_bytes, struct err *e)
{
    struct ring_record rec;
    size_t bytes = 0;
    uint32_t n = 0;
    int r = 0;

    while (n < max_records && bytes < max_bytes && (r = ring_peek(&w->channel.in, &rec)) > 0) {
        n++;
        w->n_records++;
        bytes += rec.len;
        r = w->d->events->worker_record(w, &rec, e);
        FP(relay_taken);
        if (r < 0) break;
    }
    if (r == -EBADMSG && *ring_why(&w->channel.in))
        err_set(e, r, "protocol error in its response ring: %s", ring_why(&w->channel.in));
    if (n) channel_release(&w->channel);
    return r;
}

bool
worker_receive(struct worker *w)
{
    bool may_read = w->alive && !w->protocol_error, more = false;
    struct err e;

    if (may_read && receive(w, MAX_RECORDS, MAX_BYTES, &e) < 0)
        process_broken(w, DEATH_CORRUPTION, "%s", e.text);
    else if (may_read)
        more = !ring_empty(&w->channel.in);
    more |= control_channel_pump(w->info.control);
    if (w->standby) more |= control_channel_pump(w->standby->info.control);
    return more;
}

void
worker_receive_rest(struct worker *w)
{
    struct err e;

    if (!w->protocol_error) w->protocol_error = receive(w, UINT32_MAX, SIZE_MAX, &e) < 0;
}

/* ---- request ring */

int
worker_reserve(struct worker *w, uint16_t type, uint16_t flags, uint32_t n, uint32_t spare,
               void **to)
{
    int r;

    if (!w->alive || w->super.suspect != DEATH_NONE) return -EPIPE;
    r = ring_reserve(&w->channel.out, type, flags, n, spare, to);
    if (r == -EBADMSG)
        process_broken(w, DEATH_CORRUPTION, "protocol error in its request ring: %s",
                       ring_why(&w->channel.out));
    return r;
}

void
worker_publish(struct worker *w)
{
    channel_publish(&w->channel);
}

uint32_t
worker_max_record(const struct worker *w)
{
    return (w->channel.out.max_rec - RING_HEADER) & ~(uint32_t)(SHM_REC_ALIGN - 1);
}

void
worker_send_drain(void *arg)
{
    struct worker *w = arg;
    void *to;

    if (ring_reserve(&w->channel.out, REC_DRAIN, 0, 8, 0, &to) < 0) {
        process_log(w, LOG_LEVEL_WARN,
                    "cannot send DRAIN because the worker does not read its request ring, which is "
                    "full; killing the worker when the shutdown timeout is over");
        return;
    }
    memset(to, 0, 8);
    channel_publish(&w->channel);
}

/* ---- doorbell: its event only wakes the loop; worker_receive() then reads the ring */

bool
worker_sleep(struct worker *w)
{
    return !w->alive || w->protocol_error || channel_sleep(&w->channel) > 0;
}

void
worker_wake(struct worker *w)
{
    if (w->alive) doorbell_wake(&w->channel.doorbell);
}

int
worker_on_doorbell(sd_event_source *s, int fd, uint32_t revents, void *arg)
{
    const uint32_t shut = EPOLLRDHUP | EPOLLHUP;
    struct worker *w = arg;
    bool of_use = w->n_records != w->signalled_records; /* the previous event led to records */
    int r;

    (void)fd;
    w->signalled_records = w->n_records;
    if (++w->n_signals % DRAIN_EVERY && of_use && !(revents & shut)) return 0;
    do r = doorbell_drain(&w->channel.doorbell);
    while (r > 0 && revents & shut); /* reads to the end: no event follows a hang-up */
    if (r == -EPIPE) {
        sd_event_source_set_enabled(s, SD_EVENT_OFF);
        w->doorbell_closed_at = w->d->now;
    }
    return 0;
}

void
worker_check_storm(struct worker *w, nsec now)
{
    uint64_t signals, records = w->n_records - w->storm_records;

    if (now - w->storm_at < STORM_TIME) return;
    /* Drain here too: a socket filled within one loop iteration causes no event until drained. */
    (void)doorbell_drain(&w->channel.doorbell);
    signals = w->channel.doorbell.n_received - w->storm_signals;
    w->storm_at = now;
    w->storm_signals += signals;
    w->storm_records += records;
    if (signals > STORM_LEAST && signals > STORM_FACTOR * records) {
        process_broken(w, DEATH_STORM, "signalled the doorbell %llu times in 1 s for %llu records",
                       (unsigned long long)signals, (unsigned long long)records);
    }
}

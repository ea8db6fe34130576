/* process.c - see process.h. */
#include "daemon/supervise/process.h"

#include "base/log.h"
#include "daemon/persist/event_log.h"
#include "daemon/persist/fdstore.h"
#include "daemon/supervise/control_channel.h"
#include "daemon/supervise/worker_struct.h"
#include "wire/msg.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Limits for reading the log pipe, because a line may have 1 byte and logging it costs 10 us.
 * READ_BYTES: one read(). ROUND_: bytes and lines in one loop iteration while the process runs.
 * LAST_: after the process has ended: bytes that are read, which is more than the pipe holds, and
 * last lines of these bytes that are logged. */
enum { READ_BYTES = 512, ROUND_BYTES = 4 << 10, ROUND_LINES = 128 };
enum { LAST_BYTES = 66 << 10, LAST_LINES = 256 };

static void
say(const struct worker *w, enum log_level level, const char *text)
{
    char name[32], epoch[40];
    const char *const fields[] = { name, epoch, NULL };

    snprintf(name, sizeof name, "WORKER=%s", w->info.name);
    snprintf(epoch, sizeof epoch, "EPOCH=%llu", (unsigned long long)w->info.epoch);
    log_fields(level, fields, "%s", text);
}

void
process_log(const struct worker *w, enum log_level level, const char *fmt, ...)
{
    char text[1200];
    int n = snprintf(text, sizeof text, "worker %s: ", w->info.name);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text + n, sizeof text - (size_t)n, fmt, ap);
    va_end(ap);
    say(w, level, text);
}

/* ---- output */

/* Returns the text without the prefix "worker NAME: ", which process_log() would repeat. */
static const char *
without_subject(const struct worker *w, const char *text)
{
    char subject[48];
    int n = snprintf(subject, sizeof subject, "worker %s: ", w->info.name);

    return strncmp(text, subject, (size_t)n) ? text : text + n;
}

static void
take_line(struct worker *w)
{
    const char *text = w->line, *kept;
    size_t skip;
    enum log_level level = log_line_level(text, w->n_line, &skip);

    w->line[w->n_line] = 0;
    w->n_line = 0;
    text += skip;
    if (level == LOG_LEVEL_NONE) level = LOG_LEVEL_INFO;
    if (!*text) return;
    kept = without_subject(w, text);
    snprintf(w->last_line[w->n_lines++ % LOG_LINES], LOG_LINE, "%s", kept);
    if (level <= LOG_LEVEL_ERR) {
        struct worker *place = w->lead ? w->lead : w;

        snprintf(place->info.why, sizeof place->info.why, "%.239s", w->lead ? text : kept);
    }
    say(w, level, text);
}

/* Adds n bytes of output to w->line and logs each complete line. Returns the number of lines. */
static uint32_t
take_bytes(struct worker *w, const char *p, size_t n)
{
    uint32_t lines = 0;

    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\n' || w->n_line == sizeof w->line - 1) take_line(w), lines++;
        if (p[i] != '\n') w->line[w->n_line++] = p[i];
    }
    return lines;
}

/* Reads from the log pipe until ROUND_BYTES or ROUND_LINES are read. -EPIPE: end of the output. */
static int
drain_log(struct worker *w)
{
    char buf[READ_BYTES];
    uint32_t lines = 0;
    size_t bytes = 0;
    ssize_t n = 1;

    while (lines < ROUND_LINES && bytes < ROUND_BYTES && (n = read(w->log, buf, sizeof buf)) > 0) {
        lines += take_bytes(w, buf, (size_t)n);
        bytes += (size_t)n;
    }
    if (n == 0) return -EPIPE;
    return n < 0 && errno != EAGAIN && errno != EINTR ? -errno : 0;
}

int
process_on_log(sd_event_source *s, int fd, uint32_t revents, void *arg)
{
    struct worker *w = arg;

    (void)fd;
    (void)revents;
    if (drain_log(w) < 0) sd_event_source_set_enabled(s, SD_EVENT_OFF);
    return 0;
}

/* ---- panic message of an ended process */

/* Appends frame i to buf, as " lagan-worker+0x1234", or as an address. */
static void
add_frame(const struct panic_message *p, uint32_t i, char *buf, size_t n)
{
    char name[PANIC_NAME] = "";
    size_t used = strlen(buf);
    uint64_t at;
    uint8_t module;

    shm_copy_in(&at, &p->frame[i], sizeof at);
    shm_copy_in(&module, &p->module[i], 1);
    if (module < PANIC_MODULES) shm_copy_in(name, p->module_name[module], sizeof name - 1);
    if (!msg_utf8(name, strlen(name))) *name = 0;
    snprintf(buf + used, n - used, "%s%s%s%#llx", used ? " " : "", name, *name ? "+" : "",
             (unsigned long long)at);
}

/* A panic message may be damaged: clamps its lengths. The log replaces unprintable bytes. */
void
process_read_panic(struct worker *w, struct death_entry *x)
{
    enum { SHOWN = 12 };
    const struct panic_message *p = shm_panic_message(&w->channel.w);
    uint32_t state = atomic_load_explicit(&p->state, memory_order_acquire), n, n_frames;
    char address[40] = "";

    if (state == 0) return;
    n = MIN(p->text_bytes, (uint32_t)sizeof x->panic - 1);
    shm_copy_in(x->panic, p->text, n);
    x->panic[n] = 0;
    n_frames = MIN(p->n_frames, (uint32_t)SHOWN);
    for (uint32_t i = 0; i < n_frames; i++) add_frame(p, i, x->frames, sizeof x->frames);
    if (p->address)
        snprintf(address, sizeof address, ", address %#llx", (unsigned long long)p->address);
    process_log(w, LOG_LEVEL_ERR, "panic message%s: signal %d%s, step %llu%s%s; frames %s",
                state == 2 ? "" : " (incomplete)", p->signal, address, (unsigned long long)p->step,
                n ? ": " : "", x->panic, x->frames);
    if (n) snprintf(w->info.why, sizeof w->info.why, "%.239s", x->panic);
}

void
process_release(struct worker *w)
{
    for (int i = 0; i < N_SOURCES; i++) w->on[i] = sd_event_source_disable_unref(w->on[i]);
    w->info.control = control_channel_close(w->info.control);
    channel_close(&w->channel);
    if (w->fd_channel_sock >= 0) close(w->fd_channel_sock);
    if (w->log >= 0) close(w->log);
    w->fd_channel_sock = w->log = -1;
    w->alive = false;
    w->info.pid = 0;
    w->n_line = 0;
    w->doorbell_closed_at = w->fd_channel_closed_at = 0;
}

void
process_pid_name(uint32_t index, uint32_t rank, char *buf, size_t n)
{
    if (rank)
        snprintf(buf, n, "w%u.%u.pid", index, rank);
    else
        snprintf(buf, n, "w%u.pid", index);
}

bool
process_is_standby(const struct worker *w)
{
    return w->of || (w->lead && w->lead->of);
}

void
process_store_pid(const struct worker *w)
{
    int fd = process_is_standby(w) ? -1 : (int)syscall(SYS_pidfd_open, w->info.pid, 0);
    char name[FDSTORE_NAME];

    if (fd < 0) return;
    process_pid_name(w->info.index, w->rank, name, sizeof name);
    fdstore_put(name, fd);
    close(fd);
}

void
process_drop_pid(const struct worker *w)
{
    char name[FDSTORE_NAME];

    if (process_is_standby(w)) return;
    process_pid_name(w->info.index, w->rank, name, sizeof name);
    fdstore_drop(name);
}

/* Returns the offset of the last LAST_LINES lines of p; *before is the number of earlier lines. */
static size_t
last_lines(const char *p, size_t n, uint32_t *before)
{
    uint32_t lines = 0, skip;
    size_t at = 0;

    for (size_t i = 0; i < n; i++) lines += p[i] == '\n';
    *before = skip = lines > LAST_LINES ? lines - LAST_LINES : 0;
    while (skip) skip -= p[at++] == '\n';
    return at;
}

void
process_read_output(struct worker *w)
{
    static char last[LAST_BYTES]; /* static is safe: lagand has one thread */
    uint32_t skipped;
    size_t n = 0, at;
    ssize_t got;

    while (w->log >= 0 && n < sizeof last && (got = read(w->log, last + n, sizeof last - n)) > 0)
        n += (size_t)got;
    at = last_lines(last, n, &skipped);
    if (skipped) {
        w->n_line = 0; /* the incomplete line in w->line continues in the omitted lines */
        process_log(w, LOG_LEVEL_WARN, "omitting %u lines of its output before the last %d",
                    skipped, LAST_LINES);
    }
    take_bytes(w, last + at, n - at);
    if (w->n_line) take_line(w);
}

void
process_take_arenas(struct worker *w)
{
    struct err e;

    if (w->fd_channel_sock >= 0 && arenas_take(&w->arenas, w->fd_channel_sock, &e) == -EBADMSG)
        process_log(w, LOG_LEVEL_WARN, "%s; ignoring this message of the ended process", e.text);
}

bool
process_exited(const struct worker *w)
{
    siginfo_t si = { .si_pid = 0 };

    return waitid(P_PID, (id_t)w->info.pid, &si, WEXITED | WNOHANG | WNOWAIT) == 0 && si.si_pid;
}

void
process_kill(struct worker *w)
{
    kill(w->info.pid, SIGKILL);
    while (waitpid(w->info.pid, NULL, 0) < 0 && errno == EINTR) {
    }
    w->alive = false;
}

void
process_broken(struct worker *w, enum death_cause cause, const char *fmt, ...)
{
    struct worker *place = w->lead ? w->lead : w;
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (place->super.suspect == DEATH_NONE) {
        process_log(w, LOG_LEVEL_ERR, "%s; killing pid %d", text, (int)w->info.pid);
        snprintf(place->info.why, sizeof place->info.why, "%.239s", text);
    }
    place->protocol_error |= cause == DEATH_CORRUPTION;
    super_broken(&place->super, cause, w->d->now);
}

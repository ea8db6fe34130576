/* process.h - reads output and panic message of the process of a struct worker, ends the process
 * and releases the descriptors that lagand holds for it.
 *
 * The process is a worker, a rank of a rank group or a standby; worker.c starts and watches it. */
#pragma once
#include "base/base.h"
#include "base/log.h"
#include "daemon/supervise/supervisor.h"

#include <systemd/sd-event.h>

struct worker;

/* Logs "worker NAME: ...", cut at 1199 bytes, with the fields WORKER and EPOCH of w. */
void process_log(const struct worker *w, enum log_level level, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

/* Handler of sd-event for the log pipe; arg: the struct worker. Logs a bounded number of lines. */
int process_on_log(sd_event_source *s, int fd, uint32_t revents, void *arg);
/* Logs the remaining output of the ended process, at most its last 256 lines. */
void process_read_output(struct worker *w);
struct death_entry;
/* Logs the panic message of the ended process and copies its text and frames to *x; "": none. */
void process_read_panic(struct worker *w, struct death_entry *x);

/* Returns true if w is a standby or a rank of a standby's rank group. */
bool process_is_standby(const struct worker *w);
/* Writes the name of the pidfd of rank `rank` of worker `index` in the fd store: "w0.pid". */
void process_pid_name(uint32_t index, uint32_t rank, char *buf, size_t n);
/* process_store_pid() puts the pidfd of the process into the fd store for the next lagand,
 * process_drop_pid() removes it from there. Both have no effect on standbys. */
void process_store_pid(const struct worker *w);
void process_drop_pid(const struct worker *w);

/* Adds the arenas that the ended process has sent over its fd channel and lagand has not read. */
void process_take_arenas(struct worker *w);
/* Returns true if the process has ended and is not reaped yet. */
bool process_exited(const struct worker *w);
/* Kills the process and waits until it has ended. */
void process_kill(struct worker *w);
/* Ends the worker and its whole rank group because of a protocol error or a hang of this process:
 * logs the text and kills all processes. `cause` becomes the cause of death of the worker. */
void process_broken(struct worker *w, enum death_cause cause, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
/* Closes rings, pipes, sockets and event sources of a process that has ended or was not started. */
void process_release(struct worker *w);

/* process.h - the process of a struct worker: its output, its panic message, its pid, its
 * resources.
 *
 * The process may be a worker, a rank of a rank group or a standby. This file reads what the
 * process printed and left behind, and releases what lagand holds for it. worker.c starts and
 * watches it.
 */
#pragma once

#include "base/base.h"
#include "base/log.h"
#include "daemon/supervise/supervisor.h"

#include <stdint.h>
#include <systemd/sd-event.h>

struct worker;

/* Logs "worker NAME: ...", cut at 1199 bytes, with the fields WORKER and EPOCH of w. */
void process_log(const struct worker *w, enum log_level level, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

/* Handler of sd-event for the log pipe; arg: the struct worker. Logs a bounded number of lines. */
int process_on_log(sd_event_source *s, int fd, uint32_t revents, void *arg);
/* The process has ended: logs its remaining output, at most 256 lines. */
void process_read_output(struct worker *w);
/* Copies the panic message of the ended process into ret (n_ret bytes, "" if there is none) and
 * logs it. */
void process_read_panic(struct worker *w, char *ret, size_t n_ret);

/* true: a standby, or another rank of a standby. */
bool process_is_standby(const struct worker *w);
/* The name of the pidfd in the fd store, where the next lagand finds it. */
void process_pid_name(uint32_t index, uint32_t rank, char *buf, size_t n);
void process_store_pid(const struct worker *w); /* a standby's is not stored */
void process_drop_pid(const struct worker *w);

/* The process has ended: takes the arenas that it has sent before. */
void process_take_arenas(struct worker *w);
/* Returns true if the process has ended and is not reaped. */
bool process_exited(const struct worker *w);
/* Kills the process and waits until it has ended. */
void process_kill(struct worker *w);
/* Protocol error or hung: logs one line and ends the worker, or the rank group, with this cause. */
void process_broken(struct worker *w, enum death_cause cause, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
/* Closes the rings, pipes, sockets and event sources of the process. The process must have ended,
 * or never have been started. */
void process_release(struct worker *w);

/* log.h - one sentence a message, to the journal or to standard error.
 *
 * Programs log (daemon/, worker/ *.c, ctl/); floors below return errors and may only log_debug().
 * Under systemd (JOURNAL_STREAM matches standard error) a message goes to the journal with the
 * fields set here; elsewhere it is "<priority>subject: text" where standard error is not a
 * terminal, and without the "<n>" where it is. A worker always writes the "<n>" form to its pipe;
 * lagand adds WORKER= and EPOCH= and passes it on.
 *
 * Nothing is logged per token or per record; that is a counter (ipc/stat.h). Any thread.
 *
 * A message waits for whoever reads the log, so that none is lost; after log_never_wait() one that cannot go at
 * once is counted instead, and the next that can says how many.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/base.h"

enum log_level { LOG_LEVEL_ERR = 3, LOG_LEVEL_WARN = 4, LOG_LEVEL_INFO = 6, LOG_LEVEL_DEBUG = 7 };

/* Who speaks ("lagand", "worker w0"): copied, at most 31 bytes. Before the first thread. */
void log_open(const char *subject, enum log_level most);
void log_level_set(enum log_level most);
void log_never_wait(void); /* for a program with one thread: others wait for it */

/* Someone must act · someone should know · life events · off by default. */
void log_err(const char *fmt, ...) PRINTF_LIKE(1, 2);
void log_warn(const char *fmt, ...) PRINTF_LIKE(1, 2);
void log_info(const char *fmt, ...) PRINTF_LIKE(1, 2);
void log_debug(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* The same with structured fields: a NULL-ended list of "NAME=value" strings, upper case names. */
void log_fields(enum log_level level, const char *const *fields, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

#endif

/* log.h - writes log messages, one sentence each, to the systemd journal or to standard error.
 *
 * Programs log (daemon/, worker/ *.c, ctl/); lower floors return errors and may only call
 * log_debug(). Under systemd (JOURNAL_STREAM names standard error) a message goes to the journal
 * with its fields. A terminal gets "subject: text", a file or pipe the same after a time and a
 * level: "2026-11-24T19:28:31.123Z info lagand: text". A worker writes "<priority>subject: text" to
 * its pipe (log_to_parent()); lagand adds WORKER= and EPOCH= and forwards the line.
 *
 * Events per token or per record are counters (ipc/stat.h), not messages. Any thread may log.
 *
 * A message blocks until it is written. After log_never_wait() a message that cannot be written at
 * once is dropped and counted; the next message that can be written is preceded by the number of
 * dropped messages. */
#pragma once
#include "base/base.h"

enum log_level {
    LOG_LEVEL_NONE = -1,
    LOG_LEVEL_ERR = 3,
    LOG_LEVEL_WARN = 4,
    LOG_LEVEL_INFO = 6,
    LOG_LEVEL_DEBUG = 7
};

/* Sets the subject of each line ("lagand", "worker w0"; copied, at most 31 bytes) and the lowest
 * severity that is logged. From now on a failed check() is logged at level err. Call before the
 * first thread starts. */
void log_open(const char *subject, enum log_level most);
void log_level_set(enum log_level most); /* changes the lowest severity that is logged */
void log_to_parent(void); /* from now on "<priority>subject: text" on standard error */
const char *log_level_name(enum log_level l); /* "err", "warn", "info", "debug" */
/* Returns the level of an option with the choices "err|warn|info|debug"; index < N_LOG_LEVELS. */
enum { N_LOG_LEVELS = 4 };
enum log_level log_level_choice(uint32_t index);
/* Returns the level at the start of a line of n bytes, which log_fields() wrote to a file or pipe,
 * and sets *skip to the bytes before its subject. Another line: LOG_LEVEL_NONE, *skip is 0. */
enum log_level log_line_level(const char *line, size_t n, size_t *skip);
void log_never_wait(void); /* see above; only in a program with one thread */

/* fields: NULL, or a NULL-terminated list of "NAME=value" strings with upper-case names. */
void log_fields(enum log_level level, const char *const *fields, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

/* err: operators must act. warn: they should know. info: life cycle. debug: off by default. */
#define log_err(...) log_fields(LOG_LEVEL_ERR, NULL, __VA_ARGS__)
#define log_warn(...) log_fields(LOG_LEVEL_WARN, NULL, __VA_ARGS__)
#define log_info(...) log_fields(LOG_LEVEL_INFO, NULL, __VA_ARGS__)
#define log_debug(...) log_fields(LOG_LEVEL_DEBUG, NULL, __VA_ARGS__)

/* log.h - writes log messages, one sentence each, to the systemd journal or to standard error.
 *
 * Programs log (daemon/, worker/ *.c, ctl/); lower floors return errors and may only call
 * log_debug(). Under systemd (JOURNAL_STREAM names standard error) a message goes to the journal
 * with its fields. Otherwise standard error gets "<priority>subject: text", without "<priority>" on
 * a terminal. A worker always writes the form with "<priority>" to its pipe; lagand adds WORKER=
 * and EPOCH= and forwards the line.
 *
 * Events per token or per record are counters (ipc/stat.h), not messages. Any thread may log.
 *
 * A message blocks until it is written. After log_never_wait() a message that cannot be written at
 * once is dropped and counted; the next message that can be written is preceded by the number of
 * dropped messages. */
#pragma once
#include "base/base.h"

enum log_level { LOG_LEVEL_ERR = 3, LOG_LEVEL_WARN = 4, LOG_LEVEL_INFO = 6, LOG_LEVEL_DEBUG = 7 };

/* Sets the subject of each line ("lagand", "worker w0"; copied, at most 31 bytes) and the lowest
 * severity that is logged. Call before the first thread starts. */
void log_open(const char *subject, enum log_level most);
void log_level_set(enum log_level most); /* changes the lowest severity that is logged */
void log_never_wait(void);               /* see above; only in a program with one thread */

/* fields: NULL, or a NULL-terminated list of "NAME=value" strings with upper-case names. */
void log_fields(enum log_level level, const char *const *fields, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

/* err: operators must act. warn: they should know. info: life cycle. debug: off by default. */
#define log_err(...) log_fields(LOG_LEVEL_ERR, NULL, __VA_ARGS__)
#define log_warn(...) log_fields(LOG_LEVEL_WARN, NULL, __VA_ARGS__)
#define log_info(...) log_fields(LOG_LEVEL_INFO, NULL, __VA_ARGS__)
#define log_debug(...) log_fields(LOG_LEVEL_DEBUG, NULL, __VA_ARGS__)

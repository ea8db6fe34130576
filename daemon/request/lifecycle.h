/* lifecycle.h - ends requests, and notifies the worker and the client.
 *
 * Every request ends once, by lifecycle_end(), lifecycle_finish() or lifecycle_cancel(). Its client
 * gets the terminal message after the tokens that are still undelivered, an error at once.
 */
#pragma once

#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/ledger/ledger.h"
#include "ipc/records.h"

/* Ends r with reason, enum lagan_reason, and an error message. Does not notify the worker. No
 * effect if r has ended. */
void lifecycle_end(struct daemon *d, struct request *r, uint16_t reason, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* Ends r as its worker has reported. */
void lifecycle_finish(struct daemon *d, struct request *r, const struct rec_finish *f);
/* Ends r if all its tokens were received and its worker ended before it sent FINISH. Returns true
 * if r has ended. */
bool lifecycle_finish_complete(struct daemon *d, struct request *r);
/* Ends r and notifies the worker that has it. A finished request whose tokens are not all delivered
 * ends with this error instead. */
void lifecycle_cancel(struct daemon *d, struct request *r, uint16_t reason, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* Suspends r at its worker, because the client does not read, or continues it. */
void lifecycle_suspend(struct daemon *d, struct request *r, bool suspended);
/* Frees or retains r if it has ended, its client has the result, and no worker has it. */
void lifecycle_settle(struct daemon *d, struct request *r);
bool lifecycle_is_error(const struct request *r); /* r has ended */

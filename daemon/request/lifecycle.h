/* lifecycle.h - ends requests, and notifies the worker and the client.
 *
 * Every request ends once, by lifecycle_end(), lifecycle_finish() or lifecycle_cancel(). Its client
 * gets DONE after all tokens; an ERROR may overtake tokens without credit (deliver.h). */
#pragma once
#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/ledger/ledger.h"
#include "ipc/records.h"

/* Ends r with this reason and error message, unless r has ended. Does not notify the worker. */
void lifecycle_end(struct daemon *d, struct request *r, uint16_t reason, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* Ends r with the reason of j; message: of n bytes. */
void lifecycle_reject(struct daemon *d, struct request *r, const struct rec_reject *j,
                      const char *message, int n);
/* Ends r with the reason, score and counters of its worker's FINISH. */
void lifecycle_finish(struct daemon *d, struct request *r, const struct rec_finish *f);
/* Called for a request whose worker has ended: ends r with reason length if max_tokens tokens were
 * received, so that only FINISH is missing. Returns true if r has ended. */
bool lifecycle_finish_complete(struct daemon *d, struct request *r);
/* Ends r with an error and sends CANCEL to the worker that has it. A request that has finished, but
 * whose tokens are not all delivered, gets this error instead of DONE. */
void lifecycle_cancel(struct daemon *d, struct request *r, uint16_t reason, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* Suspends r at its worker because its client does not read; suspended false: continues r. */
void lifecycle_suspend(struct daemon *d, struct request *r, bool suspended);
/* Frees or retains r if it has ended, its client has the result, and no worker has it. */
void lifecycle_settle(struct daemon *d, struct request *r);
bool lifecycle_is_error(const struct request *r); /* true: r has ended with an error */

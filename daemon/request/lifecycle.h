/* lifecycle.h - the end of a request, and how it is told to its worker.
 *
 * Every request ends once, by lifecycle_end(), lifecycle_finish() or lifecycle_cancel(). Its client
 * gets the terminal message after the tokens that are still undelivered, an error at once.
 */
#ifndef DAEMON_REQUEST_LIFECYCLE_H
#define DAEMON_REQUEST_LIFECYCLE_H

#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/ledger/ledger.h"
#include "ipc/records.h"

/* End r with reason, enum lagan_reason, and the sentence of an error. No effect if it has ended. A
 * worker that has it is not notified. */
void lifecycle_end(struct daemon *d, struct request *r, uint16_t reason, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* End r as its worker has reported. */
void lifecycle_finish(struct daemon *d, struct request *r, const struct rec_finish *f);
/* End r, and notify the worker that has it. A request that has finished, and whose tokens are not
 * all delivered, ends with this error instead. */
void lifecycle_cancel(struct daemon *d, struct request *r, uint16_t reason, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* Its worker shall stop generating, because the client does not read, or continue. */
void lifecycle_suspend(struct daemon *d, struct request *r, bool suspended);
/* Free or retain r if it has ended, its client has the result, and no worker has it. */
void lifecycle_settle(struct daemon *d, struct request *r);
bool lifecycle_is_error(const struct request *r); /* of a request that has ended */

#endif

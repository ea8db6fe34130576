/* latency.h - measures the latencies of requests for the histograms of `laganctl metrics`
 * (daemon/ledger/histograms.h). */
#pragma once
#include "daemon/daemon.h"
#include "daemon/ledger/request.h"

/* A worker has sent n new tokens of this output of r. */
void latency_tokens(struct daemon *d, struct request *r, uint32_t output, uint32_t n);
/* r ends with f, the last FINISH of its worker. Counts r if it has not ended early. */
void latency_finish(struct daemon *d, struct request *r, const struct rec_finish *f);

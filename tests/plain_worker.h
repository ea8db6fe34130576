/* plain_worker.h - shared by test workers without a model: their end of the rings. */
#pragma once
#include "base/base.h"
#include "ipc/channel.h"
#include "ipc/heritage.h"
#include "ipc/records.h"

/* Takes the inherited descriptors and ends with lagand. Returns the control page of W. */
struct shm_ctl *plain_begin(struct channel *l, struct heritage *h);
/* Reserves a record of zeros in the response ring; waits while the ring is full. The process ends
 * with lagand. */
void *plain_text_buffer(struct channel *l, uint16_t type, uint32_t len);
/* Sends READY. facts: vocab, max_len, n_slots, has_text; the other fields are filled in. */
void plain_ready(struct channel *l, const char *name, struct rec_ready facts);
void plain_finish(struct channel *l, const struct rec_submit *s, uint16_t reason,
                  uint32_t n_tokens);
/* Waits for the doorbell, at most that long. Returns false if lagand has ended. */
bool plain_rest(struct channel *l, nsec most);

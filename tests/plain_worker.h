/* plain_worker.h - what workers without a model share: their end of the rings. */
#pragma once

#include "base/base.h"
#include "ipc/channel.h"
#include "ipc/heritage.h"
#include "ipc/records.h"

/* Take what was inherited, and die with lagand; the control page of W is returned. */
struct shm_ctl *plain_begin(struct channel *l, struct heritage *h);
/* A record of zeros in the response ring; when that is full, once lagand has made room. The process ends
 * when lagand does. */
void *plain_text_buffer(struct channel *l, uint16_t type, uint32_t len);
/* READY. facts: vocab, max_len, n_slots, has_text; the rest follows. */
void plain_ready(struct channel *l, const char *name, struct rec_ready facts);
void plain_finish(struct channel *l, const struct rec_submit *s, uint16_t reason,
                  uint32_t n_tokens);
/* Until the bell rings, or so long. false: lagand is gone. */
bool plain_rest(struct channel *l, nsec most);

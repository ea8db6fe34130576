/* kv_watch.h - what lagand knows of the prefix caches of its workers: the KV events that they send,
 * and the blocks that they have. dispatch.c routes by it; `laganctl kv events` prints it.
 *
 * Prompts of ids are routed by the names of their blocks, which are the names in the workers'
 * caches (base/block_name.h). Prompts of text cannot be: lagand has no tokenizer, so it does not
 * know their blocks. They are routed by the text instead: the worker that lately got a text with
 * the same first parts of 256 bytes probably has their KV. If not, a cache hit is missed.
 *
 * Each worker's events are numbered from 1 over all its processes. If events are lost, or the
 * process has ended, the numbers of the lost events and at least one more are skipped, so that each
 * reader notices the gap, drops what it knew and reads the blocks with kv_watch_blocks(). Changes
 * between two calls of that are events. Memory is allocated by kv_watch_new()
 * and kv_watch_add() only. */
#pragma once
#include "daemon/daemon.h"
#include "daemon/ledger/request.h"
#include "ipc/records.h"
#include "route/block_holders.h"

struct kv_watch;
struct model_options; /* ipc/model_options.h */

/* An entry of the log: an event and the time when lagand received it. */
struct kv_log_entry {
    nsec at;
    struct rec_kv_event e;
};

/* Prepares for the events of a worker that a reload adds. Returns false if memory is lacking. */
bool kv_watch_add(struct kv_watch *k, uint32_t worker, const struct model_options *keys) MUST_USE;
/* NULL: no memory. */
struct kv_watch *kv_watch_new(const struct config *c) MUST_USE;
struct kv_watch *kv_watch_free(struct kv_watch *k);

/* Handles REC_KV_EVENTS. -EBADMSG: the record is invalid. */
int kv_watch_record(struct worker *w, const void *p, size_t n, struct err *e) MUST_USE;
/* The process of w has ended: its replacement sends a snapshot of what it has adopted. */
void kv_watch_lost(struct worker *w);

/* Prompt tokens of r that workers have in their caches: sets found[i], in tokens, for worker[i].
 * Returns the number of such workers, at most max. */
uint32_t kv_watch_find(struct daemon *d, const struct request *r, uint32_t *worker, uint64_t *found,
                       uint32_t max);
/* r is sent to w, which is expected to find that many of its tokens: notes the parts of a text. */
void kv_watch_sent(struct worker *w, const struct request *r, uint64_t found);
uint64_t kv_watch_hit_tokens(const struct daemon *d); /* sum of found of all requests */

/* Numbers of the first event that is kept, and of the next one: the log has [*first, *next). */
void kv_watch_range(const struct worker *w, uint64_t *first, uint64_t *next);
const struct kv_log_entry *kv_watch_at(const struct worker *w, uint64_t number); /* in that range */
/* As block_holders_list(). */
uint32_t kv_watch_blocks(const struct worker *w, uint32_t *at, struct held_block *ret,
                         uint32_t max);

/* block_event.h - kinds and reasons of prefix cache changes, for the KV manager that logs them
 * (worker/kv/kv_event.h), the records that carry them (ipc/records.h) and their readers. */
#pragma once
#include "base/base.h"

enum kv_event_op { KV_STORED, KV_REMOVED, KV_UPDATED };
enum { KV_OPS = KV_UPDATED + 1 };
/* The reason of an event. A process exit is no event, because the replacement adopts the blocks. */
enum kv_why {
    KV_ASKED,    /* a request stored, onboarded or took over the block, or set its priority */
    KV_PRESSURE, /* the block was evicted because its memory was needed */
    KV_ORPHAN,   /* evicted before other blocks, because without an ancestor no lookup reaches it */
    KV_LOST,     /* the memory of the host tier was lost */
    KV_FLUSHED,  /* an operator flushed the cache */
    KV_WHYS
};

static inline const char *
kv_op_name(enum kv_event_op op)
{
    static const char *const names[KV_OPS] = { "stored", "removed", "updated" };

    return names[op];
}

static inline const char *
kv_why_name(enum kv_why why)
{
    static const char *const names[KV_WHYS] = { "asked", "pressure", "orphan", "lost", "flushed" };

    return names[why];
}

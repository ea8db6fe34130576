/* base.h - the words every file may use.
 *
 * Included first by every .c. Names here are short because they are everywhere; there are few of
 * them because each one is a word the reader must learn. Header only, no state, no I/O.
 */
#ifndef BASE_BASE_H
#define BASE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Units and identities are types, so that a prototype says what a number means. */
typedef int64_t nsec;      /* monotonic nanoseconds, or a duration in them */
typedef int32_t token_id;  /* an index into the vocabulary; negative is never a token */
typedef uint32_t seq_slot; /* a sequence slot: a row of the KV tables, 0 .. n_slots - 1 */
typedef uint32_t
    slice_id; /* a block's first slice, counted from the arena's base: what kernels read */
typedef uint64_t req_id; /* unique over the daemon's life, never reused */

#define SLOT_NONE UINT32_MAX
#define SLICE_NONE UINT32_MAX
#define NSEC_NEVER INT64_MAX

#define MUST_USE __attribute__((warn_unused_result))
#define COLD __attribute__((noinline, cold)) /* rare: kept out of the way of what is not */
#define PRINTF_LIKE(fmt, first) __attribute__((format(printf, fmt, first)))
#define CACHE_LINE 64

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
/* Each use has names of its own, so that one may stand inside another. */
#define MIN(a, b) LESS_OF(a, b, <, __COUNTER__)
#define MAX(a, b) LESS_OF(a, b, >, __COUNTER__)
#define LESS_OF(a, b, op, n) LESS_OF_AS(a, b, op, n)
#define LESS_OF_AS(a, b, op, n) \
    ({ \
        __typeof__(a) of_a##n = (a); \
        __typeof__(b) of_b##n = (b); \
        of_a##n op of_b##n ? of_a##n : of_b##n; \
    })
/* n rounded up to a multiple of unit, and the number of units that takes. */
#define ROUND_UP(n, unit) (((n) + (unit)-1) / (unit) * (unit))
#define CEIL_DIV(n, unit) (((n) + (unit)-1) / (unit))

/* Ownership. CLEAN(f) runs f(&var) when var leaves scope; TAKE(p) yields p and leaves NULL behind,
 * which is how a constructor hands its result out and disarms the clean-up in one line. */
#define CLEAN(f) __attribute__((cleanup(f)))
#define TAKE(p) \
    ({ \
        __typeof__(p) *take_p = &(p); \
        __typeof__(p) take_v = *take_p; \
        *take_p = NULL; \
        take_v; \
    })
#define CLEAN_FUNC(type, f) \
    static inline void f##_at(type **p) \
    { \
        if (*p) f(*p); \
    }

/* Pass a failure up:  TRY(op->rms_norm(...)); CLEAN makes the early return safe. */
#define TRY(call) \
    do { \
        int try_r = (call); \
        if (try_r < 0) return try_r; \
    } while (0)

/* check() states what we promise ourselves. It stays on in release builds: the supervisor can
 * restart a worker, nobody can restart a wrong answer. It is never for what a client, a peer
 * process or a file may get wrong; that is an error and returns. */
#define check(cond) ((cond) ? (void)0 : check_failed(#cond, __FILE__, __LINE__))
void check_failed(const char *cond, const char *file, int line) __attribute__((noreturn));

/* What check_failed() calls before it aborts: a worker leaves its last words there. NULL: nothing. */
extern void (*check_last_words)(const char *sentence);

/* costly_check() is the same promise where checking costs more than the work it guards. */
#ifdef COSTLY_CHECKS
#define costly_check(cond) check(cond)
#else
#define costly_check(cond) ((void)sizeof(cond))
#endif

#endif

/* base.h - types, macros and headers of the C library that nearly every file uses.
 *
 * Every .c file includes it first, mostly through the header of its part, and then needs no include
 * of its own for integer types, errno values, strings and memory. Header only: no state, no I/O. */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Units and identities are types, so that a prototype says what a number means. */
typedef int64_t nsec;      /* monotonic nanoseconds, or a duration in nanoseconds */
typedef int32_t token_id;  /* index into the vocabulary; a negative value is never a token */
typedef uint32_t seq_slot; /* index of a sequence in the KV tables, 0 .. n_slots - 1 */
/* first slice of a block, counted from the base of the arena; kernels read this number */
typedef uint32_t slice_id;
typedef uint64_t req_id; /* unique during the life of lagand, never reused */

#define SLOT_NONE UINT32_MAX
#define SLICE_NONE UINT32_MAX
#define NSEC_NEVER INT64_MAX

#define MUST_USE __attribute__((warn_unused_result))
/* for error paths: kept away from the hot code */
#define COLD __attribute__((noinline, cold))
#define PRINTF_LIKE(fmt, first) __attribute__((format(printf, fmt, first)))
#define CACHE_LINE 64

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
/* Every expansion declares variables with unique names, so MIN and MAX may be nested. */
#define MIN(a, b) LESS_OF(a, b, <, __COUNTER__)
#define MAX(a, b) LESS_OF(a, b, >, __COUNTER__)
#define LESS_OF(a, b, op, n) LESS_OF_AS(a, b, op, n)
#define LESS_OF_AS(a, b, op, n) \
    ({ \
        __typeof__(a) of_a##n = (a); \
        __typeof__(b) of_b##n = (b); \
        of_a##n op of_b##n ? of_a##n : of_b##n; \
    })
/* n rounded up to a multiple of unit; n / unit rounded up. */
#define ROUND_UP(n, unit) (((n) + (unit)-1) / (unit) * (unit))
#define CEIL_DIV(n, unit) (((n) + (unit)-1) / (unit))

/* Ownership. CLEAN(f) calls f(&variable) when the variable leaves its scope. TAKE(p) yields p and
 * sets p to NULL: a constructor returns its result and cancels the clean-up in one expression. */
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

/* Return a failure to the caller: TRY(op->rms_norm(...)). CLEAN releases what the function owns. */
#define TRY(call) \
    do { \
        int try_r = (call); \
        if (try_r < 0) return try_r; \
    } while (0)

/* check() aborts if an invariant of our own code is violated. It stays on in release builds,
 * because a worker can be restarted and a wrong output cannot be taken back. Invalid input of a
 * client, a peer process or a file is an error and not a check. */
#define check(cond) ((cond) ? (void)0 : check_failed(#cond, __FILE__, __LINE__))
void check_failed(const char *cond, const char *file, int line) __attribute__((noreturn));

/* check_failed() calls this before it aborts. A worker stores its panic message here. NULL: not
 * called. */
extern void (*check_panic_message)(const char *sentence);

/* check() for invariants that cost more to test than the work they guard. */
#ifdef COSTLY_CHECKS
#define costly_check(cond) check(cond)
#else
#define costly_check(cond) ((void)sizeof(cond))
#endif

/* base.h - types, macros and headers of the C library that nearly every file uses.
 *
 * Every .c file includes base.h first, mostly through another header, and therefore needs no
 * include of its own for integer types, errno values, strings and memory. No state, no I/O. */
#pragma once
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Units and identities are types, so that a prototype says what a number means. */
typedef int64_t nsec;      /* monotonic nanoseconds, or a duration in nanoseconds */
typedef int32_t token_id;  /* index into the vocabulary; negative values are not tokens */
typedef uint32_t seq_slot; /* index of a sequence in the KV tables, 0 .. n_slots - 1 */
/* number of a KV block's first slice, counted from the base of the arena; kernels read it */
typedef uint32_t slice_id;
typedef uint64_t req_id; /* number of one request; lagand never gives it to another */

#define SLOT_NONE UINT32_MAX
#define SLICE_NONE UINT32_MAX
#define NSEC_NEVER INT64_MAX

#define MUST_USE __attribute__((warn_unused_result))
/* marks a function that runs rarely; the compiler places it away from other code */
#define COLD __attribute__((noinline, cold))
#define PRINTF_LIKE(fmt, first) __attribute__((format(printf, fmt, first)))
#define CACHE_LINE 64

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
/* MIN and MAX may be nested, because every expansion declares variables with unique names. */
#define MIN(a, b) LESS_OF(a, b, <, __COUNTER__)
#define MAX(a, b) LESS_OF(a, b, >, __COUNTER__)
#define LESS_OF(a, b, op, n) LESS_OF_AS(a, b, op, n)
#define LESS_OF_AS(a, b, op, n) \
    ({ \
        __typeof__(a) of_a##n = (a); \
        __typeof__(b) of_b##n = (b); \
        of_a##n op of_b##n ? of_a##n : of_b##n; \
    })
/* ROUND_UP: n rounded up to a multiple of unit. CEIL_DIV: n / unit rounded up. */
#define ROUND_UP(n, unit) (((n) + (unit)-1) / (unit) * (unit))
#define CEIL_DIV(n, unit) (((n) + (unit)-1) / (unit))

/* CLEAN(f) makes the compiler call f(&variable) when the variable leaves its scope. TAKE(p) yields
 * p and sets p to NULL, so a function can return an object that CLEAN would otherwise free.
 * CLEAN_FUNC(type, f) defines f_at(&p) for CLEAN(f_at): f_at() calls f(p) unless p is NULL. */
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

/* If the result of call is negative, an error, the function that uses TRY() returns this result. */
#define TRY(call) \
    do { \
        int try_r = (call); \
        if (try_r < 0) return try_r; \
    } while (0)

/* check() aborts the process if an invariant of our own code is violated, also in release builds: a
 * worker can be restarted, but a wrong output cannot be taken back. For invalid input of a client,
 * a peer process or a file, functions return an error instead. */
#define check(cond) ((cond) ? (void)0 : check_failed(#cond, __FILE__, __LINE__))
void check_failed(const char *cond, const char *file, int line) __attribute__((noreturn));

/* check_failed() calls it with the sentence before it aborts: log_open() sets it to a function that
 * logs the sentence, a worker to one that also stores the panic message. NULL: check_failed()
 * writes the sentence to standard error. */
extern void (*check_panic_message)(const char *sentence);

/* A check() that costs more time than the code around it; only with COSTLY_CHECKS. */
#ifdef COSTLY_CHECKS
#define costly_check(cond) check(cond)
#else
#define costly_check(cond) ((void)sizeof(cond))
#endif

/* driver_calls.h - what a program asks of the CUDA driver, counted by name; and what it allocates
 * on the host.
 *
 * Whoever links driver_calls.c has a dlsym() of its own, by which the runtime finds the driver: in
 * the module, in cuBLASLt, wherever there is one. Every call of the driver goes through a counter
 * then.
 */
#ifndef TESTS_GPU_DRIVER_CALLS_H
#define TESTS_GPU_DRIVER_CALLS_H

#include <stdbool.h>
#include <stdint.h>

/* Count from now on, from 0, what any thread asks of the driver and what this one allocates; then
 * no more. */
void driver_calls_begin(void);
void driver_calls_end(void);
/* How often a function was called (by its name without _v2). */
uint64_t driver_calls(const char *name);
/* malloc() and its kin, by this program or the module; always 0 under a sanitizer, which has its
 * own. */
uint64_t driver_calls_allocations(void);
/* The first of those called that is not among `names` (ended by NULL), or NULL. */
const char *driver_calls_beside(const char *const *names);
/* All that were called, a line each. */
void driver_calls_print(void);

#endif

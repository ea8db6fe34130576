/* driver_calls.h - counts the CUDA driver calls of a program by name, and its host allocations.
 *
 * A program that links driver_calls.c has its own dlsym(), through which the runtime of every
 * module (ours, cuBLASLt) finds the driver. Every driver call then goes through a counter.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Starts counting from 0: driver calls of all threads, allocations of this thread. Below: stops. */
void driver_calls_begin(void);
void driver_calls_end(void);
/* Number of calls of a function (its name without _v2). */
uint64_t driver_calls(const char *name);
/* Calls of malloc() and its relatives by this program or the module; 0 under a sanitizer, which
 * replaces malloc(). */
uint64_t driver_calls_allocations(void);
/* The first function called that is not among `names` (NULL-terminated), or NULL. */
const char *driver_calls_beside(const char *const *names);
/* All functions called, one per line. */
void driver_calls_print(void);

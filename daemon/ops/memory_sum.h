/* memory_sum.h - adds up the memory of all models that share a device or the host, for lagand
 * --check and the start of lagand: each of two models may fit alone, but not beside the other.
 *
 * lagan-worker --inspect reports what one process needs at least: weights, smallest KV memory (or
 * kv.memory, if it is set) and, on the CPU, the scratch of steps and the process; on a GPU, what is
 * kept free for graphs, lanes and a replacement. A GPU worker's host tier is memory of the host. */
#pragma once
#include "daemon/config/options.h"

enum { MEMORY_SUM_GPUS = 64 }; /* GPUs with a higher number are not added up */

struct memory_sum { /* all zero: no model */
    struct memory_device {
        uint64_t free, total;           /* bytes; total 0: unknown. Not used for the host. */
        uint64_t bytes[MAX_MODELS];     /* of one process of each model */
        uint32_t processes[MAX_MODELS]; /* of each model on this device */
    } host, gpu[MEMORY_SUM_GPUS];
};

/* Adds model `model` of c. report: the JSON that lagan-worker --inspect has printed; a report
 * without sizes adds nothing. */
void memory_sum_add(struct memory_sum *s, const struct config *c, uint32_t model,
                    const char *report);
/* Adds an error to *p for the host and for each GPU whose models together need more than its
 * memory, or than the limit of lagand's cgroup; the error names the share of each model. free: also
 * if they need more than what other programs leave free now. */
void memory_sum_check(const struct memory_sum *s, const struct config *c, bool free,
                      struct problems *p);

/* harness.h - the test in lagand's place: it starts lagan-worker, fills its request ring, reads what comes. */
#ifndef TESTS_WORKER_HARNESS_H
#define TESTS_WORKER_HARNESS_H

#include "ipc/channel.h"
#include "ipc/fd_channel.h"
#include "ipc/records.h"

#include <sys/types.h>

enum { HARNESS_ARENAS = 4 };

struct harness {
    struct channel channel;
    int fd_channel;
    pid_t pid;
    struct ring_record rec;
};
/* What a worker left, by fd. */
struct harness_arenas {
    uint32_t n;
    struct fd_channel_note note[HARNESS_ARENAS];
    int fd[HARNESS_ARENAS];
};

/* --device cpu|cuda: what workers run on, cpu without; --only PATTERN: of the tests. */
void harness_args(int argc, char **argv);
bool harness_on_gpu(void);
/* model: a folder, also under the sources; option: NULL-ended; on a GPU numerics is invariant, KV 64 MiB and a block
 * has 16 tokens, whatever it says. left: given to the worker before it starts, or NULL. */
void harness_start(struct harness *p, const char *model, const char *const *option,
                   const struct harness_arenas *left);
void harness_ring(
    uint32_t log2); /* of workers that are started from now on: bytes of what they say; 20 */
/* The next record, whatever it is. NULL: the worker is gone. */
const struct ring_record *harness_next(struct harness *p);
/* The records of a row up to its FINISH: its reason; how many tokens it says it has. */
uint32_t harness_finish(struct harness *p, uint32_t *n_tokens);
void harness_wait_ready(struct harness *p, struct rec_ready *ready);
/* s with its tails in one piece of that many bytes. */
void harness_submit(struct harness *p, const struct rec_submit *s, const void *tails,
                    uint32_t bytes);
void harness_pause(struct harness *p, uint32_t row, bool preempted); /* or to go on */
int harness_wait_exit(struct harness *p);                            /* its status */
/* kill -9, then what it left; close_left() closes that. Records stay to be read from p, then harness_close(). */
void harness_kill(struct harness *p, struct harness_arenas *left);
void harness_close_left(struct harness_arenas *left);
void harness_close(struct harness *p);

#endif

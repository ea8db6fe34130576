/* harness.h - starts lagan-worker with the test in lagand's place: the test writes the request ring
 * and reads the response ring.
 */
#pragma once
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
/* Arenas that a worker left. */
struct harness_arenas {
    uint32_t n;
    struct fd_channel_note note[HARNESS_ARENAS];
    int fd[HARNESS_ARENAS];
};

/* --device cpu|cuda: device of the workers, cpu by default; --only PATTERN: selects tests. */
void harness_args(int argc, char **argv);
bool harness_on_gpu(void);
/* model: a folder, also relative to the sources; option: NULL-terminated. On a GPU numerics is
 * invariant, KV memory 64 MiB and a block 16 tokens, whatever option says. left: passed to the
 * worker before it starts, or NULL. */
void harness_start(struct harness *p, const char *model, const char *const *option,
                   const struct harness_arenas *left);
void harness_ring(
    uint32_t log2); /* log2 of the response ring's bytes for workers started later; default 20 */
/* Returns the next record; NULL: the worker has exited. */
const struct ring_record *harness_next(struct harness *p);
/* Reads a request's records up to FINISH. Returns its reason and its number of tokens. */
uint32_t harness_finish(struct harness *p, uint32_t *n_tokens);
void harness_wait_ready(struct harness *p, struct rec_ready *ready);
/* Sends s and its tails in one record. */
void harness_submit(struct harness *p, const struct rec_submit *s, const void *tails,
                    uint32_t bytes);
void harness_suspend(struct harness *p, uint32_t row, bool suspend); /* or to resume */
int harness_wait_exit(struct harness *p);                            /* returns its status */
/* Sends SIGKILL and collects the arenas; free them with harness_close_left(). Records can still be
 * read from p until harness_close(). */
void harness_kill(struct harness *p, struct harness_arenas *left);
void harness_close_left(struct harness_arenas *left);
void harness_close(struct harness *p);

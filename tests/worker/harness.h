/* harness.h - the test in lagand's place: it starts lagan-worker, fills its request ring, reads what comes. */
#ifndef TESTS_WORKER_HARNESS_H
#define TESTS_WORKER_HARNESS_H

#include "ipc/hand.h"
#include "ipc/link.h"
#include "ipc/records.h"

#include <sys/types.h>

enum { PLAY_ARENAS = 4 };

struct played {
    struct link link;
    int hand;
    pid_t pid;
    struct ring_record rec;
};
/* What a worker left, by fd. */
struct play_arenas {
    uint32_t n;
    struct hand_note note[PLAY_ARENAS];
    int fd[PLAY_ARENAS];
};

/* --device cpu|cuda: what workers run on, cpu without; --only PATTERN: of the tests. */
void play_args(int argc, char **argv);
bool play_on_gpu(void);
/* model: a folder, also under the sources; option: NULL-ended; on a GPU numerics is invariant, KV 64 MiB and a block
 * has 16 tokens, whatever it says. left: given to the worker before it starts, or NULL. */
void play_start(struct played *p, const char *model, const char *const *option,
                const struct play_arenas *left);
void play_ring(
    uint32_t log2); /* of workers that are started from now on: bytes of what they say; 20 */
/* The next record, whatever it is. NULL: the worker is gone. */
const struct ring_record *play_next(struct played *p);
/* The records of a row up to its FINISH: its reason; how many tokens it says it has. */
uint32_t play_finish(struct played *p, uint32_t *n_tokens);
void play_wait_ready(struct played *p, struct rec_ready *ready);
/* s with its tails in one piece of that many bytes. */
void play_submit(struct played *p, const struct rec_submit *s, const void *tails, uint32_t bytes);
void play_pause(struct played *p, uint32_t row, bool paused); /* or to go on */
int play_wait_exit(struct played *p);                         /* its status */
/* kill -9, then what it left; close_left() closes that. Records stay to be read from p, then play_close(). */
void play_kill(struct played *p, struct play_arenas *left);
void play_close_left(struct play_arenas *left);
void play_close(struct played *p);

#endif

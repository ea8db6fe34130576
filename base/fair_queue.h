/* fair_queue.h - who is next among clients that want much and little: a deficit round robin, worked out on arrival.
 *
 * Clients that have something open are gone round; each turn allows each of them a quantum of tokens more, and
 * what is asked for is due in the turn in which its client has been allowed all that it asked for up to there.
 * So the order is a number, given once, and sorted lists stay sorted. What was asked for and not used is given
 * back; who comes anew has saved nothing. Clients are numbers; those that fall together share their turns.
 */
#ifndef BASE_FAIR_QUEUE_H
#define BASE_FAIR_QUEUE_H

#include "base/base.h"

enum { FAIR_QUEUE_CLIENTS = 2048 };

struct fair_queue {
    uint64_t
        quantum;  /* tokens a client and turn; 0: everybody's turn is 0, in the order of arrival */
    uint64_t now; /* the last turn that somebody had, at least */
    struct fair_queue_client {
        uint64_t spent; /* tokens, in the time of turns: one is spent / quantum */
        uint64_t turn;  /* the last it was given */
        uint32_t n_open;
    } client[FAIR_QUEUE_CLIENTS];
};

/* In which turn so many tokens of that client are due; fair_queue_end() ends what begins here. */
uint64_t fair_queue_give(struct fair_queue *t, uint32_t client, uint64_t tokens) MUST_USE;
void fair_queue_take(struct fair_queue *t, uint64_t turn); /* somebody of that turn goes */
/* What was asked for, and has its turn, comes to another number of tokens. */
void fair_queue_change(struct fair_queue *t, uint32_t client, uint64_t had, uint64_t has);
void fair_queue_end(struct fair_queue *t, uint32_t client, uint64_t unused);

#endif

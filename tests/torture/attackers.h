/* attackers.h - clients that mean harm: what each does to a lagand, over and over, in processes of their own. */
#ifndef TESTS_TORTURE_ATTACKERS_H
#define TESTS_TORTURE_ATTACKERS_H

#include "base/base.h"

enum { ATTACKERS = 2 }; /* beside each other */

typedef void attack_fn(const char *socket_path, uint64_t seed);

attack_fn attack_spin;     /* nothing but the time it takes */
attack_fn attack_pings;    /* as many as go */
attack_fn attack_nonsense; /* random bytes, half of them with a good beginning */
attack_fn
    attack_never_read; /* 64 long requests on each of 8 connections, and not a frame is read */
attack_fn attack_never_read_any; /* a request on each of 400 */
attack_fn attack_large;          /* frames as large as may be, with a list that is too long */
attack_fn attack_large_good;     /* and with nothing wrong but that the model cannot take them */
attack_fn attack_parts;          /* 250 frames as large as may be, all but their last byte */
attack_fn attack_endless;        /* messages of frames without end */
attack_fn attack_asks;           /* what costs lagand most to answer, as fast as it goes */
attack_fn attack_crowd; /* 5,000 connections: silent ones, half of a handshake, HELLO and no more */

/* ATTACKERS processes of it, which get the time that nobody else wants: what they take of a processor, in the kernel
 * too, is no doing of lagand's. At nice 19 they kept a worker or a client from theirs for 10 ms at a time. */
void attack_begin(attack_fn *how, const char *socket_path);
void attack_check(void); /* they have not given up */
void attack_end(void);

#endif

/* attackers.h - hostile clients: each attack runs against lagand in a loop, in processes of its
 * own.
 */
#pragma once
#include "base/base.h"

enum { ATTACKERS = 2 }; /* processes per attack */

typedef void attack_fn(const char *socket_path, uint64_t seed);

attack_fn attack_spin;           /* uses CPU time only */
attack_fn attack_pings;          /* PING as fast as possible */
attack_fn attack_nonsense;       /* random bytes, half of them with a valid beginning */
attack_fn attack_never_read;     /* 64 long requests on each of 8 connections, no frame is read */
attack_fn attack_never_read_any; /* a request on each of 400 connections, no frame is read */
attack_fn attack_large;          /* frames of the maximum size, with a list that is too long */
attack_fn attack_large_good;     /* valid frames of the maximum size that the model cannot accept */
attack_fn attack_parts;          /* 250 frames of the maximum size, without their last byte */
attack_fn attack_endless;        /* messages with an endless number of frames */
attack_fn attack_asks;           /* the most expensive calls, as fast as possible */
attack_fn attack_crowd;          /* 5,000 connections: silent, half a handshake, or HELLO only */

/* Starts ATTACKERS processes with SCHED_IDLE, because lagand is not responsible for the CPU time of
 * attackers, which at nice 19 delayed a worker or a client by 10 ms at a time. */
void attack_begin(attack_fn *how, const char *socket_path);
void attack_check(void); /* checks that the attackers still run */
void attack_end(void);

/* recover.pml - every accepted request gets each token once, in order, and one end, however its workers die.
 *
 * Two requests of T tokens, rings of CAP records, K kills at any instant. The ledger (said, state) is
 * lagand's own; the rings die with their worker, after what was committed in them has been read. A token and
 * the word that it was the last are two records. Request 0 ends by its count, which lagand knows; request 1
 * by a token that only a worker can tell for an end.
 *
 * NO_DRAIN must pass too: reading what the dead have left saves work and nothing else. Mutants, each of which
 * must fail: NO_OFFSET (the next worker begins at 0), STALE (records of the dead are read after its requests
 * went back), FORGET (what was read out of the request ring is not given again), PAST_END (a worker does not
 * see that the request it is given has ended), NO_END (lagand neither ends such a request nor gives it again).
 */
#ifndef K
#define K 2 /* kills */
#endif
#define T 2
#define CAP 2

chan request = [CAP] of { bit, byte };       /* which, tokens it has */
chan response = [CAP] of { bit, bit, byte }; /* 1: the end; which; position, or how many */

mtype = { QUEUED, OPEN, ENDED };
mtype state[2] = QUEUED;
byte said[2], ends[2], epoch;
bool alive; /* the worker of this epoch */

#ifdef PAST_END
#define LEFT(r) (n[r] < T || (r == 1 && from == T && n[r] == T))
#else
#define LEFT(r) (n[r] < T)
#endif

/* A record is there or is not: the store of the tail is the commit. */
inline speak(r)
{
	if
	:: LEFT(r) -> response!0, r, n[r]; n[r]++
	:: else -> response!1, r, n[r]; mine[r] = false
	fi
}

proctype Worker(byte e)
{
	bool mine[2];
	byte n[2], from, x;
	bit r;
	do
	:: !alive || epoch != e -> break
	:: atomic { alive && epoch == e && request?[r, x] -> request?r, x;
		n[r] = x; mine[r] = true; if :: r -> from = x :: else fi }
	:: atomic { alive && epoch == e && mine[0] && nfull(response) -> speak(0) }
	:: atomic { alive && epoch == e && mine[1] && nfull(response) -> speak(1) }
	od
}

active proctype Killer()
{
	byte kills = K;
end:	do
	:: atomic { alive && kills > 0 -> kills--; alive = false }
	od
}

inline end_row(r)
{
	state[r] = ENDED;
	ends[r]++;
	assert(ends[r] == 1)
}

inline take()
{
	response?fin, r, x;
	assert(state[r] == OPEN && x == said[r] && (fin || x < T));
	if
	:: fin -> end_row(r)
	:: else -> said[r]++
	fi
}

inline give(q)
{
#ifdef NO_OFFSET
	request!q, 0;
#else
	request!q, said[q];
#endif
	state[q] = OPEN
}

/* The worker is reaped: see bury() in daemon/supervise/worker.c. */
inline bury()
{
#if !defined(STALE) && !defined(NO_DRAIN)
	do
	:: nempty(response) -> take()
	:: empty(response) -> break
	od;
#endif
#ifndef STALE
	do
	:: response?fin, r, x
	:: empty(response) -> break
	od;
#endif
	do
	:: request?r, x -> last[r] = true
	:: empty(request) -> break
	od;
	outlive(0);
	outlive(1)
}

inline outlive(q)
{
	if
	:: state[q] == OPEN && q == 0 && said[q] == T -> end_row(q)
#ifdef NO_END
	:: state[q] == OPEN && q == 1 && said[q] == T -> skip
#else
	:: state[q] == OPEN && q == 1 && said[q] == T -> state[q] = QUEUED
#endif
#ifdef FORGET
	:: state[q] == OPEN && said[q] < T -> if :: last[q] -> state[q] = QUEUED :: else fi
#else
	:: state[q] == OPEN && said[q] < T -> state[q] = QUEUED
#endif
	:: else
	fi;
	last[q] = false
}

active proctype Lagand()
{
	bit r, fin;
	byte x;
	bool last[2]; /* still in the request ring */
	do
	:: state[0] == ENDED && state[1] == ENDED -> break
	:: alive && state[0] == QUEUED && nfull(request) -> give(0)
	:: alive && state[1] == QUEUED && nfull(request) -> give(1)
	:: nempty(response) -> take()
	:: !alive -> bury(); atomic { epoch++; alive = true; run Worker(epoch) }
	od;
	alive = false
}

/* recover.pml - every accepted request gets each token once, in order, and ends once, despite kills.
 *
 * Two requests of T tokens, rings of CAP records, K kills of workers at any instant. The ledger
 * (received, state) belongs to lagand. The rings end with their worker, after lagand has read the
 * committed records. The end of a request is a record of its own. Request 0 ends by its token count,
 * which lagand knows; request 1 ends by a token that only a worker recognises.
 *
 * NO_DRAIN must pass too: reading the records of a dead worker only saves work. Mutants, each of
 * which must fail: NO_OFFSET (the replacement starts at token 0), STALE (records of a dead worker are
 * read after its requests were requeued), FORGET (requests read from the request ring are not
 * requeued), PAST_END (a worker does not see that the request has already ended), NO_END (lagand
 * neither ends nor requeues such a request).
 */
#ifndef K
#define K 2 /* kills */
#endif
#define T 2
#define CAP 2

chan request = [CAP] of { bit, byte };       /* request, tokens received */
chan response = [CAP] of { bit, bit, byte }; /* 1: end; request; position or count */

mtype = { QUEUED, OPEN, ENDED };
mtype state[2] = QUEUED;
byte received[2], ends[2], epoch;
bool alive; /* the worker of this epoch */

#ifdef PAST_END
#define LEFT(r) (n[r] < T || (r == 1 && from == T && n[r] == T))
#else
#define LEFT(r) (n[r] < T)
#endif

/* A record exists or not: the store of the tail commits it. */
inline report(r)
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
	:: atomic { alive && epoch == e && mine[0] && nfull(response) -> report(0) }
	:: atomic { alive && epoch == e && mine[1] && nfull(response) -> report(1) }
	od
}

active proctype Killer()
{
	byte kills = K;
end:	do
	:: atomic { alive && kills > 0 -> kills--; alive = false }
	od
}

inline end_request(r)
{
	state[r] = ENDED;
	ends[r]++;
	assert(ends[r] == 1)
}

inline receive()
{
	response?fin, r, x;
	assert(state[r] == OPEN && x == received[r] && (fin || x < T));
	if
	:: fin -> end_request(r)
	:: else -> received[r]++
	fi
}

inline submit(q)
{
#ifdef NO_OFFSET
	request!q, 0;
#else
	request!q, received[q];
#endif
	state[q] = OPEN
}

/* The worker is reaped, as in daemon/supervise/worker.c. */
inline reap()
{
#if !defined(STALE) && !defined(NO_DRAIN)
	do
	:: nempty(response) -> receive()
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
	:: request?r, x -> unread[r] = true
	:: empty(request) -> break
	od;
	requeue(0);
	requeue(1)
}

inline requeue(q)
{
	if
	:: state[q] == OPEN && q == 0 && received[q] == T -> end_request(q)
#ifdef NO_END
	:: state[q] == OPEN && q == 1 && received[q] == T -> skip
#else
	:: state[q] == OPEN && q == 1 && received[q] == T -> state[q] = QUEUED
#endif
#ifdef FORGET
	:: state[q] == OPEN && received[q] < T -> if :: unread[q] -> state[q] = QUEUED :: else fi
#else
	:: state[q] == OPEN && received[q] < T -> state[q] = QUEUED
#endif
	:: else
	fi;
	unread[q] = false
}

active proctype Lagand()
{
	bit r, fin;
	byte x;
	bool unread[2]; /* still in the request ring */
	do
	:: state[0] == ENDED && state[1] == ENDED -> break
	:: alive && state[0] == QUEUED && nfull(request) -> submit(0)
	:: alive && state[1] == QUEUED && nfull(request) -> submit(1)
	:: nempty(response) -> receive()
	:: !alive -> reap(); atomic { epoch++; alive = true; run Worker(epoch) }
	od;
	alive = false
}

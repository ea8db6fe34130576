/* wake.pml - no wake-up is lost: ring_publish(), ring_release() and doorbell.c at both ends of a ring.
 *
 * The producer fills a ring of CAP records, the consumer empties it. Each sleeps if it cannot
 * proceed and is woken by the other. Stores pass through a FIFO buffer, as on x86; a fence empties
 * the buffer. A lost wake-up is an end state in which one side still sleeps.
 *
 * Mutants, each of which must fail: NO_RING_FENCE, NO_SLEEP_FENCE, NO_RECHECK, FLAG (wait_seq is a
 * flag instead of a number), RING_FIRST (ring before the store of the tail), DRAIN_LATE (doorbell
 * drained between announcement and sleep), NO_SPACE_RING (no ring for space), SPACE_NOT_ANNOUNCED (a
 * writer that waits for space does not announce it), SPACE_LATE (announces it only if it was awake).
 */
#define N 3   /* records */
#define CAP 2 /* records that fit the ring */
#define P 0
#define C 1

byte idx[2];      /* tail and head in memory; each side has a private copy of its own */
#define ASLEEP 1 /* or announced */
#define FOR_SPACE 2
byte wait_seq[2]; /* these bits; above them the number of the sleep */
bool doorbell[2];     /* a byte is in the socket end of this side */
chan buf[2] = [2] of { bit, byte } /* buffered stores of a side: 0 idx, 1 wait_seq */

active proctype Memory()
{
	bit which;
	byte v;
end:	do
	:: atomic { buf[P]?which, v -> if :: which -> wait_seq[P] = v :: else -> idx[P] = v fi }
	:: atomic { buf[C]?which, v -> if :: which -> wait_seq[C] = v :: else -> idx[C] = v fi }
	od
}

inline fence(me) { len(buf[me]) == 0 }

/* doorbell_ring(), doorbell_ring_space() */
inline ring(me, bit_)
{
#ifndef NO_RING_FENCE
	fence(me);
#endif
	s = wait_seq[1 - me];
	if
	:: (s & bit_) && s != last_kick -> last_kick = s; doorbell[1 - me] = true
	:: else
	fi
}

#ifdef FLAG
#define AWAKE 0
#else
#define AWAKE ((seq | 3) + 1)
#endif
#ifdef SPACE_NOT_ANNOUNCED
#define SPACE ASLEEP
#else
#define SPACE (ASLEEP | FOR_SPACE)
#endif
#ifdef SPACE_LATE
#define CHANGED (!(seq & ASLEEP))
#else
#define CHANGED ((seq | bits) != seq)
#endif

/* doorbell_sleep(), poll(), doorbell_wake(), doorbell_drain(). ready: no reason to sleep any more.
 * Other events may wake a side too, and it may sleep again without clearing wait_seq. */
inline sleep(me, bits, ready)
{
	if
	:: readable -> readable = false; doorbell[me] = false
	:: else
	fi;
	if
	:: CHANGED -> seq = seq | bits; buf[me]!1, seq
	:: else
	fi;
#ifndef NO_SLEEP_FENCE
	fence(me);
#endif
#ifdef DRAIN_LATE
	doorbell[me] = false;
#endif
	if
#ifndef NO_RECHECK
	:: ready
#endif
	:: else ->
		if
		:: doorbell[me] -> readable = true
		:: others > 0 -> others--
		fi
	fi;
	if
	:: skip -> seq = AWAKE; buf[me]!1, seq /* worker: drains before the next sleep */
	:: readable -> readable = false; doorbell[me] = false; seq = AWAKE; buf[me]!1, seq /* lagand: drains at once */
	:: !readable /* sleeps again, wait_seq unchanged */
	fi
}

active proctype Producer()
{
	byte tail, seq, last_kick, s, others = 1;
	bool readable;
	do
	:: tail == N -> break
	:: tail < N && tail - idx[C] < CAP ->
#ifdef RING_FIRST
		ring(P, ASLEEP);
#endif
		tail++;
		buf[P]!0, tail;
#ifndef RING_FIRST
		ring(P, ASLEEP)
#endif
	:: tail < N && tail - idx[C] >= CAP -> sleep(P, SPACE, (tail - idx[C] < CAP))
	:: tail < N && others > 0 -> sleep(P, ASLEEP, false) /* until another event wakes it */
	od
}

active proctype Consumer()
{
	byte head, seq, last_kick, s, others = 1;
	bool readable;
	do
	:: head == N -> break
	:: head < N && idx[P] != head ->
		head++;
		buf[C]!0, head;
#ifndef NO_SPACE_RING
		ring(C, FOR_SPACE)
#endif
	:: head < N && idx[P] == head -> sleep(C, ASLEEP, (idx[P] != head))
	od
}

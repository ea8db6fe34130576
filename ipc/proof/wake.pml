/* wake.pml - no wake-up is lost: ring_publish(), ring_release() and doorbell.c at both ends of one ring.
 *
 * The producer fills a ring of CAP records, the consumer empties it; each sleeps when it can do nothing, and
 * is partition by the other. Stores wait in a buffer, in order, as on x86: the fences are what empties it. A lost
 * wake-up is an end state in which one side still sleeps.
 *
 * Mutants, each of which must fail: NO_RING_FENCE, NO_SLEEP_FENCE, NO_RECHECK, FLAG (wait_seq a flag and not
 * a number), RING_FIRST (before the store of the tail), DRAIN_LATE (the bell emptied between announcement
 * and sleep), NO_ROOM_BELL (nobody is told of room), ROOM_UNSAID (who waits for room does not say so),
 * ROOM_LATE (says it only if it was awake).
 */
#define N 3   /* records */
#define CAP 2 /* the ring's */
#define P 0
#define C 1

byte idx[2];      /* tail and head as memory has them; each side knows its own without looking */
#define ASLEEP 1 /* or about to be */
#define FOR_ROOM 2
byte wait_seq[2]; /* these bits, above them the sleep's number */
bool bell[2];     /* a byte waits in that side's end of the socket */
chan buf[2] = [2] of { bit, byte } /* a side's stores on their way: 0 idx, 1 wait_seq */

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

/* doorbell_ring(), doorbell_ring_room() */
inline ring(me, bit_)
{
#ifndef NO_RING_FENCE
	fence(me);
#endif
	s = wait_seq[1 - me];
	if
	:: (s & bit_) && s != last_kick -> last_kick = s; bell[1 - me] = true
	:: else
	fi
}

#ifdef FLAG
#define AWAKE 0
#else
#define AWAKE ((seq | 3) + 1)
#endif
#ifdef ROOM_UNSAID
#define ROOM ASLEEP
#else
#define ROOM (ASLEEP | FOR_ROOM)
#endif
#ifdef ROOM_LATE
#define NEWS (!(seq & ASLEEP))
#else
#define NEWS ((seq | bits) != seq)
#endif

/* doorbell_sleep(), poll(), doorbell_wake(), doorbell_drain(); ready: nothing to sleep for after all. Other things may
 * wake a side too, and it may go to sleep again without having been awake. */
inline sleep(me, bits, ready)
{
	if
	:: heard -> heard = false; bell[me] = false
	:: else
	fi;
	if
	:: NEWS -> seq = seq | bits; buf[me]!1, seq
	:: else
	fi;
#ifndef NO_SLEEP_FENCE
	fence(me);
#endif
#ifdef DRAIN_LATE
	bell[me] = false;
#endif
	if
#ifndef NO_RECHECK
	:: ready
#endif
	:: else ->
		if
		:: bell[me] -> heard = true
		:: others > 0 -> others--
		fi
	fi;
	if
	:: skip -> seq = AWAKE; buf[me]!1, seq /* a worker: the bell is emptied before the next sleep */
	:: heard -> heard = false; bell[me] = false; seq = AWAKE; buf[me]!1, seq /* lagand: at once */
	:: !heard /* again, without having been awake */
	fi
}

active proctype Producer()
{
	byte tail, seq, last_kick, s, others = 1;
	bool heard;
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
	:: tail < N && tail - idx[C] >= CAP -> sleep(P, ROOM, (tail - idx[C] < CAP))
	:: tail < N && others > 0 -> sleep(P, ASLEEP, false) /* until something else wakes it */
	od
}

active proctype Consumer()
{
	byte head, seq, last_kick, s, others = 1;
	bool heard;
	do
	:: head == N -> break
	:: head < N && idx[P] != head ->
		head++;
		buf[C]!0, head;
#ifndef NO_ROOM_BELL
		ring(C, FOR_ROOM)
#endif
	:: head < N && idx[P] == head -> sleep(C, ASLEEP, (idx[P] != head))
	od
}

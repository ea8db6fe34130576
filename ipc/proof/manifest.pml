/* manifest.pml - the manifest never claims KV that is not there, at whatever instant a worker dies.
 *
 * Models worker/manifest/manifest.c store by store. Requests share slots and blocks (one block for
 * each position). Two steps are in flight on one lane or two; the device writes asynchronously, also
 * for a while after the death of the worker. A request ends at a token, when its next step is already
 * in flight. After each of K kills the replacement reads the manifest, continues, and may be killed.
 *
 * Invariants: an entry with even sequence and committed positions lists blocks with exactly that
 * content, and no block twice; the tokens received from the first worker are committed; every request
 * ends. NO_ODD passes too: marking entries while they change is not needed, the order of the stores
 * suffices. Mutants, each of which must fail: RETRACT_LATE (an entry is cleared after the launch that
 * may write its blocks), COMMIT_EARLY (at the launch), REPORT_FIRST (tokens reported before the
 * commit), REUSE_EARLY (blocks freed while a step in flight writes them), GROW_FIRST (length of an
 * entry stored before its block), KEEP_DEAD (an entry whose blocks are freed stays).
 */
#ifndef K
#define K 1
#endif
#define SLOTS 2
#define BLOCKS 2
#define LEN 2    /* positions of an entry */
#define NO_CONTENT 7
#define TAG(id, pos) ((id) * LEN + (pos))

/* Survives a worker. */
byte m_id[SLOTS], m_committed[SLOTS], m_end[SLOTS], m_at[4];
bit m_odd[SLOTS];
byte content[BLOCKS];
byte received[3], length[3]; /* the ledger; length of each request, known from its last token */

/* Steps in flight, oldest first; f_done is set by the device. */
byte f_n, f_slot[2], f_id[2], f_pos[2], f_block[2];
bit f_done[2];
bool alive, dead = true, finished;

/* Private to the worker. */
byte id[SLOTS], next[SLOTS], in_flight[SLOTS], held[SLOTS], at[4];
bit used[BLOCKS], due[SLOTS], gone[SLOTS], begun[SLOTS];

#define OVER(r) (received[r] == length[r])
#ifdef NO_ODD
#define BEGIN(s) skip
#define END(s) skip
#else
#define BEGIN(s) m_odd[s] = 1
#define END(s) m_odd[s] = 0
#endif

inline empty_entry(s) { m_id[s] = 0; m_committed[s] = 0; m_end[s] = 0 }

inline clear_due()
{
	k = 0;
	do
	:: k < SLOTS && due[k] -> BEGIN(k); empty_entry(k); END(k); due[k] = 0; k++
	:: k < SLOTS && !due[k] -> k++
	:: k == SLOTS -> k = 0; break
	od
}

/* Frees the blocks of a request; its entry is cleared at the next launch. */
inline release(s)
{
	d_step {
		k = 0;
		do
		:: k < held[s] -> used[at[s * LEN + k]] = 0; k++
		:: else -> break
		od;
		k = 0; id[s] = 0; next[s] = 0; held[s] = 0; gone[s] = 0; begun[s] = 0; due[s] = 1
	}
}

inline launch(s)
{
	p = next[s];
	if
	:: p < held[s] -> b = at[s * LEN + p]
	:: else ->
		if
		:: !used[0] -> b = 0
		:: !used[1] -> b = 1
		fi;
		d_step { used[b] = 1; at[s * LEN + p] = b; held[s]++ }
	fi;
#ifndef RETRACT_LATE
	clear_due();
#endif
	if
	:: !begun[s] -> BEGIN(s);
		empty_entry(s); m_id[s] = id[s]; END(s); begun[s] = 1
	:: else
	fi;
	if
	:: p >= m_end[s] -> BEGIN(s);
#ifdef GROW_FIRST
		m_end[s] = p + 1; END(s); m_at[s * LEN + p] = b
#else
		m_at[s * LEN + p] = b; m_end[s] = p + 1; END(s)
#endif
	:: else
	fi;
#ifdef COMMIT_EARLY
	m_committed[s] = p + 1;
#endif
	d_step {
		f_slot[f_n] = s; f_id[f_n] = id[s]; f_pos[f_n] = p; f_block[f_n] = b; f_done[f_n] = 0;
		f_n++; in_flight[s]++; next[s]++
	};
#ifdef RETRACT_LATE
	clear_due();
#endif
	p = 0; b = 0
}

inline retire()
{
	s = f_slot[0]; r = f_id[0]; p = f_pos[0];
#ifdef REPORT_FIRST
	if :: p == received[r] && !gone[s] && id[s] == r -> received[r]++ :: else fi;
#endif
	if :: id[s] == r -> m_committed[s] = p + 1 :: else fi;
#ifndef REPORT_FIRST
	if :: p == received[r] && !gone[s] && id[s] == r -> received[r]++ :: else fi;
#endif
	d_step {
		in_flight[s]--; f_n--;
		f_slot[0] = f_slot[1]; f_id[0] = f_id[1]; f_pos[0] = f_pos[1];
		f_block[0] = f_block[1]; f_done[0] = f_done[1];
		f_slot[1] = 0; f_id[1] = 0; f_pos[1] = 0; f_block[1] = 0; f_done[1] = 0;
		if :: id[s] == r && OVER(r) -> gone[s] = 1 :: else fi
	};
#ifdef REUSE_EARLY
	if :: gone[s] -> release(s) :: else fi;
#else
	if :: gone[s] && in_flight[s] == 0 -> release(s) :: else fi;
#endif
	s = 0; r = 0; p = 0
}

#define HAS_SLOT(r) (id[0] == r || id[1] == r)
#define WANTS(r) (!OVER(r) && !HAS_SLOT(r))
#define FREE (!used[0] || !used[1])
#define MAY(s) (id[s] && !gone[s] && next[s] < LEN && f_n < 2 && (next[s] < held[s] || FREE))

/* The engine loop; entries without a request are cleared first. */
proctype Worker()
{
	byte s, r, p, b, k;
	{
		clear_due();
		do
		:: OVER(1) && OVER(2) -> finished = true; break
		:: !id[0] && WANTS(1) -> d_step { id[0] = 1; begun[0] = 0 }
		:: !id[0] && WANTS(2) -> d_step { id[0] = 2; begun[0] = 0 }
		:: !id[1] && WANTS(2) -> d_step { id[1] = 2; begun[1] = 0 }
		:: MAY(0) -> launch(0)
		:: MAY(1) -> launch(1)
		:: f_n > 0 && f_done[0] -> retire()
		od
	} unless { !alive }
}

/* A lane executes its steps in order; two slots may be on two lanes. */
active proctype Device()
{
end:	do
	:: atomic { !dead && f_n > 0 && !f_done[0] -> content[f_block[0]] = TAG(f_id[0], f_pos[0]); f_done[0] = 1 }
	:: atomic { !dead && f_n > 1 && !f_done[1] && (f_done[0] || f_slot[0] != f_slot[1]) ->
		content[f_block[1]] = TAG(f_id[1], f_pos[1]); f_done[1] = 1 }
	od
}

/* The replacement: checks the entries, then adopts them. */
inline adopt(s)
{
	assert(m_odd[s] || !m_id[s] || kills != K - 1 || received[m_id[s]] <= m_committed[s]);
	if
	:: !m_odd[s] && m_id[s] && m_committed[s] ->
		r = m_id[s];
		assert(m_committed[s] <= m_end[s] && m_end[s] <= LEN);
		assert(content[m_at[s * LEN]] == TAG(r, 0));
		assert(m_committed[s] < 2 || content[m_at[s * LEN + 1]] == TAG(r, 1));
		k = 0;
		do
		:: k < m_end[s] -> assert(!used[m_at[s * LEN + k]]); used[m_at[s * LEN + k]] = 1;
			at[s * LEN + k] = m_at[s * LEN + k]; k++
		:: else -> break
		od;
		id[s] = r; held[s] = m_end[s]; begun[s] = 1;
		next[s] = (m_committed[s] < received[r] -> m_committed[s] : received[r])
	:: else -> due[s] = 1
	fi
}

/* Frees an adopted entry whose request has ended. */
inline free_ended(s)
{
	if
	:: id[s] && OVER(id[s]) ->
		k = 0;
		do
		:: k < held[s] -> used[at[s * LEN + k]] = 0; k++
		:: else -> break
		od;
		id[s] = 0; next[s] = 0; held[s] = 0; begun[s] = 0;
#ifndef KEEP_DEAD
		due[s] = 1
#endif
	:: else
	fi
}

active proctype Supervisor()
{
	byte kills = K, s, r, k;
	length[1] = 1; length[2] = 2;
	content[0] = NO_CONTENT; content[1] = NO_CONTENT;
	dead = false; alive = true;
	run Worker();
end:	do
	:: atomic { kills > 0 && !finished && alive -> kills--; alive = false }
	:: atomic { !alive && !dead && _nr_pr == 2 -> /* reaped: no process writes any more */
		dead = true;
		d_step {
			s = 0;
			do
			:: s < SLOTS -> id[s] = 0; next[s] = 0; in_flight[s] = 0; held[s] = 0; gone[s] = 0;
				begun[s] = 0; due[s] = 0; s++
			:: else -> break
			od;
			used[0] = 0; used[1] = 0;
			f_n = 0; f_done[0] = 0; f_done[1] = 0;
			adopt(0); adopt(1); free_ended(0); free_ended(1);
			s = 0; r = 0; k = 0
		};
		dead = false; alive = true; run Worker() }
	od
}

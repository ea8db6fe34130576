/* manifest.pml - whatever instant a worker dies at, what its manifest says may be taken over is true.
 *
 * worker/manifest/manifest.c, store by store: requests share slots and blocks (one a position), two steps are out at
 * once, on one lane or two; the device writes behind the worker's back and a while after its death. A request
 * ends where its token says so, when the step behind it is on its way already. After each of K kills the next
 * worker reads the manifest, goes on from there, and may be killed doing so.
 *
 * Held: an even row with something committed lists blocks that hold just that, and no block twice; what the
 * first worker has told is committed; every request ends. NO_ODD passes too: rows are marked while they are
 * edited, and the order of the stores would do alone. Mutants, each of which must fail: RETRACT_LATE (a row is
 * cleared after the launch that may write its blocks), COMMIT_EARLY (at the launch), SAY_FIRST (told, then
 * committed), REUSE_EARLY (blocks are free while a step that writes them is out), GROW_FIRST (a row's length
 * before its entry), KEEP_DEAD (a row whose blocks are given back stays).
 */
#ifndef K
#define K 1
#endif
#define SLOTS 2
#define BLOCKS 2
#define LEN 2    /* positions of a row */
#define NOTHING 7
#define TAG(id, pos) ((id) * LEN + (pos))

/* What outlives a worker. */
byte m_id[SLOTS], m_committed[SLOTS], m_end[SLOTS], m_at[4];
bit m_odd[SLOTS];
byte content[BLOCKS];
byte said[3], length[3]; /* the ledger; where each request ends, which its last token tells */

/* Steps that are out, oldest first; what the device has done is true when the worker looks. */
byte f_n, f_slot[2], f_id[2], f_pos[2], f_block[2];
bit f_done[2];
bool alive, dead = true, finished;

/* The worker's own. */
byte id[SLOTS], next[SLOTS], flying[SLOTS], held[SLOTS], at[4];
bit used[BLOCKS], due[SLOTS], gone[SLOTS], begun[SLOTS];

#define OVER(r) (said[r] == length[r])
#ifdef NO_ODD
#define BEGIN(s) skip
#define END(s) skip
#else
#define BEGIN(s) m_odd[s] = 1
#define END(s) m_odd[s] = 0
#endif

inline empty_row(s) { m_id[s] = 0; m_committed[s] = 0; m_end[s] = 0 }

inline clear_due()
{
	k = 0;
	do
	:: k < SLOTS && due[k] -> BEGIN(k); empty_row(k); END(k); due[k] = 0; k++
	:: k < SLOTS && !due[k] -> k++
	:: k == SLOTS -> k = 0; break
	od
}

/* Free what a request held: its row goes out with the next launch. */
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
		empty_row(s); m_id[s] = id[s]; END(s); begun[s] = 1
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
		f_n++; flying[s]++; next[s]++
	};
#ifdef RETRACT_LATE
	clear_due();
#endif
	p = 0; b = 0
}

inline retire()
{
	s = f_slot[0]; r = f_id[0]; p = f_pos[0];
#ifdef SAY_FIRST
	if :: p == said[r] && !gone[s] && id[s] == r -> said[r]++ :: else fi;
#endif
	if :: id[s] == r -> m_committed[s] = p + 1 :: else fi;
#ifndef SAY_FIRST
	if :: p == said[r] && !gone[s] && id[s] == r -> said[r]++ :: else fi;
#endif
	d_step {
		flying[s]--; f_n--;
		f_slot[0] = f_slot[1]; f_id[0] = f_id[1]; f_pos[0] = f_pos[1];
		f_block[0] = f_block[1]; f_done[0] = f_done[1];
		f_slot[1] = 0; f_id[1] = 0; f_pos[1] = 0; f_block[1] = 0; f_done[1] = 0;
		if :: id[s] == r && OVER(r) -> gone[s] = 1 :: else fi
	};
#ifdef REUSE_EARLY
	if :: gone[s] -> release(s) :: else fi;
#else
	if :: gone[s] && flying[s] == 0 -> release(s) :: else fi;
#endif
	s = 0; r = 0; p = 0
}

#define SEATED(r) (id[0] == r || id[1] == r)
#define WANTS(r) (!OVER(r) && !SEATED(r))
#define FREE (!used[0] || !used[1])
#define MAY(s) (id[s] && !gone[s] && next[s] < LEN && f_n < 2 && (next[s] < held[s] || FREE))

/* The engine's loop; rows that nobody comes for go first. */
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

/* A lane does its steps in order; two slots may be on two lanes. */
active proctype Device()
{
end:	do
	:: atomic { !dead && f_n > 0 && !f_done[0] -> content[f_block[0]] = TAG(f_id[0], f_pos[0]); f_done[0] = 1 }
	:: atomic { !dead && f_n > 1 && !f_done[1] && (f_done[0] || f_slot[0] != f_slot[1]) ->
		content[f_block[1]] = TAG(f_id[1], f_pos[1]); f_done[1] = 1 }
	od
}

/* Whoever takes over: the rows are held to what they say, then become the next worker's. */
inline adopt(s)
{
	assert(m_odd[s] || !m_id[s] || kills != K - 1 || said[m_id[s]] <= m_committed[s]);
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
		next[s] = (m_committed[s] < said[r] -> m_committed[s] : said[r])
	:: else -> due[s] = 1
	fi
}

/* One that nobody wants any more is given back. */
inline unkeep(s)
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

active proctype Life()
{
	byte kills = K, s, r, k;
	length[1] = 1; length[2] = 2;
	content[0] = NOTHING; content[1] = NOTHING;
	dead = false; alive = true;
	run Worker();
end:	do
	:: atomic { kills > 0 && !finished && alive -> kills--; alive = false }
	:: atomic { !alive && !dead && _nr_pr == 2 -> /* reaped: nothing writes any more */
		dead = true;
		d_step {
			s = 0;
			do
			:: s < SLOTS -> id[s] = 0; next[s] = 0; flying[s] = 0; held[s] = 0; gone[s] = 0;
				begun[s] = 0; due[s] = 0; s++
			:: else -> break
			od;
			used[0] = 0; used[1] = 0;
			f_n = 0; f_done[0] = 0; f_done[1] = 0;
			adopt(0); adopt(1); unkeep(0); unkeep(1);
			s = 0; r = 0; k = 0
		};
		dead = false; alive = true; run Worker() }
	od
}

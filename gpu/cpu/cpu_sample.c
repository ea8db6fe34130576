/* cpu_sample.c - the op sample (gpu.h): from a row of logits to a token and log-probabilities.
 *
 * The order follows the processors and warpers of transformers: log-probabilities of beam rows;
 * repetition, presence and frequency penalty, logit bias, suppressed and disallowed tokens,
 * forced token; log-probabilities of other rows; then temperature, top_k, top_p, min_p and the
 * draw. All passes work in place on the row of logits; nothing is sorted. A "cut" is a limit
 * below which values are not drawn (top_k, top_p). It is found by radix: a histogram of the
 * highest bits of the values, then of the next bits of the values in the bucket that contains
 * the limit.
 *
 * A draw uses integers: weights are rounded down to multiples of a unit, so that sums are exact
 * in any order, and every device draws the same token from the same logits. A weight below one
 * unit is never drawn. The unit is 2^-30 of the best weight of a block (BLOCK consecutive
 * tokens) or, with a cut, 2^-42 of the best weight of the row.
 *
 * Differs from transformers: at the edge of top_k exactly k tokens stay, of equal logits the
 * lowest ids; transformers keeps all of them. A NaN is never chosen. */
#include "gpu/cpu/cpu_collective.h"
#include "gpu/cpu/cpu_math.h"
#include "gpu/cpu/cpu_ops.h"
#include "gpu/philox.h"

#include <float.h>

/* BUCKETS: entries of a histogram. BLOCK: weights are added in blocks of tokens, each relative to
 * its own best weight, so that a device that reads the row once, block by block, gets the same
 * sums. With a large vocabulary blocks are longer, so that there are at most MAX_BLOCKS. */
enum { BUCKETS = 2048, BLOCK = 1024, MAX_BLOCKS = 1024 };

struct sample_args {
    struct lane *lane;
    struct sample s;
};

struct scratch {
    uint64_t mass[BUCKETS];
    uint32_t count[BUCKETS];
    struct top heap[1024];
    uint64_t block[MAX_BLOCKS];
    float weight[8];
};
_Static_assert(sizeof(struct scratch) <= CPU_SCRATCH, "fits a thread's scratch");

/* Returns an integer that orders floats: larger floats have larger keys. */
static uint32_t
key_of(float f)
{
    uint32_t u = bits_of_float(f);

    return u & 0x80000000 ? ~u : u | 0x80000000;
}

/* A cut: keeps the values whose key is above `key`, and the first n_ties with that key. */
struct cut {
    uint32_t key, n_ties;
};

/* Returns the cut that keeps the k best of x[n], n > k. */
static struct cut
cut_count(const float *x, uint32_t n, uint32_t k, struct scratch *scratch)
{
    static const uint32_t shift[3] = { 21, 10, 0 };
    uint32_t prefix = 0, known = 0; /* bits of the key decided so far */

    for (int level = 0; level < 3; level++) {
        uint32_t mask = level == 2 ? 1023 : BUCKETS - 1, b = mask;

        memset(scratch->count, 0, sizeof scratch->count);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t key = key_of(x[i]);

            if ((key & known) == prefix) scratch->count[key >> shift[level] & mask]++;
        }
        while (scratch->count[b] < k) k -= scratch->count[b--];
        prefix |= b << shift[level];
        known |= mask << shift[level];
    }
    return (struct cut){ prefix, k };
}

/* Returns true if the cut keeps x; call it in ascending order of ids, because it counts ties. */
static inline bool
stays(struct cut *c, float x)
{
    uint32_t key = key_of(x);

    if (key > c->key) return true;
    if (key < c->key || c->n_ties == 0) return false;
    c->n_ties--;
    return true;
}

/* The weight of a token with logit x is 2^((x - best) * rate). */
struct heat {
    float best, rate; /* rate: log2(e) / temperature */
};

/* Returns the weights (struct heat) of eight logits; a single logit gets the same bits. The error
 * is at most 1.6e-7, and the best weight is exactly 1. Cheaper than v8_exp(). */
ALWAYS v8
weigh(struct heat h, v8 x)
{
    v8 y = v8_mul(v8_sub(x, v8_set(h.best)), v8_set(h.rate)), shifted, f, p;
    n8 n;

    y = v8_max(y, v8_set(-126.0f)); /* max() also replaces NaN by -126 */
    shifted = v8_add(y, v8_set(MATH_ROUND));
    f = v8_sub(y, v8_sub(shifted, v8_set(MATH_ROUND)));
    p = v8_set(0x1.5bba18p-10f);
    p = v8_fma(p, f, v8_set(0x1.3cea88p-7f));
    p = v8_fma(p, f, v8_set(0x1.c6b752p-5f));
    p = v8_fma(p, f, v8_set(0x1.ebf9bcp-3f));
    p = v8_fma(p, f, v8_set(0x1.62e42ap-1f));
    p = v8_fma(p, f, v8_set(1.0f));
    n = n8_sub(n8_of_bits(shifted), n8_of_bits(v8_set(MATH_ROUND)));
    return v8_mul(p, v8_of_bits(n8_shl(n8_add(n, n8_set(127)), 23)));
}

static inline uint64_t
units(float weight, float a_unit)
{
    return (uint64_t)(int64_t)(weight * a_unit);
}

/* Which logits of a row may be drawn and how they are weighed. Without a cut (cuts false), weights
 * are relative to the best of each block. */
struct lot {
    struct heat heat;
    struct cut cut;
    float min_p;
    bool cuts;
};

/* The scale of the weights in a block: weight * unit, rounded down, is in units of the block. A sum
 * of such integers, times factor, is in units of the row. */
struct scale {
    struct heat heat;
    float unit;
    double factor;
};

ALWAYS struct scale
scale_of(const struct lot *l, const float *x, uint32_t n)
{
    struct heat h = l->heat;
    v8 best = v8_set(-INFINITY);
    float part[8];

    if (l->cuts) return (struct scale){ h, 0x1p42f, 1 };
    for (uint32_t at = 0; at + 8 <= n; at += 8) best = v8_max(best, v8_load(x + at));
    v8_store(part, best);
    h.best = part[0];
    for (uint32_t i = 1; i < 8; i++) h.best = MAX(h.best, part[i]);
    for (uint32_t i = n - n % 8; i < n; i++) h.best = MAX(h.best, x[i]);
    return (struct scale){ h, 0x1p30f, (double)v8_first(weigh(l->heat, v8_set(h.best))) * 0x1p12 };
}

/* Returns the weights, in units of the block, of eight values from `at` on; 0 for cut values. */
ALWAYS void
weigh_eight(const struct lot *l, const struct scale *s, struct cut *c, const float *x, uint32_t at,
            uint32_t n, uint64_t w[8])
{
    uint32_t width = MIN(n - at, 8u);
    float f[8];

    v8_store(f, weigh(s->heat, v8_at(x, at, width)));
    for (uint32_t i = 0; i < 8; i++)
        w[i] = i < width && (!l->cuts || (stays(c, x[at + i]) && f[i] >= l->min_p))
                   ? units(f[i], s->unit)
                   : 0;
}

/* Returns the number of tokens per block for a vocabulary of n. */
static inline uint32_t
block_of(uint32_t n)
{
    return MAX((uint32_t)BLOCK, ROUND_UP(CEIL_DIV(n, (uint32_t)MAX_BLOCKS), 8u));
}

/* Stores the weight of each block, in units of the row, in scratch->block; returns their sum. */
ALWAYS uint64_t
weigh_blocks(const struct lot *l, const float *x, uint32_t n, struct scratch *scratch)
{
    uint32_t size = block_of(n);
    struct cut c = l->cut;
    uint64_t total = 0, w[8];

    for (uint32_t from = 0, b = 0; from < n; from += size, b++) {
        uint32_t end = MIN(n, from + size);
        struct scale s = scale_of(l, x + from, end - from);
        uint64_t sum = 0;

        scratch->block[b] = 0;
        if (s.heat.best == -INFINITY) continue; /* all tokens of the block are suppressed */
        for (uint32_t at = from; at < end; at += 8) {
            weigh_eight(l, &s, &c, x, at, end, w);
            for (uint32_t i = 0; i < 8; i++) sum += w[i];
        }
        scratch->block[b] = (uint64_t)((double)sum * s.factor);
        total += scratch->block[b];
    }
    return total;
}

/* Adds masses from the highest bucket down. Returns the bucket in which the sum reaches *left, else
 * the last non-empty bucket. Sets *left to the mass to take from that bucket. */
static uint32_t
fill_bucket(const struct scratch *scratch, uint32_t last, uint64_t *left)
{
    uint32_t lowest = 0;

    for (uint32_t b = last + 1; b-- > 0;) {
        if (!scratch->count[b]) continue;
        lowest = b;
        if (scratch->mass[b] >= *left) return b;
        *left -= scratch->mass[b];
    }
    *left = scratch->mass[lowest];
    return lowest;
}

/* Returns the cut of top_p, as in transformers: of the values that k (the cut of top_k) keeps, the
 * fewest best ones with `share` of their weight. total: that weight; 0: computed here. */
ALWAYS struct cut
cut_mass(const float *x, uint32_t n, struct cut k, struct heat h, double share, uint64_t total,
         struct scratch *scratch)
{
    static const uint32_t shift[3] = { 21, 10, 0 };
    uint32_t prefix = 0, known = 0, ties = 0;
    uint64_t left = 0, each = 0;

    for (int level = 0; level < 3; level++) {
        uint32_t mask = level == 2 ? 1023 : BUCKETS - 1, b;
        struct cut inner = k;

        memset(scratch->mass, 0, sizeof scratch->mass);
        memset(scratch->count, 0, sizeof scratch->count);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t key = key_of(x[i]);
            float w;

            /* Level 0 weighs all values, eight at a time; other levels weigh few, one at a time. */
            if (level == 0 && i % 8 == 0)
                v8_store(scratch->weight, weigh(h, v8_at(x, i, MIN(n - i, 8u))));
            if (!stays(&inner, x[i]) || (key & known) != prefix) continue;
            w = level == 0 ? scratch->weight[i % 8] : v8_first(weigh(h, v8_set(x[i])));
            scratch->mass[key >> shift[level] & mask] += units(w, 0x1p42f);
            scratch->count[key >> shift[level] & mask]++;
        }
        if (level == 0) {
            for (uint32_t i = 0; !total && i < BUCKETS; i++) left += scratch->mass[i];
            left = (uint64_t)(share * (double)(total ? total : left));
        }
        b = fill_bucket(scratch, mask, &left);
        ties = scratch->count[b];
        each = ties ? scratch->mass[b] / ties : 0;
        prefix |= b << shift[level];
        known |= mask << shift[level];
    }
    /* Values with the key of the limit have equal weights: keeps as many as needed, at least 1. */
    return (struct cut){ prefix, each ? MAX((uint32_t)CEIL_DIV(left, each), 1u) : 1 };
}

/* Returns the tokens of the row's slot, or NULL. */
static const int32_t *
history_of(const struct sample *s, const struct sample_row *r)
{
    if (r->slot == SLOT_NONE || !s->history.token) return NULL;
    return s->history.token + (size_t)r->slot * s->history.stride;
}

/* Subtracts presence and frequency penalties. Counts occurrences for BUCKETS tokens of the
 * vocabulary at a time. */
static void
penalise_generated(const struct sample *s, const struct sample_row *r, float *x, uint32_t n,
                   uint32_t *count)
{
    const int32_t *token = history_of(s, r);

    if ((r->presence_penalty == 0 && r->frequency_penalty == 0) || !token) return;
    for (uint32_t first = 0; first < n && r->first_new < r->position; first += BUCKETS) {
        uint32_t end = MIN(n - first, (uint32_t)BUCKETS);

        memset(count, 0, end * sizeof *count);
        for (uint32_t i = r->first_new; i < r->position; i++)
            if ((uint32_t)token[i] - first < end) count[(uint32_t)token[i] - first]++;
        for (uint32_t i = 0; i < end; i++)
            if (count[i])
                x[first + i] -= r->presence_penalty + (float)count[i] * r->frequency_penalty;
    }
}

/* Forbids tokens that would repeat an n-gram, as no_repeat_ngram_size of transformers. */
static void
forbid_repeats(const struct sample *s, const struct sample_row *r, float *x, uint32_t n)
{
    const int32_t *token = history_of(s, r);
    uint32_t size = r->no_repeat_ngram;

    for (uint32_t i = 0; size && token && i + size <= r->position; i++) {
        uint32_t id = (uint32_t)token[i + size - 1];

        if (id < n &&
            !memcmp(token + i, token + r->position - (size - 1), (size - 1) * sizeof *token))
            x[id] = -INFINITY;
    }
}

static void
penalise(const struct sample *s, const struct sample_row *r, float *x, uint32_t n)
{
    uint32_t words = s->history.seen_words;
    const uint32_t *seen;

    if (r->repetition == 1 || r->repetition == 0 || r->slot == SLOT_NONE || !s->history.seen)
        return;
    seen = s->history.seen + (size_t)r->slot * words;
    for (uint32_t w = 0; w < words; w++)
        for (uint32_t bits = seen[w]; bits; bits &= bits - 1) {
            uint32_t i = 32 * w + (uint32_t)__builtin_ctz(bits);

            if (i < n) x[i] = x[i] > 0 ? x[i] / r->repetition : x[i] * r->repetition;
        }
}

static void
logit_bias(const struct sample *s, const struct sample_row *r, float *x, uint32_t n)
{
    for (uint32_t i = 0; i < r->n_logit_bias; i++) {
        const struct logit_bias *a = &s->logit_bias[r->first_logit_bias + i];

        if ((uint32_t)a->id < n) x[a->id] += a->add;
    }
}

static void
forbid(const struct sample *s, const struct sample_row *r, float *x, uint32_t n)
{
    const uint32_t *bits;

    for (uint32_t i = 0; i < r->n_suppressed; i++) {
        uint32_t id = (uint32_t)s->suppressed[r->first_suppressed + i];

        if (id < n) x[id] = -INFINITY;
    }
    if (!s->allowed || r->allowed == ALLOW_ALL) return;
    bits = s->allowed + (size_t)r->allowed * s->allowed_words;
    for (uint32_t i = 0; i < n; i++)
        if (i / 32 >= s->allowed_words || !(bits[i / 32] >> i % 32 & 1)) x[i] = -INFINITY;
}

/* Applies penalty, bias, suppression and force to a row; then it has no NaN and no +inf. Returns
 * the id with the best logit, -1 if all are -inf. */
static int32_t
process(const struct sample *s, const struct sample_row *r, float *x, uint32_t n,
        struct scratch *scratch)
{
    int32_t best = -1;

    penalise(s, r, x, n);
    penalise_generated(s, r, x, n, scratch->count);
    logit_bias(s, r, x, n);
    forbid(s, r, x, n);
    forbid_repeats(s, r, x, n);
    if (r->force >= 0 && r->target < 0) {
        for (uint32_t i = 0; i < n; i++) x[i] = -INFINITY;
        if ((uint32_t)r->force < n) x[r->force] = 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        x[i] = x[i] == x[i] ? x[i] + 0.0f : -INFINITY; /* -0 becomes 0, so that both have one key */
        if (x[i] > FLT_MAX) x[i] = FLT_MAX;
        if (x[i] > -INFINITY && (best < 0 || x[i] > x[best])) best = (int32_t)i;
    }
    return best;
}

/* Returns log(sum(exp(x - max))), by blocks, because a long sequence of additions loses digits. */
ALWAYS float
log_sum(const float *x, uint32_t n, float max)
{
    v8 m = v8_set(max);
    double total = 0;

    for (uint32_t from = 0; from < n; from += BLOCK) {
        uint32_t end = MIN(n, from + BLOCK), at = from;
        v8 sum[2] = { v8_set(0), v8_set(0) };

        for (; at + 8 <= end; at += 8)
            sum[at / 8 % 2] = v8_add(sum[at / 8 % 2], v8_exp(v8_sub(v8_load(x + at), m)));
        if (at < end) { /* the padding must add 0, not exp(0 - max) */
            float part[8] = { 0 };

            v8_store_n(part, v8_exp(v8_sub(v8_load_n(x + at, end - at), m)), end - at);
            sum[at / 8 % 2] = v8_add(sum[at / 8 % 2], v8_load(part));
        }
        total += (double)v8_sum(v8_add(sum[0], sum[1]));
    }
    return log_1((float)total);
}

/* Replaces logits by their log-probabilities. */
ALWAYS void
normalise(float *x, uint32_t n)
{
    float max = -INFINITY, total;

    for (uint32_t i = 0; i < n; i++) {
        x[i] = x[i] == x[i] ? MIN(x[i], FLT_MAX) : -INFINITY;
        max = MAX(max, x[i]);
    }
    if (max == -INFINITY) return;
    total = log_sum(x, n, max);
    for (uint32_t i = 0; i < n; i++) x[i] = x[i] - max - total;
}

/* Returns true if the list of the best tokens has a behind b. */
static inline bool
worse(struct top a, struct top b)
{
    return a.logprob < b.logprob || (a.logprob == b.logprob && a.id > b.id);
}

/* Puts e at index `at` of heap h of k entries (worst first) and moves it down to its place. */
static void
sift(struct top *h, uint32_t k, uint32_t at, struct top e)
{
    for (uint32_t child; (child = 2 * at + 1) < k; at = child) {
        if (child + 1 < k && worse(h[child + 1], h[child])) child++;
        if (!worse(h[child], e)) break;
        h[at] = h[child];
    }
    h[at] = e;
}

static void
find_top(const float *x, uint32_t n, uint32_t k, float max, float log_total, struct top *out,
         struct scratch *scratch)
{
    struct top *h = scratch->heap;
    uint32_t have = MIN(k, n);

    for (uint32_t i = 0; i < have; i++) h[i] = (struct top){ (int32_t)i, x[i] };
    for (uint32_t i = have / 2; i-- > 0;) sift(h, have, i, h[i]);
    for (uint32_t i = have; have && i < n; i++)
        if (x[i] > h[0].logprob) sift(h, have, 0, (struct top){ (int32_t)i, x[i] });
    for (uint32_t left = have; left > 0; left--) {
        out[left - 1] = (struct top){ h[0].id, h[0].logprob - max - log_total };
        sift(h, left - 1, 0, h[left - 1]);
    }
    for (uint32_t i = have; i < k; i++) out[i] = (struct top){ -1, -INFINITY };
}

/* Returns a uniformly distributed integer below total. */
static uint64_t
noise(const struct sample_row *r, uint64_t total)
{
    uint32_t counter[4] = { r->output, r->position, 0, 0 }, w[4];

    philox(r->seed, counter, w);
    return (uint64_t)((unsigned __int128)((uint64_t)w[0] << 32 | w[1]) * total >> 64);
}

/* Draws a token: returns the first id, in ascending order, at which the sum of weights exceeds a
 * random number below the total weight. */
ALWAYS int32_t
draw(const struct sample_row *r, const float *x, uint32_t n, int32_t best, struct scratch *scratch)
{
    struct lot l = {
        { x[best], MIN(1.44269504f / r->temperature, FLT_MAX) }, { 0, UINT32_MAX }, r->min_p, false
    };
    uint32_t size = block_of(n), b = 0;
    uint64_t total, left, sum = 0, w[8];
    struct scale s;
    struct cut c;

    if (r->top_k && r->top_k < n) l.cut = cut_count(x, n, r->top_k, scratch);
    if (r->top_p < 1) {
        total = l.cut.key ? 0 : weigh_blocks(&l, x, n, scratch);
        l.cut = cut_mass(x, n, l.cut, l.heat, MAX(r->top_p, 0.0f), total, scratch);
    }
    l.cuts = l.cut.key || l.min_p > 0;
    total = weigh_blocks(&l, x, n, scratch);
    left = noise(r, total);
    for (; scratch->block[b] <= left; b++) left -= scratch->block[b];
    c = l.cut; /* stays() counts ties, so c must first pass the tokens of earlier blocks */
    for (uint32_t i = 0; i < b * size; i++) stays(&c, x[i]);
    n = MIN(n, (b + 1) * size);
    s = scale_of(&l, x + b * size, n - b * size);
    for (uint32_t at = b * size; at < n; at += 8) {
        weigh_eight(&l, &s, &c, x, at, n, w);
        for (uint32_t i = 0; i < 8; i++) {
            sum += w[i];
            if ((uint64_t)((double)sum * s.factor) > left) return (int32_t)(at + i);
        }
    }
    return best; /* not reached, because the sum of block b exceeds `left` */
}

ALWAYS void
sample_one(const struct sample_args *a, uint32_t i, struct scratch *scratch)
{
    const struct sample *s = &a->s;
    const struct sample_row *r = &s->row[i];
    float *x = row_of(&s->logits, i), max, log_total = 0;
    uint32_t n = s->logits.dim[1];
    int32_t best, id = r->target;

    check(r->target < (int32_t)n);
    if (r->beam) normalise(x, n);
    best = process(s, r, x, n, scratch);
    if (best < 0) {
        if (r->slot != SLOT_NONE || r->target >= 0) cpu_lane_fail(a->lane);
        best = 0;
    }
    max = r->beam ? 0 : x[best];
    if (!r->beam && (r->want_logprob || r->n_top || r->target >= 0)) log_total = log_sum(x, n, max);
    if (r->n_top)
        find_top(x, n, MIN(r->n_top, (uint32_t)ARRAY_LEN(scratch->heap)), max, log_total,
                 s->top + r->first_top, scratch);
    if (r->target < 0) {
        id = r->temperature > 0 && x[best] > -INFINITY ? draw(r, x, n, best, scratch) : best;
        if (r->slot != SLOT_NONE && s->last) s->last[r->slot] = id;
    }
    if (s->token) s->token[i] = id;
    if (s->logprob) s->logprob[i] = x[id] - max - log_total;
}

CPU_LOOP(sample)
{
    const struct sample_args *a = args;

    for (CPU_SHARE(i, a->s.n)) sample_one(a, i, scratch);
}

#ifdef CPU_OPS

int
cpu_sample(struct lane *l, const struct sample *s)
{
    struct sample_args a = { l, *s };

    if (!s->parts || l->gpu->ranks == 1) return cpu_queue(l, run_sample, &a, sizeof a, s->n);
    TRY(cpu_all_gather(l, s->logits, gpu_own_columns(l->gpu, s->logits)));
    TRY(cpu_queue(l, run_sample, &a, sizeof a, s->n));
    return cpu_all_same(l, s);
}

#endif

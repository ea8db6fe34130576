/* rope_table.c - implements rope_table.h: frequencies of each rope type, the table by threads. */
#include "worker/model/rope_table.h"

#include <math.h>
#include <pthread.h>
#include <unistd.h>

enum { MAX_PAIRS = CFG_MAX_HEAD_DIM / 2 };
/* Threads compute a table, at least SHARE positions each, because 8 million sines take 150 ms on
 * one thread, which would delay the first token of a restarted worker. */
enum { MOST_SHARES = 16, SHARE = 2048 };

uint32_t
rope_dim(const struct rope_params *p, uint32_t head_dim)
{
    if (p->type == ROPE_PROPORTIONAL) return head_dim;
    return (uint32_t)(head_dim * p->partial) / 2 * 2;
}

/* Returns theta^(-2i / dim); the exponent, the power and its inverse are each rounded to fp32. */
static float
frequency(double theta, uint32_t i, uint32_t dim)
{
    float exponent = (float)(2 * i) / (float)dim;

    return 1.0f / (float)pow(theta, exponent);
}

/* Returns frequency f as Llama 3 stretches it: waves longer than original_max / low are stretched
 * by the factor, waves shorter than original_max / high are unchanged, others are interpolated. */
static float
llama3_frequency(const struct rope_params *p, float f)
{
    float wave = (float)(2 * M_PI) / f;
    float smooth;

    if (wave < p->original_max / p->high) return f;
    if (wave > p->original_max / p->low) return f / (float)p->factor;
    smooth = ((float)p->original_max / wave - (float)p->low) / (float)(p->high - p->low);
    return (1 - smooth) * f / (float)p->factor + smooth * f;
}

/* Returns the (fractional) pair of dims whose wave has r periods in original_max positions. */
static double
yarn_dim(const struct rope_params *p, uint32_t dim, double r)
{
    return dim * log(p->original_max / (r * 2 * M_PI)) / (2 * log(p->theta));
}

static void
yarn_frequencies(const struct rope_params *p, uint32_t dim, float *inv_freq)
{
    double first = yarn_dim(p, dim, p->beta_fast), last = yarn_dim(p, dim, p->beta_slow);

    if (p->truncate) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0);
    last = fmin(last, dim - 1);
    if (first == last) last += 0.001; /* avoids a division by zero */
    for (uint32_t i = 0; i < dim / 2; i++) {
        float f = frequency(p->theta, i, dim);
        float ramp = (float)fmin(fmax((i - first) / (last - first), 0), 1);

        inv_freq[i] = f / (float)p->factor * ramp + f * (1 - ramp);
    }
}

/* transformers selects the divisors by the length of a sequence. lagan, like vLLM, selects them by
 * the model's length, so that keys in the cache stay valid while a sequence grows. */
static float
longrope_frequencies(const struct rope_params *p, uint32_t dim, uint32_t n_positions,
                     float *inv_freq)
{
    const float *divisor = p->divisor[n_positions > p->original_max ? ROPE_LONG : ROPE_SHORT];

    check(p->n_divisors == dim / 2);
    for (uint32_t i = 0; i < dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)dim;

        inv_freq[i] = 1.0f / (divisor[i] * (float)pow(p->theta, exponent));
    }
    if (!isnan(p->attention_factor)) return (float)p->attention_factor;
    return p->factor > 1 ? (float)sqrt(1 + log(p->factor) / log(p->original_max)) : 1;
}

float
rope_frequencies(const struct rope_params *p, uint32_t head_dim, uint32_t n_positions,
                 float *inv_freq)
{
    uint32_t dim = rope_dim(p, head_dim), turning = dim / 2;

    check(head_dim <= CFG_MAX_HEAD_DIM);
    if (p->type == ROPE_YARN) {
        yarn_frequencies(p, dim, inv_freq);
        if (!isnan(p->attention_factor)) return (float)p->attention_factor;
        return p->factor > 1 ? (float)(0.1 * log(p->factor) + 1) : 1;
    }
    if (p->type == ROPE_LONGROPE) return longrope_frequencies(p, dim, n_positions, inv_freq);
    if (p->type == ROPE_PROPORTIONAL) turning = (uint32_t)(p->partial * head_dim / 2);
    for (uint32_t i = 0; i < dim / 2; i++) {
        float f = i < turning ? frequency(p->theta, i, dim) : 0;

        if (p->type == ROPE_LLAMA3) f = llama3_frequency(p, f);
        if (p->type == ROPE_LINEAR || p->type == ROPE_PROPORTIONAL) f /= (float)p->factor;
        inv_freq[i] = f;
    }
    return 1;
}

/* The share of one thread: positions [first, end) of a table. */
struct share {
    const float *inv_freq;
    float factor, *out;
    uint32_t half, first, end;
};

static void *
fill_share(void *arg)
{
    const struct share *s = arg;

    for (uint32_t pos = s->first; pos < s->end; pos++) {
        float *row = s->out + (size_t)2 * s->half * pos;

        for (uint32_t i = 0; i < s->half; i++) {
            float angle = (float)pos * s->inv_freq[i];

            row[i] = (float)cos(angle) * s->factor;
            row[s->half + i] = (float)sin(angle) * s->factor;
        }
    }
    return NULL;
}

void
rope_table(const struct rope_params *p, uint32_t head_dim, uint32_t n_positions, float *out)
{
    float inv_freq[MAX_PAIRS], factor = rope_frequencies(p, head_dim, n_positions, inv_freq);
    uint32_t cores = (uint32_t)MIN(MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L), (long)MOST_SHARES);
    uint32_t n = MIN(cores, 1 + n_positions / SHARE);
    struct share share[MOST_SHARES];
    pthread_t thread[MOST_SHARES];
    bool apart[MOST_SHARES];

    for (uint32_t i = 0; i < n; i++) {
        share[i] = (struct share){
            .inv_freq = inv_freq,
            .factor = factor,
            .out = out,
            .half = rope_dim(p, head_dim) / 2,
            .first = (uint32_t)((uint64_t)n_positions * i / n),
            .end = (uint32_t)((uint64_t)n_positions * (i + 1) / n),
        };
        apart[i] = i + 1 < n && !pthread_create(&thread[i], NULL, fill_share, &share[i]);
        if (!apart[i]) fill_share(&share[i]);
    }
    for (uint32_t i = 0; i < n; i++)
        if (apart[i]) pthread_join(thread[i], NULL);
}

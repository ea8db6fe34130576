/* rope_table.c - see rope_table.h. */
#include "worker/model/rope_table.h"

#include <math.h>

enum { MAX_PAIRS = CFG_MAX_HEAD_DIM / 2 };

uint32_t
rope_dim(const struct rope_params *p, uint32_t head_dim)
{
    if (p->type == ROPE_PROPORTIONAL) return head_dim;
    return (uint32_t)(head_dim * p->partial) / 2 * 2;
}

/* theta^(-2i / dim): the exponent, the power and its inverse are each rounded to fp32. */
static float
frequency(double theta, uint32_t i, uint32_t dim)
{
    float exponent = (float)(2 * i) / (float)dim;

    return 1.0f / (float)pow(theta, exponent);
}

/* Long waves are stretched by the factor, short ones left, those between blended. */
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

/* The dim whose wave turns r times within the original length. */
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
    if (first == last) last += 0.001; /* a step instead of a division by zero */
    for (uint32_t i = 0; i < dim / 2; i++) {
        float f = frequency(p->theta, i, dim);
        float ramp = (float)fmin(fmax((i - first) / (last - first), 0), 1);

        inv_freq[i] = f / (float)p->factor * ramp + f * (1 - ramp);
    }
}

float
rope_frequencies(const struct rope_params *p, uint32_t head_dim, float *inv_freq)
{
    uint32_t dim = rope_dim(p, head_dim), turning = dim / 2;

    check(head_dim <= CFG_MAX_HEAD_DIM);
    if (p->type == ROPE_YARN) {
        yarn_frequencies(p, dim, inv_freq);
        if (!isnan(p->attention_factor)) return (float)p->attention_factor;
        return p->factor > 1 ? (float)(0.1 * log(p->factor) + 1) : 1;
    }
    if (p->type == ROPE_PROPORTIONAL) turning = (uint32_t)(p->partial * head_dim / 2);
    for (uint32_t i = 0; i < dim / 2; i++) {
        float f = i < turning ? frequency(p->theta, i, dim) : 0;

        if (p->type == ROPE_LLAMA3) f = llama3_frequency(p, f);
        if (p->type == ROPE_LINEAR || p->type == ROPE_PROPORTIONAL) f /= (float)p->factor;
        inv_freq[i] = f;
    }
    return 1;
}

void
rope_table(const struct rope_params *p, uint32_t head_dim, uint32_t n_positions, float *out)
{
    uint32_t half = rope_dim(p, head_dim) / 2;
    float inv_freq[MAX_PAIRS], factor = rope_frequencies(p, head_dim, inv_freq);

    for (uint32_t pos = 0; pos < n_positions; pos++, out += (size_t)2 * half)
        for (uint32_t i = 0; i < half; i++) {
            float angle = (float)pos * inv_freq[i];

            out[i] = (float)cos(angle) * factor;
            out[half + i] = (float)sin(angle) * factor;
        }
}

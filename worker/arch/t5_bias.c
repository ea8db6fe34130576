/* t5_bias.c - T5's position biases: the bucket of a distance, the table of biases (t5_bias.h).
 *
 * An encoder has as many buckets for keys before the query as for keys after it. The first half of
 * these buckets hold one distance each; the sizes of the others grow logarithmically up to
 * max_distance. The order of float operations follows T5Attention._relative_position_bucket,
 * because the bounds of buckets depend on rounding. */
#include "worker/arch/t5_bias.h"

#include <math.h>

uint32_t
t5_bucket(struct t5_buckets b, int32_t distance)
{
    uint32_t n = b.both ? b.n / 2 : b.n, exact = n / 2, base = 0, d;

    if (b.both) {
        base = distance > 0 ? n : 0;
        d = (uint32_t)(distance < 0 ? -distance : distance);
    } else {
        d = distance < 0 ? (uint32_t)-distance : 0;
    }
    if (d >= exact) {
        float steps = logf((float)d / (float)exact) /
                      (float)log((double)b.max_distance / (double)exact) * (float)(n - exact);

        d = MIN(exact + (uint32_t)steps, n - 1);
    }
    return base + d;
}

uint32_t
t5_reach(struct t5_buckets b)
{
    uint32_t last = (b.both ? b.n / 2 : b.n) - 1, d = 0;

    while (t5_bucket(b, -(int32_t)d) < last) d++;
    return d;
}

void
t5_bias(float *out, const float *weight, uint32_t n_heads, struct t5_buckets b)
{
    int32_t reach = (int32_t)t5_reach(b);

    for (uint32_t h = 0; h < n_heads; h++)
        for (int32_t d = -reach; d <= reach; d++) *out++ = weight[t5_bucket(b, d) * n_heads + h];
}

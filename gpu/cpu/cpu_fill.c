/* cpu_fill.c - the op fill_random (gpu.h): normally distributed numbers that depend on a seed and
 * on the index of the element.
 *
 * Elements i and i + 1 (i even) are made from two uniform numbers u and t (Box and Muller, 1958):
 * sqrt(-2 log u) cos(2 pi t) and sqrt(-2 log u) sin(2 pi t). Philox with counter i / 4 returns four
 * words for 4 elements: the first 2 elements use words 0 and 1, the others words 2 and 3. Of such 2
 * words the first gives u = (word / 256 + 1) / 2^24, never 0, the second t = word / 256 / 2^24. The
 * angle 2 pi t is reduced exactly to [-pi/4, pi/4] and a quadrant.
 */
#include "gpu/cpu/cpu_math.h"
#include "gpu/cpu/cpu_ops.h"
#include "gpu/philox.h"

struct fill_args {
    struct tensor t;
    uint64_t seed, first, pitch;
    float std;
};

/* Returns elements 16 n to 16 n + 15, before they are multiplied by std. */
ALWAYS void
normals(uint64_t seed, uint64_t n, float out[16])
{
    float u[8], t[8], cosine[8], sine[8];
    uint32_t quadrant[8];
    v8 r, x;

    for (uint32_t i = 0; i < 4; i++) {
        uint64_t at = 4 * n + i;
        uint32_t counter[4] = { (uint32_t)at, (uint32_t)(at >> 32), 0, 0 }, w[4];

        philox(seed, counter, w);
        for (uint32_t j = 0; j < 2; j++) {
            uint32_t angle = w[2 * j + 1] >> 8; /* t, as 24 bits of a full circle */
            uint32_t q = (angle + (1u << 21)) >> 22;

            u[2 * i + j] = (float)((w[2 * j] >> 8) + 1) * 0x1p-24f;
            t[2 * i + j] = (float)((int32_t)angle - (int32_t)(q << 22)) * 0x1p-23f;
            quadrant[2 * i + j] = q & 3;
        }
    }
    x = v8_load(t);
    v8_store(cosine, v8_cospi_small(x));
    v8_store(sine, v8_sinpi_small(x));
    r = v8_sqrt(v8_mul(v8_set(-2.0f), v8_log(v8_load(u))));
    v8_store(u, r);
    for (uint32_t i = 0; i < 8; i++) {
        const float turned[4] = { cosine[i], -sine[i], -cosine[i], sine[i] }, k = u[i];

        out[2 * i] = k * turned[quadrant[i]];
        out[2 * i + 1] = k * turned[(quadrant[i] + 3) % 4];
    }
}

/* Fills a row of U8: element i is byte i % 16 of the words for counter i / 16, low bytes first. */
static void
fill_bytes(const struct fill_args *a, uint8_t *row, uint64_t first, uint32_t n)
{
    uint64_t have = UINT64_MAX;
    uint32_t w[4];

    for (uint32_t j = 0; j < n; j++) {
        uint64_t at = (first + j) / 16;
        uint32_t counter[4] = { (uint32_t)at, (uint32_t)(at >> 32), 0, 0 };

        if (at != have) philox(a->seed, counter, w);
        have = at;
        row[j] = (uint8_t)(w[(first + j) % 16 / 4] >> 8 * ((first + j) % 4));
    }
}

static void
put(const struct tensor *t, void *row, uint32_t col, float x)
{
    if (t->dtype == DT_F32)
        ((float *)row)[col] = x;
    else
        ((uint16_t *)row)[col] = t->dtype == DT_BF16 ? bf16_of_float(x) : f16_of_float(x);
}

CPU_LOOP(fill)
{
    const struct fill_args *a = args;
    uint32_t n = a->t.dim[1];
    uint64_t have = UINT64_MAX;
    float value[16];

    for (CPU_SHARE(i, a->t.dim[0])) {
        void *row = row_of(&a->t, i);

        if (a->t.dtype == DT_U8) fill_bytes(a, row, a->first + i * a->pitch, n);
        if (a->t.dtype == DT_U8) continue;
        for (uint32_t j = 0; j < n; j++) {
            uint64_t at = a->first + i * a->pitch + j;

            if (at / 16 != have) normals(a->seed, have = at / 16, value);
            put(&a->t, row, j, value[at % 16] * a->std);
        }
    }
}

#ifdef CPU_OPS

int
cpu_fill_random(struct lane *l, struct tensor t, uint64_t seed, uint64_t first, uint64_t pitch,
                float std)
{
    struct fill_args a = { t, seed, first, pitch, std };

    return cpu_queue(l, run_fill, &a, sizeof a, t.dim[0]);
}

#endif

/* ref_attend.c - see ref_attend.h. */
#include "tests/gpu/ref_attend.h"

#include "tests/test.h"

#include <math.h>

double
ref_kv(const struct kv_view *v, uint32_t part, uint32_t slot, uint32_t pos, uint32_t head,
       uint32_t d)
{
    uint32_t tpb = v->tokens_per_block;
    slice_id block = HOST(v->table)[slot * v->table_stride + pos / tpb];
    char *slice = (char *)v->base + ((size_t)block + part) * v->slice_bytes;

    return at(tensor_2d(slice, v->dtype, v->n_kv_heads * tpb, v->head_dim), head * tpb + pos % tpb,
              d);
}

static double
key_or_value(const struct attend *a, const struct segment *segment, uint32_t part, uint32_t j,
             uint32_t head, uint32_t d)
{
    if (a->kv.table) return ref_kv(&a->kv, part, segment->slot, j, head, d);
    return at(part ? a->v : a->k, segment->first_token + j - (uint32_t)segment->first_pos,
              head * a->head_dim + d);
}

static bool
in_mask(const struct attend *a, const struct segment *segment, uint32_t row, int64_t j)
{
    uint32_t n = (uint32_t)(j - segment->first_pos);

    return HOST(a->mask)[row * a->mask_words + n / 32] >> n % 32 & 1;
}

double
ref_attend(const struct attend *a, const struct segment *segment, uint32_t row, uint32_t head,
           uint32_t d, double *size)
{
    int64_t i = segment->first_pos + (int64_t)(row - segment->first_token);
    int64_t keys = a->kv.table ? segment->kv_len : segment->first_pos + (int64_t)segment->n_tokens;
    uint32_t kv_head = head * a->n_kv_heads / a->n_heads;
    double max = -INFINITY, sum = 0, out = 0, all = 0;

    /* Two passes over the keys: the largest score, then the sums. */
    for (int pass = 0; pass < 2; pass++) {
        if (pass && a->sinks) {
            max = fmax(max, (double)HOST(a->sinks)[head]);
            sum = exp(HOST(a->sinks)[head] - max);
        }
        for (int64_t j = a->kv.table ? 0 : segment->first_pos; j < keys; j++) {
            double s = 0;

            if (a->mask && j >= segment->first_pos ? !in_mask(a, segment, row, j)
                                                   : a->causal && j > i)
                continue;
            if (a->window && j <= i - (int64_t)a->window && j >= a->kept) continue;
            for (uint32_t e = 0; e < a->head_dim; e++)
                s += at(a->q, row, head * a->head_dim + e) *
                     key_or_value(a, segment, 0, (uint32_t)j, kv_head, e);
            s *= a->scale;
            if (a->softcap != 0) s = a->softcap * tanh(s / a->softcap);
            if (a->bias) {
                int64_t reach = a->bias_reach, far = j - i;

                far = far > reach ? reach : far < -reach ? -reach : far;
                s += HOST(a->bias)[head * (2 * a->bias_reach + 1) + (uint32_t)(far + reach)];
            }
            if (pass == 0) {
                max = fmax(max, s);
            } else {
                double part = exp(s - max) * key_or_value(a, segment, 1, (uint32_t)j, kv_head, d);

                sum += exp(s - max);
                out += part;
                all += fabs(part);
            }
        }
    }
    *size = sum > 0 ? all / sum : 0;
    return sum > 0 ? out / sum : 0;
}

void
near_steps(double got, double want, double size, enum dtype type, double on_the_way)
{
    /* Half of its smallest number. */
    double tiny = type == DT_E4M3 ? 0x1.01p-10 : type == DT_F16 ? 3.1e-8 : 1e-30;
    double bound = size * 4e-6 + (1.01 * fabs(want) + 2 * on_the_way) * rounding(type) + tiny;

    if (fabs(got - want) <= bound) return; /* false for a NaN */
    fail_msg("%s: %.9g, but should be %.9g within %.2g", dtype_name(type), got, want, bound);
}

void
near(double got, double want, double size, enum dtype type)
{
    near_steps(got, want, size, type, 0);
}

/* ref_attend.h - attention in double, written from gpu.h only, and the error bound of a result: a
 * few fp32 roundings relative to the magnitudes summed; for 16-bit activations one rounding of the
 * result and twice the roundings of the steps in between.
 */
#pragma once
#include "tests/gpu/fixture.h"

/* Element d of K (part 0) or V (part 1) of a paged cache. */
double ref_kv(const struct kv_view *v, uint32_t part, uint32_t slot, uint32_t pos, uint32_t head,
              uint32_t d);
/* What attend() should write to element d of a head of a row; size: the sum of the magnitudes of
 * its terms. */
double ref_attend(const struct attend *a, const struct segment *segment, uint32_t row,
                  uint32_t head, uint32_t d, double *size);

/* size: the sum of the input magnitudes. type: of the result, rounded once. on_the_way: the
 * magnitude of values rounded to that type before. */
void near_steps(double got, double want, double size, enum dtype type, double on_the_way);
void near(double got, double want, double size, enum dtype type); /* no earlier rounding */

/* ref_attend.h - attention in double, written from gpu.h and nothing else; and how near to a double
 * a result must be: a few roundings of fp32, scaled by what was summed, and where activations have
 * 16 bits one rounding of the result, and twice those of the steps in between.
 */
#ifndef TESTS_GPU_REF_ATTEND_H
#define TESTS_GPU_REF_ATTEND_H

#include "tests/gpu/fixture.h"

/* Element d of K (part 0) or V (part 1) of a paged cache. */
double ref_kv(const struct kv_view *v, uint32_t part, uint32_t slot, uint32_t pos, uint32_t head,
              uint32_t d);
/* What attend() should write to element d of a head of a row; size: the sum of the magnitudes that
 * it is the sum of. */
double ref_attend(const struct attend *a, const struct segment *segment, uint32_t row,
                  uint32_t head, uint32_t d, double *size);

/* size: the sum of the magnitudes that went in. type: of the result, which is rounded once.
 * on_the_way: the magnitude of what was rounded to that type before. */
void near_steps(double got, double want, double size, enum dtype type, double on_the_way);
void near(double got, double want, double size, enum dtype type); /* nothing was */

#endif

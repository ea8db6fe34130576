/* fingerprint.h - what says that two loads would give the same weights arena.
 *
 * XXH3-128 over config.json, every shard's header and size, its content (all of it up to 64 MiB, samples
 * of each tensor above), the wanted dtype, the layout's version, the family's name, and the seed of
 * random weights. No times and no paths: a copied checkpoint is the same checkpoint.
 */
#ifndef MODEL_FINGERPRINT_H
#define MODEL_FINGERPRINT_H

#include "worker/model/weights.h"

int fingerprint_make(struct model *m, const struct weights_from *from, struct err *e) MUST_USE;

#endif

/* fingerprint.h - equal fingerprints mean that two loads give the same weights arena.
 *
 * XXH3-128 over config.json; header, size and content of every shard (up to 64 MiB all of it, above
 * that samples of each tensor); the dtype option; the layout version; the family's name; and the
 * seed of random weights. Times and paths are left out, because a copied checkpoint is the same
 * checkpoint.
 */
#pragma once

#include "worker/model/weights.h"

/* Sets m->fingerprint and m->checkpoint. */
int fingerprint_make(struct model *m, const struct weights_from *from, struct err *e) MUST_USE;

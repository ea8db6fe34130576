/* weights_seal.h - what an arena of weights says about itself, behind its last field.
 *
 *     head    magic, version, number of fields, complete, fingerprint
 *     entry   [n] offset, bytes, checksum when it was filled, checksum as last looked at
 *
 * Written by the device as it fills, so that a process that adopts the arena can tell a field that was
 * damaged since (a dying kernel's stray write, a bit) from one that was not, without the checkpoint.
 */
#ifndef MODEL_WEIGHTS_SEAL_H
#define MODEL_WEIGHTS_SEAL_H

#include "worker/model/weights_plan.h"

uint64_t weights_seal_bytes(uint32_t n_fields);

/* An arena that is to be filled: its seal is there and not complete. Queued on m->lane, then waited for. */
int weights_seal_begin(const struct weights_plan *p, struct err *e) MUST_USE;
/* Queue the checksum of a field that has been filled. */
int weights_seal_field(const struct weights_plan *p, uint32_t field);
/* All fields are filled. */
int weights_seal_end(const struct weights_plan *p, struct err *e) MUST_USE;
/* Read every field of an adopted arena and mark those stale whose checksum is another; all of them where
 * the seal itself is not ours. Returns their number. */
int weights_seal_check(struct weights_plan *p, struct err *e) MUST_USE;
/* The sums of an arena that is whole go into m->seal, for weights_seal_again(): how many of its fields have
 * another sum by now. */
int weights_seal_keep(const struct weights_plan *p, struct err *e) MUST_USE;
int weights_seal_again(struct model *m, struct err *e) MUST_USE;

#endif

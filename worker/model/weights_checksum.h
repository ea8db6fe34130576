/* weights_checksum.h - what an arena of weights says about itself, behind its last field.
 *
 *     head    magic, version, number of fields, complete, fingerprint
 *     entry   [n] offset, bytes, checksum when it was filled, checksum as last looked at
 *
 * Written by the device as it fills, so that a process that adopts the arena can tell a field that was
 * damaged since (a dying kernel's stray write, a bit) from one that was not, without the checkpoint.
 */
#ifndef MODEL_WEIGHTS_CHECKSUM_H
#define MODEL_WEIGHTS_CHECKSUM_H

#include "worker/model/weights_plan.h"

uint64_t weights_checksum_bytes(uint32_t n_fields);

/* An arena that is to be filled: its weights_checksum is there and not complete. Queued on m->lane, then waited for. */
int weights_checksum_begin(const struct weights_plan *p, struct err *e) MUST_USE;
/* Queue the checksum of a field that has been filled. */
int weights_checksum_field(const struct weights_plan *p, uint32_t field);
/* All fields are filled. */
int weights_checksum_end(const struct weights_plan *p, struct err *e) MUST_USE;
/* Read every field of an adopted arena and mark those stale whose checksum is another; all of them where
 * the weights_checksum itself is not ours. Returns their number. */
int weights_checksum_check(struct weights_plan *p, struct err *e) MUST_USE;
/* The sums of an arena that is whole go into m->weights_checksum, for weights_checksum_again(): how many of its fields have
 * another sum by now. */
int weights_checksum_keep(const struct weights_plan *p, struct err *e) MUST_USE;
int weights_checksum_again(struct model *m, struct err *e) MUST_USE;

#endif

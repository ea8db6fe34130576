/* weights_checksum.h - the checksum table at the end of a weights arena.
 *
 *     head    magic, version, number of fields, complete, fingerprint
 *     entry   [n] offset, bytes, checksum when filled, checksum of the last check
 *
 * The device writes the table while it fills the arena. A process that adopts the arena then finds
 * damaged fields (a stray write of a dying kernel, a flipped bit) without reading the checkpoint.
 */
#pragma once

#include "worker/model/weights_plan.h"

uint64_t weights_checksum_bytes(uint32_t n_fields);

/* Writes an incomplete table into an arena that will be filled. Queues on m->lane and waits. */
int weights_checksum_begin(const struct weights_plan *p, struct err *e) MUST_USE;
/* Queues the checksum of a filled field. */
int weights_checksum_field(const struct weights_plan *p, uint32_t field);
/* Marks the table complete, after the last field. */
int weights_checksum_end(const struct weights_plan *p, struct err *e) MUST_USE;
/* Checks every field of an adopted arena and marks fields with a wrong checksum as stale, or all
 * fields if the table itself is invalid. Returns the number of stale fields. */
int weights_checksum_check(struct weights_plan *p, struct err *e) MUST_USE;
/* weights_checksum_keep() copies the checksums of a complete arena to m->weights_checksum.
 * weights_checksum_again() returns the number of fields whose checksum has changed since. */
int weights_checksum_keep(const struct weights_plan *p, struct err *e) MUST_USE;
int weights_checksum_again(struct model *m, struct err *e) MUST_USE;

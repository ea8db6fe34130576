/* generation.h - the token ids that generation starts, ends and pads with. */
#ifndef MODEL_GENERATION_H
#define MODEL_GENERATION_H

#include "worker/model/model.h"

#include <jansson.h>

/* m's bos, pad, decoder_start, forced ids and eos: from generation_config.json (NULL: there is none), and
 * what it leaves out from config.json. m->shape.vocab is set: an id outside the vocabulary is -EINVAL,
 * -1 is none. */
int generation_read(struct model *m, const json_t *generation, const json_t *config,
                    struct err *e) MUST_USE;

#endif

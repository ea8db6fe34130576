/* generation.h - the token ids that generation starts, ends and pads with, and how it generates by default. */
#ifndef MODEL_GENERATION_H
#define MODEL_GENERATION_H

#include "worker/model/model.h"

#include <jansson.h>

/* m's bos, pad, decoder_start, forced ids and eos: from generation_config.json (NULL: there is none), and
 * what it leaves out from config.json, whole first and then its text_config. m->shape is set: an id outside the
 * vocabulary is -EINVAL, -1 is none. An encoder-decoder that names no decoder_start starts with bos.
 *
 * What neither file says is none, whatever the model's class has for it: from_pretrained() of transformers 5.17 makes
 * GenerationConfig of the files alone. Before 5 it took the class's, Llama's 2 for an eos, from whatever vocabulary. */
/* m->generation is generation_config.json's, or without such a file config.json's, as old ones have it. What is there
 * and not served, or of the wrong kind or range, is m->generation.unserved: who asks for defaults is told. */
int generation_read(struct model *m, const json_t *generation, const json_t *whole,
                    const json_t *text, struct err *e) MUST_USE;

#endif

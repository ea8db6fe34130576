/* generation.h - special token ids and default generation parameters of a checkpoint. */
#pragma once
#include "worker/model/model.h"

#include <jansson.h>

/* Sets m's bos, pad, decoder_start, forced_bos, forced_eos and eos (-1: none), and m->generation.
 * m->shape must be set. whole: config.json; text: config_text() of it.
 *
 * An id comes from generation_config.json (NULL: no such file), else from config.json, else from
 * its text_config; an id outside the vocabulary is -EINVAL. An encoder-decoder model without
 * decoder_start uses bos. Defaults of the model's class are not used, because from_pretrained() of
 * transformers 5.17 builds GenerationConfig from the files alone.
 *
 * m->generation comes from generation_config.json or, without this file, from config.json. The
 * first key whose value is not implemented or has a wrong type or range is stored in
 * m->generation.unserved; requests with model_defaults are then refused with the key's name. */
int generation_read(struct model *m, const json_t *generation, const json_t *whole,
                    const json_t *text, struct err *e) MUST_USE;

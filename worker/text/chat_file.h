/* chat_file.h - finds the chat template in a checkpoint directory and identifies published
 * templates.
 *
 * A template is a program in chat_template.jinja, in "chat_template" of tokenizer_config.json or,
 * for a processor, of chat_template.json. It is never executed; it is identified by the hash of its
 * text (XXH3, 128 bits) without trailing white space. */
#pragma once

#include "base/base.h"
#include "base/err.h"

/* Returns 1 with the hash, 0 if there is no template, -EBADMSG if it cannot be read. */
int chat_file_hash(const char *dir, uint64_t hash[2], struct err *e) MUST_USE;
/* Reads a token of tokenizer_config.json, for example "bos_token". Returns 1 with the token ("" for
 * null), 0 if absent. */
int chat_file_token(const char *dir, const char *key, char *buf, size_t n, struct err *e) MUST_USE;
/* The architecture: model_type of config.json, or "". */
const char *chat_file_type(const char *dir, char type[32]);
const char *chat_file_known(const uint64_t hash[2]); /* a name of chat_name(), or NULL */

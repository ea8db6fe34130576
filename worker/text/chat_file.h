/* chat_file.h - finds the chat template in a checkpoint directory and identifies published
 * templates.
 *
 * A chat template is a Jinja program in chat_template.jinja, in the key "chat_template" of
 * tokenizer_config.json or, for multimodal models, of chat_template.json. It is never executed; it
 * is identified by the hash of its text (XXH3, 128 bits) without trailing white space. */
#pragma once
#include "base/base.h"
#include "base/err.h"

/* Returns 1 with the hash of dir's chat template, 0: there is none, -EBADMSG: it is malformed. */
int chat_file_hash(const char *dir, uint64_t hash[2], struct err *e) MUST_USE;
/* Reads the text of a token from tokenizer_config.json, for example key "bos_token". Returns 1 with
 * the text in buf[n] ("" for null), 0 if the key or the file is absent. */
int chat_file_token(const char *dir, const char *key, char *buf, size_t n, struct err *e) MUST_USE;
/* Copies model_type of config.json to type and returns it; "" if it cannot be read. */
const char *chat_file_type(const char *dir, char type[32]);
/* Returns the chat_name() of the published template with this hash, or NULL. */
const char *chat_file_known(const uint64_t hash[2]);

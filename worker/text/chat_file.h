/* chat_file.h - the chat template in a checkpoint's directory, and which of the published ones it is.
 *
 * A template is a program in chat_template.jinja, in "chat_template" of tokenizer_config.json or, where a processor alone
 * has one, of chat_template.json; it is never run. What is known of it is the hash of its text (XXH3, 128 bits), white
 * space at its end left out.
 */
#ifndef TEXT_CHAT_FILE_H
#define TEXT_CHAT_FILE_H

#include "base/base.h"
#include "base/err.h"

/* 1 with the hash, 0 when there is no template; -EBADMSG: one that cannot be read, and why. */
int chat_file_hash(const char *dir, uint64_t hash[2], struct err *e) MUST_USE;
/* What tokenizer_config.json has for a token that templates name, "bos_token": 1 with it, empty for null; 0 where it
 * says nothing of it. */
int chat_file_token(const char *dir, const char *key, char *buf, size_t n, struct err *e) MUST_USE;
/* The architecture: config.json's model_type, empty where it has none. */
const char *chat_file_type(const char *dir, char type[32]);
const char *chat_file_known(const uint64_t hash[2]); /* a name of chat_name(), or NULL */

#endif

/* vocab_cache.h - stores a vocabulary in a file in its memory layout, so that it loads without
 * parsing.
 *
 * The file is DIR/<hash>.vocab; the hash (XXH3, 128 bits) is of the content of tokenizer.json, not
 * of its path or date. It has the arrays of vocabulary, merges or trie, and added tokens, and the
 * small sections of the document as text; no pointers. It is written to a temporary name and
 * renamed, and any number of workers map it read-only. A file with another layout, byte order or
 * length, with a wrong bit, or with an index out of range is ignored and written again. The hashes
 * detect damage, not attacks: write access to DIR would also allow changing the model.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"

struct tokenizer;

/* Hash of dir/tokenizer.json, which is read in parts. -errno, with a sentence. */
int vocab_cache_hash(const char *dir, uint64_t hash[2], struct err *e) MUST_USE;
void vocab_cache_hash_of(const void *text, size_t n, uint64_t hash[2]);

/* Maps the file for the document with this hash into t, which must be zeroed. Returns 1, or 0 if
 * there is no usable file; t is then unchanged. */
int vocab_cache_load(struct tokenizer *t, const char *dir, const uint64_t hash[2]) MUST_USE;
void vocab_cache_unmap(struct tokenizer *t);

/* Writes the file; creates dir if its parent exists. -errno, with a sentence. */
int vocab_cache_store(struct tokenizer *t, const char *dir, struct err *e) MUST_USE;

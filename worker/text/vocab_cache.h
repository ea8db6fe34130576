/* vocab_cache.h - a vocabulary kept in a file as it lies in memory, so that it opens at once the next time.
 *
 * DIR/<hash>.vocab, keyed by what tokenizer.json holds (XXH3, 128 bits), never by its path or date. It is
 * the arrays of vocabulary, merges or trie, and added tokens, with the small sections of the document as
 * text; no pointers. It is written beside its place and renamed, never in place, and mapped for reading by
 * any number of workers. A file of another layout, of another machine's byte order, cut short, with one wrong bit, or
 * with an index that leads outside its array is as good as none: it is made again. The hashes find damage,
 * not malice: whoever may write to DIR may as well change the model.
 */
#ifndef TEXT_VOCAB_CACHE_H
#define TEXT_VOCAB_CACHE_H

#include "base/base.h"
#include "base/err.h"

struct tokenizer;

/* What a document holds: its hash, streamed from its file. -errno, with a sentence. */
int vocab_cache_hash(const char *path, uint64_t hash[2], struct err *e) MUST_USE;
void vocab_cache_hash_of(const void *text, size_t n, uint64_t hash[2]);

/* Map what is kept of the document with this hash into t, zeroed. 1, or 0: there is nothing that can be used,
 * and t is as it was. */
int vocab_cache_load(struct tokenizer *t, const char *dir, const uint64_t hash[2]) MUST_USE;
void vocab_cache_unmap(struct tokenizer *t);

/* Write it; dir is made where its parent is there. -errno, with a sentence. */
int vocab_cache_store(struct tokenizer *t, const char *dir, struct err *e) MUST_USE;

#endif

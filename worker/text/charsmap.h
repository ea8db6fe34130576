/* charsmap.h - the precompiled normalisation of SentencePiece: a trie over UTF-8 and replacement
 * texts.
 *
 * The blob is: u32 size of the trie, the trie (double array of darts-clone, u32 units), then
 * NUL-terminated texts. Because the blob comes from a file, every unit and text is checked against
 * its bounds; invalid UTF-8 is rejected, and an entry that ends inside a character is ignored. As
 * in the reference, a grapheme cluster below 6 bytes is mapped as a whole, longer ones character by
 * character, and the shortest matching entry replaces the whole cluster. */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "worker/text/text_buffer.h"

struct charsmap {
    uint8_t *blob;
    size_t n_units, text_at, n; /* bytes of blob */
};

/* Decodes base64[n] of tokenizer.json. -EBADMSG: invalid base64 or inconsistent sizes. */
int charsmap_open(struct charsmap *m, const char *base64, size_t n, struct err *e) MUST_USE;
void charsmap_free(struct charsmap *m);

/* Appends the mapped text[n] (UTF-8) to r. -ENOMEM. */
int charsmap_run(const struct charsmap *m, const char *text, size_t n,
                 struct text_buffer *r) MUST_USE;

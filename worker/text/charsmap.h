/* charsmap.h - SentencePiece's precompiled normalisation: a trie over UTF-8 and the texts it leads to.
 *
 * The blob is u32 bytes of trie, the trie (darts-clone's double array, u32 units), then texts that end
 * with a zero byte. It comes from a file, so every unit and every text is looked at within its bounds, and what
 * is no UTF-8 is refused or, where an entry leads into a character, is no entry.
 * As the reference applies it: to whole grapheme clusters below six bytes, else to each character, and
 * the shortest entry that begins the cluster stands for all of it.
 */
#ifndef TEXT_CHARSMAP_H
#define TEXT_CHARSMAP_H

#include "base/base.h"
#include "base/err.h"
#include "worker/text/text_buffer.h"

struct charsmap {
    uint8_t *blob;
    size_t n_units, text_at, n; /* bytes of blob */
};

/* base64[n], as in tokenizer.json. -EBADMSG: it is none, or its lengths do not fit. */
int charsmap_open(struct charsmap *m, const char *base64, size_t n, struct err *e) MUST_USE;
void charsmap_free(struct charsmap *m);

/* Append text[n] (UTF-8), mapped, to r. -ENOMEM. */
int charsmap_run(const struct charsmap *m, const char *text, size_t n, struct room *r) MUST_USE;

#endif

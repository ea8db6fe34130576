/* charsmap.h - the normalizer "Precompiled" of SentencePiece models: replaces characters by the
 * entries of a table that tokenizer.json has as a blob, "precompiled_charsmap".
 *
 * The blob is: u32 size of the trie, the trie (double array of darts-clone, u32 units), which maps
 * UTF-8 to offsets of texts, then the NUL-terminated texts. Because the blob comes from a file,
 * every unit and text is checked against its bounds; invalid UTF-8 is rejected, and an entry whose
 * text begins inside a character is ignored. As in the tokenizers library, a grapheme cluster below
 * 6 bytes is looked up as a whole, and the shortest entry with which it begins replaces the whole
 * cluster; a longer cluster is looked up character by character. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "worker/text/text_buffer.h"

struct charsmap {
    uint8_t *blob;
    size_t n_units, text_at, n; /* bytes of blob */
};

/* Decodes the blob, base64[n] of tokenizer.json. -EBADMSG: invalid base64 or inconsistent sizes. */
int charsmap_open(struct charsmap *m, const char *base64, size_t n, struct err *e) MUST_USE;
void charsmap_free(struct charsmap *m);

/* Appends text[n] (UTF-8) with its replacements to r. -ENOMEM. */
int charsmap_run(const struct charsmap *m, const char *text, size_t n,
                 struct text_buffer *r) MUST_USE;

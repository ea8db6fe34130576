/* vocab_cache.c - the vocabulary cache: files that have the arrays of a tokenizer in their memory
 * layout, so that a worker maps a file instead of parsing tokenizer.json.
 *
 * A file is DIR/<hash>.vocab, where hash (XXH3, 128 bits) is of the content of tokenizer.json ("the
 * document"), not of its path or date. The file has the arrays of vocabulary, merges or trie, and
 * added tokens, and the other sections of the document as text; no pointers. It is written to a
 * temporary name and renamed, and any number of workers map it read-only. A file with another
 * layout, byte order or length, with a wrong bit, or with an index out of range is ignored and
 * written again. The hashes detect damage, not attacks: write access to DIR would also allow
 * changing the model.
 *
 *     offset  bytes  content
 *     0       512    struct header, padded with zeros
 *     512     ...    nine arrays in the order of enum array, each at a multiple of 64
 *
 * The header has only the sizes of the arrays; their offsets follow from the sizes. */
#include "base/file.h"
#include "worker/text/tokenizer.h"
#include "worker/text/tokenizer_parts.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* Increment LAYOUT with every change of the content or meaning of the arrays. */
enum { LAYOUT = 1, HEADER = 512, ALIGN = 64, CHUNK = 1 << 18 };
static const uint64_t MAGIC = UINT64_C(0x6261636f764e474c); /* "LGNvocab" */
static const uint64_t FILE_MOST = UINT64_C(1) << 32;

enum array { BYTES, PIECES, SLOTS, MERGES, SCORES, EDGES, ADDED, ADDED_TEXT, CONFIG, N_ARRAYS };

struct header {
    uint64_t magic;
    uint32_t layout, header_bytes;
    uint64_t document[2];
    uint64_t body; /* XXH3 of everything behind this field */
    uint64_t array_bytes[N_ARRAYS];
    double unk_score;
    uint32_t n_used, longest, n_merges, n_nodes; /* of the structs with these fields */
    token_id unk;
    uint8_t is_unigram, ignore_merges, byte_fallback, fuse_unk, cuts_at_marks, byte_level, zero[2];
};
_Static_assert(sizeof(struct header) <= HEADER, "struct header fits");
_Static_assert(sizeof(struct piece) == 12 && sizeof(struct merge) == 16, "as of this layout");
_Static_assert(sizeof(struct edge) == 12 && sizeof(struct added_token) == 16, "as of this layout");

static int MUST_USE
path_of(char *path, size_t capacity, const char *dir, const uint64_t hash[2], const char *end)
{
    int n = snprintf(path, capacity, "%s/%016llx%016llx.%s", dir, (unsigned long long)hash[0],
                     (unsigned long long)hash[1], end);

    return n > 0 && (size_t)n < capacity ? 0 : -ENAMETOOLONG;
}

void
vocab_cache_hash_of(const void *text, size_t n, uint64_t hash[2])
{
    XXH128_hash_t h = XXH3_128bits(text, n);

    hash[0] = h.high64;
    hash[1] = h.low64;
}

static void
free_state(XXH3_state_t **x)
{
    XXH3_freeState(*x);
}

/* Sets hash to the hash of dir/tokenizer.json, which is read in chunks. */
static int MUST_USE
hash_file(const char *dir, uint64_t hash[2], struct err *e)
{
    char path[FILE_PATH];
    CLEAN(file_close_at) int fd = file_open(path, dir, "tokenizer.json", e);
    CLEAN(free_state) XXH3_state_t *state = XXH3_createState();
    CLEAN(file_free_at) char *chunk = malloc(CHUNK);
    XXH128_hash_t h;
    ssize_t got;

    if (fd < 0) return fd;
    if (!state || !chunk) return err_set(e, -ENOMEM, "%s: no memory to hash the file", path);
    XXH3_128bits_reset(state);
    while ((got = read(fd, chunk, CHUNK)) > 0) XXH3_128bits_update(state, chunk, (size_t)got);
    if (got < 0) return err_set(e, -errno, "%s: %s", path, strerror(errno));
    h = XXH3_128bits_digest(state);
    hash[0] = h.high64;
    hash[1] = h.low64;
    return 0;
}

/* ---- arrays */

struct array_of {
    void **at;
    size_t unit, n;
};

static void
list_arrays(struct tokenizer *t, struct array_of a[N_ARRAYS])
{
#define ARRAY(i, field, count) a[i] = (struct array_of){ (void **)&(field), sizeof *(field), count }
    ARRAY(BYTES, t->vocab.bytes, t->vocab.n_bytes);
    ARRAY(PIECES, t->vocab.piece, t->vocab.n);
    ARRAY(SLOTS, t->vocab.slot, t->vocab.n_slots);
    ARRAY(MERGES, t->bpe.merge, t->bpe.n_slots);
    ARRAY(SCORES, t->unigram.score, t->unigram.n);
    ARRAY(EDGES, t->unigram.edge, t->unigram.n_slots);
    ARRAY(ADDED, t->added.token, t->added.n);
    ARRAY(ADDED_TEXT, t->added.text, t->added.n_text);
    ARRAY(CONFIG, t->config.p, t->config.n);
#undef ARRAY
}

enum { HASHED = offsetof(struct header, body) + sizeof(uint64_t) };

/* ---- loading */

/* Sets pointers and counts of t to the arrays of a mapped file, whose sizes h has and which fit
 * it. */
static void
adopt(struct tokenizer *t, const struct header *h, char *map)
{
    struct array_of a[N_ARRAYS];
    size_t at = HEADER;

    list_arrays(t, a);
    for (int i = 0; i < N_ARRAYS; i++) {
        *a[i].at = map + at;
        at += ROUND_UP(h->array_bytes[i], (uint64_t)ALIGN);
    }
#define COUNT(i) ((uint32_t)(h->array_bytes[i] / a[i].unit))
    t->is_unigram = h->is_unigram;
    t->vocab.n_bytes = COUNT(BYTES);
    t->vocab.n = COUNT(PIECES);
    t->vocab.n_slots = COUNT(SLOTS);
    t->vocab.n_used = h->n_used;
    t->vocab.longest = h->longest;
    t->vocab.byte_level = h->byte_level;
    t->bpe.n_slots = COUNT(MERGES);
    t->bpe.n_merges = h->n_merges;
    t->bpe.ignore_merges = h->ignore_merges;
    t->bpe.cuts_at_marks = h->cuts_at_marks;
    t->bpe.fuse_unk = h->fuse_unk;
    t->bpe.byte_fallback = t->unigram.byte_fallback = h->byte_fallback;
    t->bpe.unk = t->unigram.unk = h->unk;
    t->unigram.n = COUNT(SCORES);
    t->unigram.n_slots = COUNT(EDGES);
    t->unigram.n_nodes = h->n_nodes;
    t->unigram.unk_score = h->unk_score;
    t->added.n = COUNT(ADDED);
    t->added.n_text = COUNT(ADDED_TEXT);
    t->config.n = COUNT(CONFIG);
#undef COUNT
}

/* Returns true if the file is for the document with this hash and is complete and undamaged. */
static bool
is_whole(const char *map, size_t n, const uint64_t hash[2])
{
    struct tokenizer none = { 0 };
    struct array_of a[N_ARRAYS];
    struct header h;
    uint64_t end = HEADER;

    if (n < HEADER) return false;
    memcpy(&h, map, sizeof h);
    if (h.magic != MAGIC || h.layout != LAYOUT || h.header_bytes != sizeof h) return false;
    if (h.document[0] != hash[0] || h.document[1] != hash[1]) return false;
    list_arrays(&none, a);
    for (int i = 0; i < N_ARRAYS; i++) {
        if (h.array_bytes[i] > n || h.array_bytes[i] % a[i].unit) return false;
        end += ROUND_UP(h.array_bytes[i], (uint64_t)ALIGN);
    }
    for (size_t i = offsetof(struct header, is_unigram); i <= offsetof(struct header, byte_level);
         i++)
        if (((const uint8_t *)&h)[i] > 1) return false;
    return end == n && XXH3_64bits(map + HASHED, n - HASHED) == h.body;
}

static bool
is_sound(const struct tokenizer *t)
{
    return vocab_is_sound(&t->vocab) && added_tokens_is_sound(&t->added, &t->vocab) &&
           (t->is_unigram ? unigram_is_sound(&t->unigram, &t->vocab)
                          : bpe_is_sound(&t->bpe, &t->vocab));
}

void
vocab_cache_unmap(struct tokenizer *t)
{
    struct array_of a[N_ARRAYS];

    if (!t->map) return;
    list_arrays(t, a);
    for (int i = 0; i < N_ARRAYS; i++) *a[i].at = NULL;
    munmap(t->map, t->map_bytes);
    t->map = NULL;
}

/* Sets t from the mapped cache file for this hash. Returns false if there is no usable file. */
static bool
load(struct tokenizer *t, const char *dir, const uint64_t hash[2])
{
    char path[FILE_PATH], *map = MAP_FAILED;
    struct header h;
    struct stat st = { 0 };
    int fd = -1;

    if (path_of(path, sizeof path, dir, hash, "vocab") == 0) fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= HEADER &&
        (uint64_t)st.st_size < FILE_MOST)
        map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return false;
    t->map = map;
    t->map_bytes = (size_t)st.st_size;
    if (!is_whole(map, t->map_bytes, hash)) return false;
    memcpy(&h, map, sizeof h);
    adopt(t, &h, map);
    memcpy(t->document, hash, sizeof t->document);
    return is_sound(t) && tokenizer_json_reopen(t, t->config.p, t->config.n, NULL) == 0 &&
           t->vocab.byte_level == t->pretok.byte_level;
}

int
tokenizer_open_kept(struct tokenizer **ret, const char *dir, const char *kept, struct err *e)
{
    CLEAN(tokenizer_close_at) struct tokenizer *t = calloc(1, sizeof *t);
    uint64_t hash[2];

    if (!t) return err_set(e, -ENOMEM, "no host memory for the tokenizer");
    TRY(hash_file(dir, hash, e));
    if (!load(t, kept, hash)) return 0;
    *ret = TAKE(t);
    return 1;
}

/* ---- storing */

static void
fill_header(struct header *h, struct tokenizer *t, const struct array_of a[N_ARRAYS])
{
    *h = (struct header){
        .magic = MAGIC,
        .layout = LAYOUT,
        .header_bytes = sizeof *h,
        .document = { t->document[0], t->document[1] },
        .unk_score = t->unigram.unk_score,
        .n_used = t->vocab.n_used,
        .longest = t->vocab.longest,
        .n_merges = t->bpe.n_merges,
        .n_nodes = t->unigram.n_nodes,
        .unk = t->is_unigram ? t->unigram.unk : t->bpe.unk,
        .is_unigram = t->is_unigram,
        .ignore_merges = t->bpe.ignore_merges,
        .byte_fallback = t->is_unigram ? t->unigram.byte_fallback : t->bpe.byte_fallback,
        .fuse_unk = t->bpe.fuse_unk,
        .cuts_at_marks = t->bpe.cuts_at_marks,
        .byte_level = t->vocab.byte_level,
    };
    for (int i = 0; i < N_ARRAYS; i++) h->array_bytes[i] = a[i].n * a[i].unit;
}

static int MUST_USE
write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = write(fd, p, n);

        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return -errno;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

/* Returns the content of t's cache file, *n bytes. NULL: no memory. */
static char *
image_new(struct tokenizer *t, size_t *n)
{
    struct array_of a[N_ARRAYS];
    struct header h;
    size_t at = HEADER;
    char *image;

    list_arrays(t, a);
    fill_header(&h, t, a);
    *n = HEADER;
    for (int i = 0; i < N_ARRAYS; i++) *n += ROUND_UP(h.array_bytes[i], (uint64_t)ALIGN);
    image = calloc(1, *n);
    if (!image) return NULL;
    for (int i = 0; i < N_ARRAYS; i++) {
        if (h.array_bytes[i]) memcpy(image + at, *a[i].at, h.array_bytes[i]);
        at += ROUND_UP(h.array_bytes[i], (uint64_t)ALIGN);
    }
    memcpy(image, &h, sizeof h);
    h.body = XXH3_64bits(image + HASHED, *n - HASHED);
    memcpy(image, &h, sizeof h);
    return image;
}

int
tokenizer_keep(struct tokenizer *t, const char *dir, struct err *e)
{
    char path[4096], beside[4096], end[32];
    size_t n = 0;
    char *image;
    int fd, r;

    snprintf(end, sizeof end, "vocab.%d", (int)getpid());
    if (path_of(path, sizeof path, dir, t->document, "vocab") < 0 ||
        path_of(beside, sizeof beside, dir, t->document, end) < 0)
        return err_set(e, -ENAMETOOLONG, "the path of the vocabulary cache is too long: %.64s...",
                       dir);
    if (mkdir(dir, 0700) < 0 && errno != EEXIST)
        return err_set(e, -errno, "%s: %s", dir, strerror(errno));
    image = image_new(t, &n);
    if (!image) return err_set(e, -ENOMEM, "%s: no memory to write the file", path);
    fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    r = fd < 0 ? -errno : write_all(fd, image, n);
    if (fd >= 0 && close(fd) < 0 && r == 0) r = -errno;
    if (r == 0 && rename(beside, path) < 0) r = -errno;
    if (r < 0 && fd >= 0) unlink(beside);
    free(image);
    return r < 0 ? err_set(e, r, "%s: %s", r == -ENOENT ? dir : path, strerror(-r)) : 0;
}

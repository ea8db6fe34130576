/* unigram.c - implements unigram.h: the trie of the vocabulary and the Viterbi search. */
#include "worker/text/unigram.h"

#include "base/array.h"
#include "base/utf8.h"

#include <math.h>

enum { WORD = 4096, MAX_NODES = 1 << 24, UNKNOWN_COSTS = 10 };

struct best {
    double score;
    int32_t from; /* start of the path's last token; -1: no path yet */
    token_id id;  /* the path's last token */
};

static struct edge *
slot_of(const struct unigram *u, uint32_t from)
{
    uint32_t i = (uint32_t)(from * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (u->n_slots - 1);

    while (u->edge[i].to && u->edge[i].from != from) i = (i + 1) & (u->n_slots - 1);
    return &u->edge[i];
}

static int MUST_USE
more_slots(struct unigram *u)
{
    struct edge *old = u->edge, *edge;
    uint32_t n = u->n_slots, more = n ? n * 2 : 4096;

    if (u->n_nodes < n / 2) return 0;
    edge = calloc(more, sizeof *edge);
    if (!edge) return -ENOMEM;
    u->edge = edge;
    u->n_slots = more;
    for (uint32_t i = 0; i < n; i++)
        if (old[i].to) *slot_of(u, old[i].from) = old[i];
    free(old);
    return 0;
}

static int MUST_USE
add_piece(struct unigram *u, const char *s, size_t n, token_id id, struct err *e)
{
    struct edge *edge = NULL;
    uint32_t node = 0;

    for (size_t i = 0; i < n; i++) {
        if (more_slots(u) < 0)
            return err_set(e, -ENOMEM, "no host memory for the vocabulary's trie");
        edge = slot_of(u, node << 8 | (unsigned char)s[i]);
        if (!edge->to) {
            if (u->n_nodes == MAX_NODES)
                return err_set(e, -ENOTSUP, "model.vocab: the tokens have more than %d prefixes",
                               MAX_NODES);
            *edge = (struct edge){ node << 8 | (unsigned char)s[i], u->n_nodes++, -1 };
        }
        node = edge->to;
    }
    if (edge) edge->id = id;
    return 0;
}

int
unigram_open(struct unigram *u, const struct vocab *v, struct err *e)
{
    double least = INFINITY;

    u->n_nodes = 1;
    for (uint32_t id = 0; id < v->n; id++) {
        const struct piece *p = vocab_piece(v, (token_id)id);

        TRY(add_piece(u, v->bytes + p->at, p->len, (token_id)id, e));
        least = MIN(least, u->score[id]);
    }
    u->n = v->n;
    u->unk_score = least - UNKNOWN_COSTS;
    return 0;
}

int
unigram_prepare(struct unigram *u, const struct vocab *v, struct err *e)
{
    if (array_grow(&u->best, &u->cap, WORD + 1, INT32_MAX, sizeof *u->best) < 0)
        return err_set(e, -ENOMEM, "no memory to split words");
    vocab_bytes(v, u->of_byte);
    return 0;
}

void
unigram_free(struct unigram *u)
{
    free(u->score);
    free(u->edge);
    free(u->best);
    *u = (struct unigram){ 0 };
}

static void
offer(struct best *b, double score, size_t from, token_id id)
{
    if (b->from >= 0 && !(score > b->score)) return;
    *b = (struct best){ score, (int32_t)from, id };
}

static void
find_best(struct unigram *u, const char *word, size_t n)
{
    struct best *best = u->best;
    size_t len;

    for (size_t i = 0; i <= n; i++) best[i].from = -1;
    best[0].score = 0;
    for (size_t at = 0; at < n; at += len) {
        int k = utf8_at(word + at, n - at);
        bool covered = false;
        uint32_t node = 0;

        len = k > 0 ? (size_t)k : 1;
        for (size_t end = at; end < n; end++) {
            const struct edge *edge = slot_of(u, node << 8 | (unsigned char)word[end]);

            if (!edge->to) break;
            node = edge->to;
            if (edge->id < 0) continue;
            offer(&best[end + 1], best[at].score + u->score[edge->id], at, edge->id);
            covered |= end + 1 == at + len;
        }
        if (!covered) offer(&best[at + len], best[at].score + u->unk_score, at, u->unk);
    }
}

/* Writes id to ids[*at - 1] and decrements *at: the tokens are found from the last to the first.
 * Returns false if *at is 0, because ids is full. */
static bool
put_before(token_id *ids, uint32_t *at, token_id id)
{
    if (*at == 0) return false;
    ids[--*at] = id;
    return true;
}

/* Puts the tokens of a run of unknown characters, word[n], before ids[*at]: the token with these
 * bytes if the vocabulary has one, else the byte tokens or the unknown token. */
static bool
put_unknown(const struct unigram *u, const struct vocab *v, const char *word, size_t n,
            token_id *ids, uint32_t *at)
{
    token_id whole = vocab_find(v, word, n);
    bool bytes = u->byte_fallback;

    for (size_t i = 0; i < n && bytes; i++) bytes = u->of_byte[(unsigned char)word[i]] >= 0;
    if (whole >= 0 || !bytes) return put_before(ids, at, whole >= 0 ? whole : u->unk);
    for (size_t i = n; i > 0; i--)
        if (!put_before(ids, at, u->of_byte[(unsigned char)word[i - 1]])) return false;
    return true;
}

int
unigram_word(struct unigram *u, const struct vocab *v, const char *word, size_t n, token_id *ids,
             uint32_t cap)
{
    uint32_t at = cap;

    TRY(array_grow(&u->best, &u->cap, n + 1, INT32_MAX, sizeof *u->best));
    find_best(u, word, n);
    for (size_t end = n; end > 0;) {
        size_t begin = (size_t)u->best[end].from;
        token_id id = u->best[end].id;

        if (id == u->unk) {
            while (begin > 0 && u->best[begin].id == u->unk) begin = (size_t)u->best[begin].from;
            if (!put_unknown(u, v, word + begin, end - begin, ids, &at)) return -EMSGSIZE;
        } else if (!put_before(ids, &at, id)) {
            return -EMSGSIZE;
        }
        end = begin;
    }
    memmove(ids, ids + at, (cap - at) * sizeof *ids);
    return (int)(cap - at);
}

bool
unigram_is_sound(const struct unigram *u, const struct vocab *v)
{
    uint32_t used = 0;

    if (u->n > v->n || u->n_slots < 4096 || u->n_slots & (u->n_slots - 1)) return false;
    if (u->n_nodes > MAX_NODES || u->unk < 0 || (uint32_t)u->unk >= u->n) return false;
    for (uint32_t i = 0; i < u->n_slots; i++) {
        const struct edge *edge = &u->edge[i];

        if (!edge->to) continue;
        used++;
        if (edge->to >= u->n_nodes || edge->id < -1 || edge->id >= (token_id)u->n) return false;
    }
    for (uint32_t i = 0; i < u->n; i++)
        if (isnan(u->score[i])) return false;
    return used <= u->n_slots / 2;
}

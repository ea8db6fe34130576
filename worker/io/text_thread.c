/* text_thread.c - the thread that tokenizes prompts and executes text calls, and its two queues. */
#include "worker/io/text_thread.h"

#include "include/lagan_wire.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* A queue of request slot indices with one writer and one reader. It can hold all slots. */
struct slot_queue {
    /* tail: release in push pairs with acquire in pop. head: only the reader uses it. */
    _Alignas(CACHE_LINE) _Atomic uint32_t tail;
    _Alignas(CACHE_LINE) _Atomic uint32_t head;
    uint32_t *at, mask;
    int fd; /* eventfd: readable after a push */
};

/* Tokens that a prompt has beyond one for each byte: of the prefix and of the post-processor. */
enum { MAX_ADDED = 256 };

struct text_thread {
    pthread_t thread;
    struct requests *requests;
    struct tokenizer *tokenizer;
    const struct chat *chat;
    char *chat_text; /* [chat_cap] rendered conversation, followed by memory to parse it */
    size_t chat_cap;
    token_id *too_many; /* [max_tokens] tokens of a prompt that has too many, to count them */
    uint32_t max_tokens;
    uint32_t prompt_cap;
    struct slot_queue to, from; /* slots given to the thread; slots that it has finished */
    _Atomic bool stop; /* release store in text_thread_stop(), acquire load in text_run() */
};

static int
slot_queue_open(struct slot_queue *s, uint32_t n, int flags)
{
    uint32_t size = 1;

    while (size < n) size *= 2;
    s->at = calloc(size, sizeof *s->at);
    s->mask = size - 1;
    s->fd = eventfd(0, EFD_CLOEXEC | flags);
    return s->at && s->fd >= 0 ? 0 : -ENOMEM;
}

static void
slot_queue_close(struct slot_queue *s)
{
    free(s->at);
    if (s->fd >= 0) close(s->fd);
}

static void
slot_queue_wake(struct slot_queue *s)
{
    uint64_t one = 1;

    while (write(s->fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

static void
slot_queue_push(struct slot_queue *s, uint32_t slot)
{
    uint32_t tail = atomic_load_explicit(&s->tail, memory_order_relaxed);

    s->at[tail & s->mask] = slot;
    atomic_store_explicit(&s->tail, tail + 1, memory_order_release);
    slot_queue_wake(s);
}

static bool
slot_queue_pop(struct slot_queue *s, uint32_t *slot)
{
    uint32_t head = atomic_load_explicit(&s->head, memory_order_relaxed);

    if (head == atomic_load_explicit(&s->tail, memory_order_acquire)) return false;
    *slot = s->at[head & s->mask];
    atomic_store_explicit(&s->head, head + 1, memory_order_relaxed);
    return true;
}

static void
encode_text(struct text_thread *x, struct worker_request *r)
{
    struct err e = { 0 };
    uint32_t cap = r->kind == REQUEST_GENERATE ? x->prompt_cap : x->requests->max_ids;
    const char *name = r->chat ? "messages" : "text", *text = r->chat ? x->chat_text : r->text;
    bool bare = r->chat || r->bare;
    int n = r->chat ? chat_render(x->chat, r->text, r->n_text, x->chat_text + x->chat_cap,
                                  x->chat_text, x->chat_cap, &e)
                    : (int)r->n_text;
    size_t n_text = (size_t)MAX(n, 0);

    if (n >= 0) n = tokenizer_encode(x->tokenizer, text, n_text, bare, r->ids, cap, &e);
    if (n >= 0) {
        r->n_ids = (uint32_t)n;
        return;
    }
    r->reason = n == -EMSGSIZE  ? LAGAN_E_TOO_LONG
                : n == -ENOTSUP ? LAGAN_E_UNSUPPORTED
                                : LAGAN_E_INVALID_REQUEST;
    if (n == -EMSGSIZE)
        n = tokenizer_encode(x->tokenizer, text, n_text, bare, x->too_many, x->max_tokens, &e);
    if (n >= 0) {
        r->n_prompt_tokens = (uint32_t)n;
        snprintf(r->why, sizeof r->why, "%s has %d tokens; the limit is %u", name, n, cap);
    } else if (r->chat) {
        snprintf(r->why, sizeof r->why, "%.190s", e.text);
    } else {
        snprintf(r->why, sizeof r->why, "text: %.150s", e.text);
    }
}

static void
decode_ids(struct text_thread *x, struct worker_request *r)
{
    int n = tokenizer_decode(x->tokenizer, r->ids, r->n_ids, r->bare, r->text,
                             x->requests->max_text_bytes);

    if (n >= 0) {
        r->n_text = (uint32_t)n;
        return;
    }
    r->reason = n == -EMSGSIZE ? LAGAN_E_TOO_LONG : LAGAN_E_INVALID_REQUEST;
    snprintf(r->why, sizeof r->why,
             n == -EMSGSIZE ? "the text of ids is longer than the limit of %u bytes"
                            : "ids has an id outside the vocabulary of %u tokens",
             n == -EMSGSIZE ? x->requests->max_text_bytes : tokenizer_size(x->tokenizer));
}

/* Replaces the ids by the lengths of their pieces, and makes the text of the pieces. */
static void
list_pieces(struct text_thread *x, struct worker_request *r)
{
    r->n_text = 0;
    for (uint32_t i = 0; i < r->n_ids; i++) {
        int n = tokenizer_piece_bytes(x->tokenizer, r->ids[i], r->text + r->n_text,
                                      x->requests->max_text_bytes - r->n_text);

        if (n < 0) {
            r->reason = LAGAN_E_TOO_LONG;
            snprintf(r->why, sizeof r->why, "the pieces of ids have more than %u bytes",
                     x->requests->max_text_bytes);
            return;
        }
        r->ids[i] = n;
        r->n_text += (uint32_t)n;
    }
}

static void
render_messages(struct text_thread *x, struct worker_request *r)
{
    struct err e = { 0 };
    int n = chat_render(x->chat, r->text, r->n_text, x->chat_text + x->chat_cap, x->chat_text,
                        x->requests->max_text_bytes, &e);

    if (n >= 0) {
        memcpy(r->text, x->chat_text, (size_t)n);
        r->n_text = (uint32_t)n;
        return;
    }
    r->reason = n == -EMSGSIZE  ? LAGAN_E_TOO_LONG
                : n == -ENOTSUP ? LAGAN_E_UNSUPPORTED
                                : LAGAN_E_INVALID_REQUEST;
    snprintf(r->why, sizeof r->why, "%.190s", e.text);
}

static void *
text_run(void *arg)
{
    static void (*const run[])(struct text_thread * x, struct worker_request * r) = {
        [REQUEST_GENERATE] = encode_text,   [REQUEST_TOKENIZE] = encode_text,
        [REQUEST_DETOKENIZE] = decode_ids,  [REQUEST_ID_BYTES] = list_pieces,
        [REQUEST_RENDER] = render_messages,
    };
    struct text_thread *x = arg;

    for (;;) {
        uint64_t count;
        uint32_t slot;

        while (read(x->to.fd, &count, sizeof count) < 0 && errno == EINTR) {
        }
        if (atomic_load_explicit(&x->stop, memory_order_acquire)) return NULL;
        while (slot_queue_pop(&x->to, &slot)) {
            struct worker_request *r = &x->requests->slot[slot];

            run[r->kind](x, r);
            slot_queue_push(&x->from, slot);
        }
    }
}

static struct text_thread *
text_thread_free(struct text_thread *x)
{
    slot_queue_close(&x->to);
    slot_queue_close(&x->from);
    free(x->chat_text);
    free(x->too_many);
    free(x);
    return NULL;
}

int
text_thread_start(struct text_thread **ret, struct requests *q, struct tokenizer *t,
                  const struct chat *chat, uint32_t prompt_cap, struct err *e)
{
    struct text_thread *x = calloc(1, sizeof *x);

    if (!x) return err_set(e, -ENOMEM, "no host memory for the text thread");
    *x = (struct text_thread){ .requests = q,
                               .tokenizer = t,
                               .chat = chat,
                               .prompt_cap = prompt_cap,
                               .to.fd = -1,
                               .from.fd = -1 };
    x->chat_cap = 2 * (size_t)q->max_text_bytes;
    x->max_tokens = q->max_text_bytes + MAX_ADDED;
    /* The kernel maps only the pages that the longest conversation so far has needed. */
    x->chat_text = malloc(x->chat_cap + q->max_text_bytes);
    x->too_many = malloc(x->max_tokens * sizeof *x->too_many);
    if (!x->chat_text || !x->too_many || slot_queue_open(&x->to, q->n, 0) < 0 ||
        slot_queue_open(&x->from, q->n, EFD_NONBLOCK) < 0 ||
        pthread_create(&x->thread, NULL, text_run, x)) {
        text_thread_free(x);
        return err_set(e, -ENOMEM, "cannot start the text thread: no memory or no thread is left");
    }
    *ret = x;
    return 0;
}

struct text_thread *
text_thread_stop(struct text_thread *x)
{
    if (!x) return NULL;
    atomic_store_explicit(&x->stop, true, memory_order_release);
    slot_queue_wake(&x->to);
    pthread_join(x->thread, NULL);
    return text_thread_free(x);
}

void
text_thread_give(struct text_thread *x, struct worker_request *r)
{
    r->state = REQUEST_TEXT;
    slot_queue_push(&x->to, r->slot);
}

struct worker_request *
text_thread_take(struct text_thread *x)
{
    uint32_t slot;

    return slot_queue_pop(&x->from, &slot) ? &x->requests->slot[slot] : NULL;
}

int
text_thread_fd(const struct text_thread *x)
{
    return x->from.fd;
}

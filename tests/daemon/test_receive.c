/* test_receive.c - invalid records are found before they are used; valid ones are stored. */
#include "daemon/ledger/histograms.h"
#include "daemon/request/kv_watch.h"
#include "daemon/request/lifecycle.h"
#include "daemon/request/receive.h"
#include "tests/daemon/receive_fixture.h"

#include <unistd.h>

static void
lies(uint16_t type, size_t n, const char *words)
{
    struct err e = { .text = "nothing" };

    if (record(type, n, &e) != -EBADMSG || !strstr(e.text, words)) {
        fail_msg("\"%s\", not \"%s\"", e.text, words);
    }
}

static void
valid_steps_are_stored(void **state)
{
    size_t n;
    struct err e;
    int32_t id;

    (void)state;
    step(request, 2, "ab", &n);
    assert_int_equal(record(REC_STEP, n, &e), 0);
    assert_int_equal(request->state, REQUEST_STREAMING);
    step(request, 1, "\xc3\xa4", &n);
    assert_int_equal(record(REC_STEP, n, &e), 0);
    assert_int_equal(request_n_tokens(request), 3);
    memcpy(&id, request->outputs.token.p + 4, 4);
    assert_int_equal(id, 11);
    assert_int_equal(request->outputs.text.n, 4);
    assert_memory_equal(request->outputs.text.p, "ab\xc3\xa4", 4);
    assert_true(request->pending);
}

static void
every_invalid_step_is_found(void **state)
{
    struct rec_out *o;
    size_t n;

    (void)state;
#define LIE(words, ...) \
    do { \
        o = step(request, 2, "ab", &n); \
        __VA_ARGS__; \
        lies(REC_STEP, n, words); \
    } while (0)
    LIE("does not have", o->ledger_index = 4000000);
    LIE("does not have", o->ledger_index = request->index + 1);
    LIE("does not have", o->gen++);
    LIE("first is 1, expected 0", o->first = 1);
    LIE("text_first is 1", o->text_first = 1);
    LIE("output", o->output = 1);
    LIE("has 0 tokens", o->n_tokens = 0);
    LIE("token id 100, but the vocabulary", memcpy(o + 1, &(int32_t){ VOCAB }, 4));
    LIE("token id 4294967295", memcpy(o + 1, &(int32_t){ -1 }, 4));
    LIE("UTF-8", ((char *)(o + 1))[8] = (char)0xff);
    LIE("ends inside", o->text_bytes = 4000);
    LIE("ends inside", o->text_bytes = UINT32_MAX);
    LIE("has_logprobs", o->has_logprobs = 2);
    LIE("has_logprobs", o->n_top = 3);
    LIE("its SUBMIT asks", o->has_logprobs = 1; o->text_bytes = 0);
    LIE("shorter", n = 8);
    LIE("ends inside", n -= 8);
    LIE("n_ent", ((struct rec_step *)buf.b)->n_ent = UINT32_MAX);
    LIE("does not have", request->dispatch.held = false);
    request->dispatch.held = true;
    LIE("has not sent the whole SUBMIT", w.requests.sending = request->index);
    w.requests.sending = REQUEST_NONE;
    assert_int_equal(request_n_tokens(request), 0);
    /* Entries before the violation are stored. */
    LIE("behind its last entry", n += 8);
    LIE("ends inside", ((struct rec_step *)buf.b)->n_ent = 2);
    assert_int_equal(request_n_tokens(request), 4);
}

/* The facts of the model are from the last worker that was READY. */
static void
token_ids_are_checked_against_the_workers_vocabulary(void **state)
{
    struct err e;
    size_t n;

    (void)state;
    d.facts[0].vocab = 10;
    step(request, 1, "", &n);
    assert_int_equal(record(REC_STEP, n, &e), 0);
    w.info.vocab = 10;
    step(request, 1, "", &n);
    lies(REC_STEP, n, "token id 10, but the vocabulary has 10");
}

static void
more_than_max_tokens_is_a_protocol_error(void **state)
{
    struct err e;
    size_t n;

    (void)state;
    for (int i = 0; i < MAX_TOKENS / 2; i++) {
        step(request, 2, "", &n);
        assert_int_equal(record(REC_STEP, n, &e), 0);
    }
    step(request, 1, "", &n);
    lies(REC_STEP, n, "more than its max_tokens of 8");
}

static void
logprobs_must_match_the_request(void **state)
{
    struct request *r = dispatched(2, 3, SUBMIT_LOGPROBS);
    struct rec_out *o;
    struct err e;
    size_t n;

    (void)state;
    step(r, 2, "x", &n);
    assert_int_equal(record(REC_STEP, n, &e), 0);
    assert_int_equal(r->outputs.logprob.n, 8);
    assert_int_equal(r->outputs.top.n, 48);
    o = step(r, 2, "x", &n);
    o->n_top = UINT32_MAX;
    lies(REC_STEP, n, "n_top");
    o = step(r, 2, "x", &n);
    o->n_top = 2;
    lies(REC_STEP, n, "");
}

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ /* malloc() fails from there on */
/* The client gets what was stored of each list; lists of different length would be read beyond
 * their end. */
static void
out_of_memory_ends_only_the_request(void **state)
{
    struct request *r = dispatched(2, 3, SUBMIT_LOGPROBS | SUBMIT_PROMPT_LOGPROBS), *other;
    struct rec_prompt *p = (struct rec_prompt *)buf.b;
    struct err e;
    size_t n;

    (void)state;
    *p = (struct rec_prompt){ .ledger_index = r->index, .gen = r->gen, .n = 2, .n_top = 3 };
    r->outputs.prompt_top.n = PTRDIFF_MAX; /* more than that was not stored */
    assert_int_equal(record(REC_PROMPT_LOGPROBS, sizeof *p + 2 * 8 + 2 * 24, &e), 0);
    r->outputs.prompt_top.n = 0;
    assert_int_equal(r->result.reason, LAGAN_E_OUT_OF_MEMORY);
    assert_int_equal(r->outputs.prompt_logprob.n + r->outputs.prompt_id.n, 0);

    other = dispatched(3, 3, SUBMIT_LOGPROBS);
    step(other, 2, "ab", &n);
    assert_int_equal(record(REC_STEP, n, &e), 0);
    other->outputs.top.n = PTRDIFF_MAX;
    step(other, 1, "c", &n);
    assert_int_equal(record(REC_STEP, n, &e), 0);
    assert_int_equal(other->outputs.top.n, PTRDIFF_MAX);
    other->outputs.top.n = 48;
    assert_int_equal(other->result.reason, LAGAN_E_OUT_OF_MEMORY);
    assert_int_equal(other->outputs.token.n, 8);
    assert_int_equal(other->outputs.text.n, 2);
    assert_int_equal(other->outputs.logprob.n, 8);
}
#endif

static void
finish_ends_the_request_and_its_figures_are_checked(void **state)
{
    struct rec_finish *f = (struct rec_finish *)buf.b;
    struct err e;
    size_t n;

    (void)state;
    step(request, 2, "", &n);
    assert_int_equal(record(REC_STEP, n, &e), 0);
    *f = (struct rec_finish){ .ledger_index = request->index,
                              .gen = request->gen,
                              .reason = LAGAN_FINISH_EOS,
                              .n_tokens = 3 };
    lies(REC_FINISH, sizeof *f, "n_tokens is 3, expected 2");
    f->n_tokens = 2;
    lies(REC_FINISH, sizeof *f - 8, "expected 64");
    f->reason = 7;
    lies(REC_FINISH, sizeof *f, "reason 7 is unknown");
    f->reason = LAGAN_FINISH_EOS;
    f->output = 1;
    lies(REC_FINISH, sizeof *f, "output");
    f->output = 0;
    f->stop = 1;
    lies(REC_FINISH, sizeof *f, "stop is 1, but request");
    f->stop = 0;
    assert_int_equal(record(REC_FINISH, sizeof *f, &e), 0);
    assert_int_equal(request->state, REQUEST_ENDED);
    assert_false(request->dispatch.held);
    assert_int_equal(w.requests.n, 0);
    assert_int_equal(w.requests.tokens, 0);
    lies(REC_FINISH, sizeof *f, "does not have"); /* once */
}

static void
reject_must_come_before_the_first_token(void **state)
{
    struct rec_reject *j = (struct rec_reject *)buf.b;
    struct err e;
    size_t n;

    (void)state;
#define REJECT(why) \
    *j = (struct rec_reject){ request->index, request->gen, why, 5, 0 }; \
    memcpy(j + 1, "sorry", 5)
    REJECT(LAGAN_FINISH_EOS);
    lies(REC_REJECT, sizeof *j + 8, "error code 1 is unknown");
    REJECT(LAGAN_E_TOO_LONG);
    lies(REC_REJECT, sizeof *j, "bytes follow");
    step(request, 1, "", &n);
    assert_int_equal(record(REC_STEP, n, &e), 0);
    REJECT(LAGAN_E_TOO_LONG);
    lies(REC_REJECT, sizeof *j + 8, "after the first generated token");
    request->state = REQUEST_DISPATCHED; /* as if a previous worker had sent them */
    assert_int_equal(record(REC_REJECT, sizeof *j + 8, &e), 0);
    assert_int_equal(request->result.reason, LAGAN_E_TOO_LONG);
    assert_string_equal(request->result.message, "sorry");
}

static void
prompt_logprobs_come_in_order_before_tokens(void **state)
{
    struct request *r = dispatched(2, 1, SUBMIT_PROMPT_LOGPROBS);
    struct rec_prompt *p = (struct rec_prompt *)buf.b;
    struct err e;
    size_t n;

    (void)state;
    memset(&buf, 0, sizeof buf);
    *p = (struct rec_prompt){ .ledger_index = r->index, .gen = r->gen, .n = 2, .n_top = 1 };
    assert_int_equal(record(REC_PROMPT_LOGPROBS, sizeof *p + 32, &e), 0);
    lies(REC_PROMPT_LOGPROBS, sizeof *p + 32, "first is 0, expected 2");
    p->first = 2;
    lies(REC_PROMPT_LOGPROBS, sizeof *p + 16, "length");
    p->n_top = 2;
    lies(REC_PROMPT_LOGPROBS, sizeof *p + 48, "did not ask");
    p->n = UINT32_MAX;
    lies(REC_PROMPT_LOGPROBS, sizeof *p + 40, "the limits are");
    step(r, 1, "", &n);
    assert_int_equal(record(REC_STEP, n, &e), 0);
    *p = (struct rec_prompt){
        .ledger_index = r->index, .gen = r->gen, .first = 2, .n = 1, .n_top = 1
    };
    lies(REC_PROMPT_LOGPROBS, sizeof *p + 16, "after the first generated token");
}

static void
ready_comes_once_and_is_validated(void **state)
{
    struct rec_ready *y = (struct rec_ready *)buf.b;
    struct err e;

    (void)state;
    w.super.state = SUPER_LOADING;
#define READY \
    *y = (struct rec_ready){ .vocab = 50, .max_len = 9, .n_slots = 2, .name_bytes = 2 }; \
    memcpy(y + 1, "t5", 2)
    READY;
    y->vocab = 0;
    lies(REC_READY, sizeof *y + 8, "vocab 0");
    READY;
    y->name_bytes = 200;
    lies(REC_READY, sizeof *y + 8, "name_bytes 200");
    READY;
    y->n_slots = 1 << 20;
    lies(REC_READY, sizeof *y + 8, "n_slots 1048576");
    READY;
    y->beams = LAGAN_MAX_BEAMS + 1;
    lies(REC_READY, sizeof *y + 8, "beams 17");
    READY;
    y->device_bytes = 20;
    lies(REC_READY, sizeof *y + 8, "device_bytes 20");
    READY;
    memset(y->dtype, 'x', sizeof y->dtype);
    lies(REC_READY, sizeof *y + 8, "dtype");
    READY;
    y->device_bytes = 4;
    memcpy((char *)(y + 1) + 8, "cpu!", 4);
    strcpy(y->dtype, "fp32");
    assert_int_equal(record(REC_READY, sizeof *y + 16, &e), 0);
    assert_string_equal(w.info.device, "cpu!");
    assert_string_equal(d.facts[0].dtype, "fp32");
    assert_int_equal(w.super.state, SUPER_READY);
    assert_int_equal(w.info.vocab, 50);
    assert_int_equal(d.facts[0].vocab, 50);
    assert_string_equal(d.facts[0].family, "t5");
    lies(REC_READY, sizeof *y + 8, "READY was sent twice");
}

static void
records_of_a_cancelled_request_are_validated_and_dropped(void **state)
{
    struct rec_finish *f = (struct rec_finish *)buf.b;
    struct rec_out *o;
    struct err e;
    uint32_t index = request->index;
    size_t n;

    (void)state;
    lifecycle_end(&d, request, LAGAN_E_CANCELLED, "by the test");
    step(request, 2, "ab", &n);
    assert_int_equal(record(REC_STEP, n, &e), 0);
    assert_int_equal(request_n_tokens(request), 0);
    o = step(request, 1, "", &n);
    o->first = 0;
    lies(REC_STEP, n, "first is 0, expected 2");
    *f = (struct rec_finish){ .ledger_index = request->index,
                              .gen = request->gen,
                              .reason = LAGAN_FINISH_CANCELLED,
                              .n_tokens = 2 };
    assert_int_equal(record(REC_FINISH, sizeof *f, &e), 0);
    assert_non_null(ledger_request(d.ledger, index)); /* its client does not have the ERROR yet */
}

static void
tensors_come_in_order_and_are_delivered_once(void **state)
{
    struct request *r = dispatched(2, 0, SUBMIT_LOGITS);
    struct rec_tensor *t = (struct rec_tensor *)buf.b;
    const struct output_tensor *kept = &r->outputs.tensor[LAGAN_TENSOR_LOGITS - 1];
    struct err e;

    (void)state;
    memset(&buf, 0, sizeof buf);
    *t = (struct rec_tensor){
        .ledger_index = r->index, .gen = r->gen, .n = 4, .cols = 4, .kind = LAGAN_TENSOR_LOGITS
    };
    ((float *)(t + 1))[3] = 1.5f;
    assert_int_equal(record(REC_TENSOR, sizeof *t + 16, &e), 0);
    assert_int_equal(kept->value.n, 16);
    t->first = 2; /* the next worker starts again: two values are delivered or will be */
    ((float *)(t + 1))[3] = 2.5f;
    assert_int_equal(record(REC_TENSOR, sizeof *t + 16, &e), 0);
    assert_int_equal(kept->value.n, 24);
    assert_memory_equal(kept->value.p + 20, &(float){ 2.5f }, 4);
    t->first = 7;
    lies(REC_TENSOR, sizeof *t + 16, "starts at value 7 of request");
    t->first = 6;
    lies(REC_TENSOR, sizeof *t + 8, "length");
    t->cols = 5;
    lies(REC_TENSOR, sizeof *t + 16, "changed from 4 to 5");
    t->cols = 4;
    t->kind = LAGAN_TENSOR_ENCODER_OUTPUT;
    lies(REC_TENSOR, sizeof *t + 16, "did not ask");
    t->kind = 3;
    lies(REC_TENSOR, sizeof *t + 16, "kind is 3");
    t->kind = LAGAN_TENSOR_LOGITS;
    config.o.tensor_bytes = 36;
    assert_int_equal(record(REC_TENSOR, sizeof *t + 16, &e), 0);
    assert_int_equal(r->result.reason, LAGAN_E_TOO_LONG);
    assert_non_null(strstr(r->result.message, "limits.tensor_bytes"));
}

/* Random bytes in every record are validated and never read past the end (sanitizers). */
static void
publish(struct channel *theirs, uint16_t type, size_t n)
{
    void *to;

    assert_int_equal(ring_reserve(&theirs->out, type, 0, (uint32_t)n, 0, &to), 0);
    memcpy(to, buf.b, n);
    ring_publish(&theirs->out);
}

/* Also if the worker is killed for another reason. */
static void
records_after_a_protocol_error_are_ignored(void **state)
{
    static const uint8_t id[16] = { 1 };
    struct channel theirs;
    struct rec_out *o;
    struct err e;
    size_t n;
    int doorbell;

    (void)state;
    assert_int_equal(channel_make(&w.channel, 0, 1, id, 13, 13, &doorbell, &e), 0);
    assert_int_equal(
        channel_attach(&theirs, dup(w.channel.d.fd), dup(w.channel.w.fd), doorbell, 1, &e), 0);
    w.alive = true;
    w.super.suspect = DEATH_SILENT;
    step(request, 1, "", &n);
    publish(&theirs, REC_STEP, n);
    o = step(request, 1, "", &n);
    o->first = 7;
    publish(&theirs, REC_STEP, n);
    o = step(request, 1, "", &n);
    o->first = 1;
    publish(&theirs, REC_STEP, n);
    for (int i = 0; i < 3; i++) assert_false(worker_receive(&w));
    worker_receive_rest(&w);
    assert_int_equal(request->outputs.n_received, 1);
    channel_close(&theirs);
    channel_close(&w.channel);
}

static void
random_records_do_no_harm(void **state)
{
    (void)state;
    test_seed();
    for (int i = 0; i < 50000; i++) {
        static const uint16_t types[] = { REC_STEP,  REC_FINISH,          REC_REJECT,
                                          REC_READY, REC_PROMPT_LOGPROBS, REC_TEXT_DONE,
                                          REC_PHASE, REC_TENSOR };
        uint16_t type = types[test_below(ARRAY_LEN(types))];
        size_t n = test_below(16) * 8;
        char *exact = malloc(n + 8);
        struct ring_record rec = { type, 0, (uint32_t)n, exact };
        struct err e;

        for (size_t k = 0; k < n; k++) exact[k] = (char)(test_below(3) ? 0 : test_below(256));
        if (n >= 8 && test_below(2)) {
            memcpy(exact + (type == REC_STEP && n > 24 ? 16 : 0),
                   (uint32_t[]){ request->index, request->gen }, 8);
        }
        if (type == REC_STEP && n > 16) memcpy(exact + 12, &(uint32_t){ 1 }, 4);
        w.super.state = SUPER_READY;
        if (receive_record(&w, &rec, &e) == 0 && request->state == REQUEST_ENDED) {
            request->dispatch.held = false;
            w.requests.n = w.requests.n_seqs = 1;
            request = dispatched(1000 + (uint64_t)i, 0, 0);
            w.requests.tokens = request->dispatch.load = request->accounting.n_tokens;
            w.requests.n = w.requests.n_seqs = 1;
        }
        free(exact);
        if (ledger_counts(d.ledger).open == ledger_counts(d.ledger).capacity) {
            tear_down(NULL);
            set_up(NULL);
        }
    }
}

/* Makes KV_EVENTS with n events in buf: block i is { 1 + i, 9 } in group 0. Returns its bytes. */
static size_t
kv_events(uint32_t flags, uint64_t lost, uint32_t n, uint8_t op, struct rec_kv_event **event)
{
    struct rec_kv_events *h = (struct rec_kv_events *)buf.b;
    struct rec_kv_event *v = (struct rec_kv_event *)(h + 1);

    memset(buf.b, 0, sizeof buf.b);
    *h = (struct rec_kv_events){ n, flags, lost };
    for (uint32_t i = 0; i < n; i++)
        v[i] = (struct rec_kv_event){ .name = { 1 + i, 9 }, .op = op, .n_tokens = 4 };
    if (event) *event = v;
    return sizeof *h + n * sizeof *v;
}

static void
assert_events(uint64_t first, uint64_t next, uint32_t n_blocks)
{
    struct held_block b[64];
    uint64_t has_first, has_next;
    uint32_t at = 0;

    kv_watch_range(&w, &has_first, &has_next);
    assert_int_equal(has_first, first);
    assert_int_equal(has_next, next);
    assert_int_equal(kv_watch_blocks(&w, &at, b, 64), n_blocks);
}

static void
watch(uint32_t n_kept)
{
    config.n_models = 1;
    opt_defaults(model_opts, &config.model[0].keys);
    config.model[0].keys.kv_reuse = true;
    config.model[0].keys.kv_events = n_kept;
    d.kv_watch = kv_watch_new(&config);
    assert_non_null(d.kv_watch);
}

static void
kv_events_are_kept_and_numbered(void **state)
{
    const uint32_t whole = KV_EVENTS_SNAPSHOT | KV_EVENTS_BEGIN | KV_EVENTS_END;
    struct rec_kv_event *v;
    struct err e;

    (void)state;
    watch(4);
    assert_int_equal(record(REC_KV_EVENTS, kv_events(whole, 0, 2, 0, NULL), &e), 0);
    assert_events(3, 3, 2); /* readers begin with the blocks */
    assert_int_equal(record(REC_KV_EVENTS, kv_events(0, 0, 3, 0, NULL), &e), 0);
    assert_events(3, 6, 3);
    assert_int_equal(kv_watch_at(&w, 5)->e.name[0], 3);
    assert_int_equal(record(REC_KV_EVENTS, kv_events(0, 0, 2, 1, &v), &e), 0);
    assert_events(4, 8, 1); /* the log keeps 4 */
    assert_int_equal(kv_watch_at(&w, 7)->e.op, 1);
    /* 10 events were lost: two gaps and a snapshot in two parts, with a change in between */
    assert_int_equal(
        record(REC_KV_EVENTS, kv_events(KV_EVENTS_SNAPSHOT | KV_EVENTS_BEGIN, 10, 2, 0, NULL), &e),
        0);
    assert_events(19, 19, 2);
    assert_int_equal(record(REC_KV_EVENTS, kv_events(0, 0, 1, 1, NULL), &e), 0);
    assert_events(19, 20, 1);
    assert_int_equal(
        record(REC_KV_EVENTS, kv_events(KV_EVENTS_SNAPSHOT | KV_EVENTS_END, 0, 3, 0, NULL), &e), 0);
    assert_events(21, 21, 3);
    kv_watch_lost(&w);
    assert_events(22, 22, 0);
    d.kv_watch = kv_watch_free(d.kv_watch);
}

static void
invalid_kv_events_are_found(void **state)
{
    struct rec_kv_event *v;
    size_t n;

    (void)state;
    watch(0);
    lies(REC_KV_EVENTS, kv_events(0, 0, 1, 0, NULL), "kv.events is 0");
    d.kv_watch = kv_watch_free(d.kv_watch);
    watch(4);
    lies(REC_KV_EVENTS, 8, "too short");
    n = kv_events(0, 0, 2, 0, NULL);
    lies(REC_KV_EVENTS, n - 8, "of 88 bytes has 2 events");
    lies(REC_KV_EVENTS, kv_events(8, 0, 0, 0, NULL), "flags 0x8");
    lies(REC_KV_EVENTS, kv_events(KV_EVENTS_END, 0, 0, 0, NULL), "flags 0x4");
    lies(REC_KV_EVENTS, kv_events(KV_EVENTS_SNAPSHOT, 0, 0, 0, NULL), "outside a snapshot");
    lies(REC_KV_EVENTS, kv_events(0, 3, 0, 0, NULL), "lost 3");
#define BAD(field, value, words) \
    n = kv_events(0, 0, 2, 0, &v); \
    v[1].field = value; \
    lies(REC_KV_EVENTS, n, words)
    BAD(op, 3, "op 3");
    BAD(group, SHM_MAX_GROUPS, "group 8");
    BAD(tier, 2, "tier 2");
    BAD(why, 5, "why 5");
    BAD(priority, 101, "priority 101");
    BAD(n_tokens, 0, "0 tokens");
    lies(REC_KV_EVENTS, kv_events(KV_EVENTS_SNAPSHOT | KV_EVENTS_BEGIN, 0, 1, 1, NULL),
         "in a snapshot");
    d.kv_watch = kv_watch_free(d.kv_watch);
}

static void
latencies_are_counted_for_each_request(void **state)
{
    struct histograms *h = d.histograms = calloc(1, sizeof *h);
    struct rec_finish *f = (struct rec_finish *)buf.b;
    struct err e;
    size_t n;

    (void)state;
    d.now = 10 * NSEC_S;
    request->terms.accepted = 9 * NSEC_S;
    step(request, 1, "", &n);
    assert_int_equal(record(REC_STEP, n, &e), 0);
    d.now += 3 * NSEC_MS;
    step(request, 2, "", &n);
    assert_int_equal(record(REC_STEP, n, &e), 0);
    *f = (struct rec_finish){ .ledger_index = request->index,
                              .gen = request->gen,
                              .reason = LAGAN_FINISH_LENGTH,
                              .n_tokens = 3,
                              .n_prompt_tokens = 7,
                              .scheduled_ns = 9 * NSEC_S + 100 * NSEC_MS };
    assert_int_equal(record(REC_FINISH, sizeof *f, &e), 0);
#define SUM(name) h->of[0][HISTOGRAM_##name].sum
    assert_int_equal(SUM(time_to_first_token_seconds), NSEC_S);
    assert_int_equal(SUM(inter_token_latency_seconds), 3 * NSEC_MS);
    assert_int_equal(h->of[0][HISTOGRAM_inter_token_latency_seconds].n, 2);
    /* limits: 0.1, 0.2, 0.5, 1, 2 ms: 1.5 ms is above the limit of bucket 3 */
    assert_int_equal(h->of[0][HISTOGRAM_inter_token_latency_seconds].bucket[4], 2);
    assert_int_equal(SUM(request_queue_time_seconds), 100 * NSEC_MS);
    assert_int_equal(SUM(request_prefill_time_seconds), 900 * NSEC_MS);
    assert_int_equal(SUM(e2e_request_latency_seconds), NSEC_S + 3 * NSEC_MS);
    assert_int_equal(SUM(request_prompt_tokens), 7);
    assert_int_equal(SUM(request_generation_tokens), 3);
    free(h);
    d.histograms = NULL;
}

int
main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(kv_events_are_kept_and_numbered),
        T(invalid_kv_events_are_found),
        T(latencies_are_counted_for_each_request),
        T(valid_steps_are_stored),
        T(every_invalid_step_is_found),
        T(token_ids_are_checked_against_the_workers_vocabulary),
        T(more_than_max_tokens_is_a_protocol_error),
        T(logprobs_must_match_the_request),
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
        T(out_of_memory_ends_only_the_request),
#endif
        T(finish_ends_the_request_and_its_figures_are_checked),
        T(reject_must_come_before_the_first_token),
        T(prompt_logprobs_come_in_order_before_tokens),
        T(ready_comes_once_and_is_validated),
        T(records_of_a_cancelled_request_are_validated_and_dropped),
        T(tensors_come_in_order_and_are_delivered_once),
        T(records_after_a_protocol_error_are_ignored),
        T(random_records_do_no_harm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

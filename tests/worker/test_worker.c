/* test_worker.c - lagan-worker with the test in lagand's place at the rings.
 *
 * READY describes the model, requests return tokens, and a corrupt ring or the exit of lagand ends
 * the worker.
 */
#include "tests/test.h"
#include "tests/worker/harness.h"

#include "base/clock.h"
#include "include/lagan_wire.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const options[] = { "--kv.memory=4MiB", "--max_num_seqs=4", "--threads=1",
                                       "--dtype=fp32", NULL };

static void
start(struct harness *p)
{
    struct rec_ready ready;

    harness_start(p, "tests/data/golden/llama2", options, NULL);
    harness_wait_ready(p, &ready);
}

enum { TAIL_IDS = 264 };

/* The last n_done of the ids are delivered tokens of a previous worker. eos: end-of-sequence id;
 * -1: none. */
static void
submit_flagged(struct harness *p, uint32_t row, const int32_t *ids, uint32_t n, uint32_t n_done,
               int32_t eos, uint32_t min_tokens, uint32_t max_tokens, uint8_t flags)
{
    struct rec_submit s = {
        .ledger_index = row,
        .gen = 1,
        .id = 1000 + row,
        .n_prompt = n - n_done,
        .n_done = n_done,
        .min_tokens = min_tokens,
        .max_tokens = max_tokens,
        .top_p = 1,
        .repetition_penalty = 1,
        .priority = 0.5f,
        .forced_bos = -2,
        .forced_eos = -2,
        .n_eos = eos < 0 ? 0xffff : 1,
        .flags = flags | (eos < 0 ? SUBMIT_IGNORE_EOS : 0),
    };
    uint32_t done_at = ROUND_UP(s.n_prompt, 2u), eos_at = done_at + ROUND_UP(n_done, 2u);
    int32_t tail[TAIL_IDS] = { 0 };

    assert_true(eos_at + 2 <= TAIL_IDS);
    memcpy(tail, ids, s.n_prompt * sizeof *ids);
    memcpy(tail + done_at, ids + s.n_prompt, n_done * sizeof *ids);
    tail[eos_at] = eos;
    harness_submit(p, &s, tail, (eos_at + (eos < 0 ? 0 : 2)) * (uint32_t)sizeof *tail);
}

static void
submit_rest(struct harness *p, uint32_t row, const int32_t *ids, uint32_t n, uint32_t n_done,
            int32_t eos, uint32_t min_tokens, uint32_t max_tokens)
{
    submit_flagged(p, row, ids, n, n_done, eos, min_tokens, max_tokens, 0);
}

static void
submit(struct harness *p, uint32_t row, const int32_t *ids, uint32_t n, uint32_t max_tokens)
{
    submit_rest(p, row, ids, n, 0, -1, 0, max_tokens);
}

static void
request_returns_its_tokens_in_order_and_one_finish(void **state)
{
    const int32_t ids[] = { 1, 5, 9 };
    struct harness p;
    struct rec_ready ready;
    const struct ring_record *r;
    uint32_t tokens = 0;
    void *drain;
    int status;

    (void)state;
    harness_start(&p, "tests/data/golden/llama2", options, NULL);
    harness_wait_ready(&p, &ready);
    assert_int_equal(ready.vocab, 320);
    assert_int_equal(ready.max_len, 256);
    assert_int_equal(ready.max_source, 0);
    assert_int_equal(ready.has_text, 0);
    submit(&p, 3, ids, 3, 12);
    while ((r = harness_next(&p)) && r->type == REC_STEP) {
        struct rec_step s;
        struct rec_out o;
        int32_t token;

        memcpy(&s, r->data, sizeof s);
        assert_int_equal(s.n_ent, 1);
        memcpy(&o, (const char *)r->data + sizeof s, sizeof o);
        memcpy(&token, (const char *)r->data + sizeof s + sizeof o, sizeof token);
        assert_int_equal(o.ledger_index, 3);
        assert_int_equal(o.gen, 1);
        assert_int_equal(o.first, tokens);
        assert_int_equal(o.n_tokens, 1);
        assert_true(token >= 0 && token < 320);
        tokens++;
    }
    assert_int_equal(tokens, 12);
    assert_non_null(r);
    assert_int_equal(r->type, REC_FINISH);
    assert_int_equal(((const struct rec_finish *)r->data)->reason, LAGAN_FINISH_LENGTH);
    assert_int_equal(((const struct rec_finish *)r->data)->n_tokens, 12);
    assert_int_equal(((const struct rec_finish *)r->data)->n_prompt_tokens, 3);

    assert_int_equal(ring_reserve(&p.channel.out, REC_DRAIN, 0, 0, 0, &drain), 0);
    channel_publish(&p.channel);
    status = harness_wait_exit(&p);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    harness_close(&p);
}

static void
ready_has_the_models_default_number_of_beams(void **state)
{
    static const char *const small[] = { "--max_num_seqs=4", "--kv.memory=4MiB", "--threads=1",
                                         NULL };
    struct rec_ready ready;
    struct harness p;

    (void)state;
    harness_start(&p, "tests/data/golden/bart", small, NULL);
    harness_wait_ready(&p, &ready);
    assert_int_equal(ready.beams, 4);
    harness_kill(&p, &(struct harness_arenas){ 0 });
    harness_close(&p);
}

static bool
quiet(struct harness *p, int ms)
{
    for (nsec until = clock_now() + ms * NSEC_MS; clock_now() < until; poll(NULL, 0, 5))
        if (!ring_empty(&p->channel.in)) return false;
    return true;
}

/* Reads tokens of STEP records from index `at` until there are `most`, or if most is 0 until no
 * record has arrived for 300 ms. */
static uint32_t
take_tokens(struct harness *p, uint32_t at, uint32_t most, int32_t *token)
{
    while (most ? at < most : !quiet(p, 300)) {
        const struct ring_record *r = harness_next(p);
        struct rec_out o;

        assert_non_null(r);
        if (r->type == REC_FINISH) break;
        assert_int_equal(r->type, REC_STEP);
        memcpy(&o, (const char *)r->data + sizeof(struct rec_step), sizeof o);
        assert_int_equal(o.first, at);
        memcpy(&token[at++], (const char *)r->data + sizeof(struct rec_step) + sizeof o, 4);
    }
    return at;
}

static void
suspended_request_resumes_with_the_same_tokens(void **state)
{
    enum { TOKENS = 200 };
    const int32_t ids[] = { 1, 5, 9 };
    int32_t undisturbed[TOKENS], token[TOKENS], all[3 + TOKENS];
    struct harness p;
    uint32_t n, n_finish, row = 2;

    (void)state;
    start(&p);
    submit(&p, 1, ids, 3, TOKENS);
    take_tokens(&p, 0, TOKENS, undisturbed);
    assert_int_equal(harness_finish(&p, &n_finish), LAGAN_FINISH_LENGTH);

    for (n = TOKENS; n == TOKENS; row++) { /* again if it ended before the suspend */
        submit(&p, row, ids, 3, TOKENS);
        harness_suspend(&p, row, true);
        n = take_tokens(&p, 0, 0, token); /* tokens of steps in flight */
    }
    submit(&p, 1, ids, 3, 4); /* other requests continue */
    assert_int_equal(harness_finish(&p, &n_finish), LAGAN_FINISH_LENGTH);
    harness_suspend(&p, row - 1, false);
    take_tokens(&p, n, TOKENS, token);
    assert_int_equal(harness_finish(&p, &n_finish), LAGAN_FINISH_LENGTH);
    assert_memory_equal(token, undisturbed, sizeof token);

    memcpy(all, ids, sizeof ids);
    memcpy(all + 3, undisturbed, 20 * sizeof *all);
    /* resumed and suspended */
    submit_flagged(&p, row, all, 23, 20, -1, 0, TOKENS, SUBMIT_SUSPENDED);
    assert_true(quiet(&p, 300));
    harness_suspend(&p, row, false);
    take_tokens(&p, 20, TOKENS, token);
    assert_memory_equal(token, undisturbed, sizeof token);
    kill(p.pid, SIGKILL);
    harness_wait_exit(&p);
    harness_close(&p);
}

/* Returns the time of a request with logits, read every 10 ms, with a response ring of 1 << log2
 * bytes. */
static nsec
time_slow_reads(uint32_t log2, uint32_t n_tokens, uint32_t *n_reads)
{
    const int32_t ids[] = { 1, 5, 9 };
    struct harness p;
    uint32_t n = 0;
    nsec since;

    harness_ring(log2);
    start(&p);
    harness_ring(20);
    submit_flagged(&p, 1, ids, 3, 0, -1, 0, n_tokens, SUBMIT_LOGITS);
    since = clock_now();
    for (*n_reads = 0; n < n_tokens; (*n_reads)++) {
        struct ring_record rec;

        usleep(10000);
        while (ring_peek(&p.channel.in, &rec) > 0) n += rec.type == REC_STEP;
        channel_release(&p.channel);
    }
    since = clock_now() - since;
    kill(p.pid, SIGKILL);
    harness_wait_exit(&p);
    harness_close(&p);
    return since;
}

/* If the end of a step did not wake the worker, each full ring would cost 0.5 s. */
static void
worker_continues_as_soon_as_a_full_ring_is_read(void **state)
{
    enum { TOKENS = 200, LOG2 = 14, FULL = 10 };
    uint32_t n;
    nsec alone = time_slow_reads(20, TOKENS, &n), full = time_slow_reads(LOG2, TOKENS, &n);

    (void)state;
    print_message("read %u times in %.2f s, without a full ring in %.2f s\n", n,
                  (double)full / NSEC_S, (double)alone / NSEC_S);
    assert_true(n > FULL && full < 2 * alone + FULL * NSEC_S / 4);
}

static void
suspended_request_releases_its_slot_and_resumes_unchanged(void **state)
{
    enum { TOKENS = 200 };
    static const char *const one_slot[] = { "--kv.memory=4MiB", "--max_num_seqs=1", "--threads=1",
                                            "--dtype=fp32", NULL };
    const int32_t ids[] = { 1, 5, 9 };
    int32_t undisturbed[TOKENS], token[TOKENS];
    uint32_t n, n_finish, row = 2;
    struct rec_ready ready;
    struct harness p;

    (void)state;
    harness_start(&p, "tests/data/golden/llama2", one_slot, NULL);
    harness_wait_ready(&p, &ready);
    submit(&p, 1, ids, 3, TOKENS);
    take_tokens(&p, 0, TOKENS, undisturbed);
    assert_int_equal(harness_finish(&p, &n_finish), LAGAN_FINISH_LENGTH);
    for (n = TOKENS; n == TOKENS; row++) { /* again if it ended before the suspend */
        submit(&p, row, ids, 3, TOKENS);
        harness_suspend(&p, row, true);
        n = take_tokens(&p, 0, 0, token);
    }
    submit(&p, 1, ids, 3, 4);
    assert_int_equal(harness_finish(&p, &n_finish), LAGAN_FINISH_LENGTH);
    harness_suspend(&p, row - 1, false);
    take_tokens(&p, n, TOKENS, token);
    assert_int_equal(harness_finish(&p, &n_finish), LAGAN_FINISH_LENGTH);
    assert_int_equal(n_finish, TOKENS);
    assert_memory_equal(token, undisturbed, sizeof token);
    kill(p.pid, SIGKILL);
    harness_wait_exit(&p);
    harness_close(&p);
}

static void
request_resumed_after_its_last_token_ends_at_once(void **state)
{
    int32_t ids[256] = { 1, 5, 9, 7, 8 };
    struct harness p;
    uint32_t n;

    (void)state;
    for (uint32_t i = 5; i < ARRAY_LEN(ids); i++) ids[i] = 3;
    start(&p);
    submit_rest(&p, 1, ids, 5, 2, 8, 0, 20); /* end-of-sequence was delivered, FINISH was not */
    assert_int_equal(harness_finish(&p, &n), LAGAN_FINISH_EOS);
    assert_int_equal(n, 2);
    assert_int_equal(((const struct rec_finish *)p.rec.data)->n_prompt_tokens, 3);
    submit_rest(&p, 2, ids, 5, 2, 8, 2, 6); /* below min_tokens: continues */
    harness_finish(&p, &n);
    assert_true(n > 2);
    submit_rest(&p, 3, ids, 256, 251, -1, 0, 300); /* at the model's length */
    assert_int_equal(harness_finish(&p, &n), LAGAN_FINISH_LENGTH);
    assert_int_equal(n, 251);
    kill(p.pid, SIGKILL);
    harness_wait_exit(&p);
    harness_close(&p);
}

static void
arenas_arrive_complete_on_the_fd_channel(void **state)
{
    struct harness p;
    struct rec_ready ready;
    struct fd_channel_note note;
    struct err e;
    bool kv = false;
    int fd;

    (void)state;
    harness_start(&p, "tests/data/golden/llama2", options, NULL);
    harness_wait_ready(&p, &ready);
    while (fd_channel_take(p.fd_channel, &note, &fd, &e) > 0) {
        assert_true(note.flags & FD_CHANNEL_COMPLETE);
        assert_true(note.bytes > 0);
        if (!strcmp(note.name, "kv")) kv = note.bytes == ready.kv_bytes;
        close(fd);
    }
    assert_true(kv);
    kill(p.pid, SIGKILL);
    harness_wait_exit(&p);
    harness_close(&p);
}

static void
corrupt_request_ring_ends_the_worker_with_exit_code_70(void **state)
{
    const int32_t ids[] = { 1 };
    struct harness p;
    int status;

    (void)state;
    start(&p);
    submit(&p, 1, ids, 1, 0); /* 0 tokens requested: lagand never sends that */
    status = harness_wait_exit(&p);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 70);
    harness_close(&p);
}

static void
worker_exits_when_lagand_has_exited(void **state)
{
    struct harness p;
    int status;

    (void)state;
    start(&p);
    close(p.fd_channel);
    channel_close(&p.channel); /* closes the doorbell */
    status = harness_wait_exit(&p);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* A frame in lagan-worker has an offset that is smaller than the file. The first frame is one,
 * unless a sanitizer handles the signal first. */
static void
expect_offsets(const struct panic_message *panic)
{
    struct stat st;
    int n = 0;

    assert_int_equal(stat("lagan-worker", &st), 0);
    for (uint32_t i = 0; i < panic->n_frames; i++) {
        const char *name = panic->module[i] < PANIC_MODULES ? panic->module_name[panic->module[i]]
                                                            : "";

        if (strcmp(name, "lagan-worker") != 0) continue;
        assert_in_range(panic->frame[i], 1, st.st_size);
        n++;
    }
    assert_true(n > 0);
}

static void
fatal_signal_leaves_a_panic_message(void **state)
{
    static const int fatal[] = { SIGSEGV, SIGBUS };
    struct harness p;
    int status;

    (void)state;
    for (size_t k = 0; k < ARRAY_LEN(fatal); k++) {
        struct panic_message *panic;

        start(&p);
        panic = shm_panic_message(&p.channel.w);
        kill(p.pid, SIGUSR2); /* a requested message does not block a fatal one */
        for (int i = 0; i < 1000 && atomic_load(&panic->state) != 2; i++) usleep(10000);
        assert_int_equal(panic->signal, SIGUSR2);
        kill(p.pid, fatal[k]);
        status = harness_wait_exit(&p);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(atomic_load(&panic->state), 2);
        assert_int_equal(panic->signal, fatal[k]);
        assert_true(panic->n_frames > 2);
        expect_offsets(panic);
        harness_close(&p);
    }
}

/* Waits until the worker has used no CPU time for 200 ms. */
static void
wait_until_idle(const struct harness *p)
{
    struct timespec had = { 0 }, has = { .tv_sec = -1 };
    clockid_t clock;

    assert_int_equal(clock_getcpuclockid(p->pid, &clock), 0);
    do {
        had = has;
        usleep(200000);
        if (clock_gettime(clock, &has) < 0) return; /* it has exited */
    } while (has.tv_sec != had.tv_sec || has.tv_nsec - had.tv_nsec > 10 * NSEC_MS);
}

/* Each result is nearly as long as a record, and all of them exceed the outbox. */
static void
results_of_calls_wait_for_a_reader_that_hangs(void **state)
{
    enum { CALLS = 120, BYTES = 30000 };
    static const char *const small[] = { "--max_num_seqs=1", "--max_num_batched_tokens=8",
                                         "--kv.memory=4MiB", "--threads=1", NULL };
    struct rec_text call = { .op = 1, .gen = 1, .text_bytes = BYTES };
    const struct ring_record *r;
    struct rec_ready ready;
    struct harness p;
    bool seen[CALLS] = { false };
    char *to;

    (void)state;
    harness_start(&p, "models/recall-gemma3", small, NULL);
    harness_wait_ready(&p, &ready);
    for (call.call = 0; call.call < CALLS; call.call++) {
        while (ring_reserve(&p.channel.out, REC_TEXT, 0, (uint32_t)sizeof call + BYTES, 0,
                            (void **)&to) == -EAGAIN)
            usleep(1000);
        memcpy(to, &call, sizeof call);
        memset(to + sizeof call, 'x', BYTES);
        channel_publish(&p.channel);
    }
    wait_until_idle(&p);
    for (uint32_t i = 0; i < CALLS; i++) {
        struct rec_text_done d;

        r = harness_next(&p);
        assert_non_null(r);
        assert_int_equal(r->type, REC_TEXT_DONE);
        memcpy(&d, r->data, sizeof d);
        assert_int_equal(d.reason, 0);
        assert_true(d.n_ids > BYTES / 2 && d.call < CALLS && !seen[d.call]);
        seen[d.call] = true;
    }
    harness_kill(&p, &(struct harness_arenas){ 0 });
    harness_close(&p);
}

/* The previous worker sent the token that completes the stop string and died before FINISH. */
static void
stop_string_in_delivered_tokens_ends_the_resumed_request(void **state)
{
    enum { PROMPT = 6, TOKENS = 3 };
    struct rec_submit s = { .gen = 1,
                            .id = 1000,
                            .n_prompt = PROMPT,
                            .max_tokens = 12,
                            .top_p = 1,
                            .repetition_penalty = 1,
                            .priority = 0.5f,
                            .forced_bos = -1,
                            .forced_eos = -1,
                            .n_eos = 0xffff,
                            .flags = SUBMIT_IGNORE_EOS };
    struct {
        int32_t prompt[PROMPT], generated[TOKENS + 1];
        uint32_t stop_bytes;
        char stop[44];
    } tail = { .prompt = { 2, 60, 61, 62, 63, 64 } };
    const struct ring_record *r;
    const struct rec_finish *f;
    struct harness p;
    uint32_t n = 0, at;
    struct rec_ready ready;

    (void)state;
    harness_start(&p, "models/recall-gemma3", options, NULL);
    harness_wait_ready(&p, &ready);
    harness_submit(&p, &s, tail.prompt, sizeof tail.prompt);
    for (r = harness_next(&p); r && r->type != REC_FINISH; r = harness_next(&p)) {
        const struct rec_out *o = (const struct rec_out *)((const struct rec_step *)r->data + 1);

        assert_int_equal(r->type, REC_STEP);
        for (uint32_t i = 0; i < o->n_tokens && n < TOKENS; i++)
            tail.generated[n++] = ((const int32_t *)(o + 1))[i];
        at = (uint32_t)sizeof *o + 4u * o->n_tokens;
        if (o->text_first + o->text_bytes > sizeof tail.stop || n > TOKENS || tail.stop_bytes)
            continue;
        memcpy(tail.stop + o->text_first, (const char *)o + at, o->text_bytes);
        if (n == TOKENS) tail.stop_bytes = o->text_first + o->text_bytes;
    }
    assert_non_null(r);
    assert_int_equal(n, TOKENS);
    assert_in_range(tail.stop_bytes, 1, sizeof tail.stop);
    s.ledger_index = 1;
    s.n_done = TOKENS;
    s.n_stop = 1;
    harness_submit(&p, &s, &tail,
                   (uint32_t)offsetof(typeof(tail), stop) + ROUND_UP(4 + tail.stop_bytes, 8u) - 4);
    r = harness_next(&p);
    assert_non_null(r);
    assert_int_equal(r->type, REC_FINISH);
    f = r->data;
    assert_int_equal(f->reason, LAGAN_FINISH_STOP);
    assert_int_equal(f->n_tokens, TOKENS);
    harness_kill(&p, &(struct harness_arenas){ 0 });
    harness_close(&p);
}

/* The KV cache has 112 positions: the worker of a request with the flag FIT was killed before, at
 * and after its last token. */
static void
resumed_request_that_fits_ends_where_it_ended_before(void **state)
{
    static const char *const small[] = { "--max_num_seqs=2", "--kv.memory=256KiB",
                                         "--kv.tokens_per_block=16", "--threads=1", NULL };
    enum { PROMPT = 65 };
    int32_t ids[TAIL_IDS];
    struct rec_ready ready;
    struct harness p;
    uint32_t most = 0, n = 0;

    (void)state;
    for (uint32_t i = 0; i < TAIL_IDS; i++) ids[i] = 2;
    harness_start(&p, "tests/data/golden/llama2", small, NULL);
    harness_wait_ready(&p, &ready);
    submit_flagged(&p, 1, ids, PROMPT, 0, -1, 0, 100, SUBMIT_FIT);
    assert_int_equal(harness_finish(&p, &most), LAGAN_FINISH_LENGTH);
    assert_in_range(most, 2, 99);
    for (uint32_t done = most - 1; done <= most; done++) {
        submit_flagged(&p, 1 + done, ids, PROMPT + done, done, -1, 0, 100, SUBMIT_FIT);
        assert_int_equal(harness_finish(&p, &n), LAGAN_FINISH_LENGTH);
        assert_int_equal(n, most);
    }
    harness_kill(&p, &(struct harness_arenas){ 0 });
    harness_close(&p);
}

/* lagand suspects the requests that the trace lists if the worker fails in this step. */
static void
step_trace_names_the_request_whose_input_is_encoded(void **state)
{
    struct rec_submit s = { .gen = 1,
                            .id = 1000,
                            .n_prompt = 6,
                            .max_tokens = 2,
                            .top_p = 1,
                            .repetition_penalty = 1,
                            .priority = 0.5f,
                            .forced_bos = -1,
                            .forced_eos = -1,
                            .n_eos = 0xffff,
                            .flags = SUBMIT_IGNORE_EOS };
    static const int32_t source[6] = { 5, 6, 7, 8, 9, 1 };
    const struct step_trace *t;
    struct rec_ready ready;
    struct harness p;
    uint32_t n;

    (void)state;
    harness_start(&p, "tests/data/golden/t5_relu", options, NULL);
    harness_wait_ready(&p, &ready);
    harness_submit(&p, &s, source, sizeof source);
    harness_finish(&p, &n);
    t = shm_trace(&p.channel.w);
    assert_int_equal(t->entry[0].n_ids, 1); /* the first step has the encoder input alone */
    assert_int_equal(t->entry[0].id[0], 1000);
    harness_kill(&p, &(struct harness_arenas){ 0 });
    harness_close(&p);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(request_returns_its_tokens_in_order_and_one_finish),
        cmocka_unit_test(ready_has_the_models_default_number_of_beams),
        cmocka_unit_test(worker_continues_as_soon_as_a_full_ring_is_read),
        cmocka_unit_test(suspended_request_resumes_with_the_same_tokens),
        cmocka_unit_test(suspended_request_releases_its_slot_and_resumes_unchanged),
        cmocka_unit_test(request_resumed_after_its_last_token_ends_at_once),
        cmocka_unit_test(arenas_arrive_complete_on_the_fd_channel),
        cmocka_unit_test(corrupt_request_ring_ends_the_worker_with_exit_code_70),
        cmocka_unit_test(results_of_calls_wait_for_a_reader_that_hangs),
        cmocka_unit_test(worker_exits_when_lagand_has_exited),
        cmocka_unit_test(fatal_signal_leaves_a_panic_message),
        cmocka_unit_test(stop_string_in_delivered_tokens_ends_the_resumed_request),
        cmocka_unit_test(resumed_request_that_fits_ends_where_it_ended_before),
        cmocka_unit_test(step_trace_names_the_request_whose_input_is_encoded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

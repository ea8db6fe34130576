/* test_worker.c - the worker program alone, with the test in lagand's place at the rings.
 *
 * What lagand's own tests prove with a worker that lies, this proves from the other side: READY says
 * what the model is, records in give records out, a corrupt ring ends it with words, and so does lagand's
 * going away.
 */
#include "tests/test.h"
#include "tests/worker/play.h"

#include "base/clock.h"
#include "include/lagan_wire.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const options[] = { "--kv.memory=4MiB", "--max_num_seqs=4", "--threads=1",
                                       "--dtype=fp32", NULL };

static void
start(struct played *p)
{
    struct rec_ready ready;

    play_start(p, "tests/data/golden/llama2", options, NULL);
    play_wait_ready(p, &ready);
}

/* Of a record's settings those that change nothing. */
#define PLAIN \
    .gen = 1, .top_p = 1, .repetition = 1, .priority = 0.5f, .forced_bos = -1, .forced_eos = -1, \
    .flags = SUBMIT_IGNORE_EOS

enum { TAIL_IDS = 264 };

/* n_done of the ids are an answer's beginning, said by a worker that died. eos ends it, -1: nothing. */
static void
submit_flagged(struct played *p, uint32_t row, const int32_t *ids, uint32_t n, uint32_t n_done,
               int32_t eos, uint32_t min_tokens, uint32_t max_tokens, uint8_t flags)
{
    struct rec_submit s = {
        .row = row,
        .gen = 1,
        .id = 1000 + row,
        .n_prompt = n - n_done,
        .n_done = n_done,
        .min_tokens = min_tokens,
        .max_tokens = max_tokens,
        .top_p = 1,
        .repetition = 1,
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
    play_submit(p, &s, tail, (eos_at + (eos < 0 ? 0 : 2)) * (uint32_t)sizeof *tail);
}

static void
submit_rest(struct played *p, uint32_t row, const int32_t *ids, uint32_t n, uint32_t n_done,
            int32_t eos, uint32_t min_tokens, uint32_t max_tokens)
{
    submit_flagged(p, row, ids, n, n_done, eos, min_tokens, max_tokens, 0);
}

static void
submit(struct played *p, uint32_t row, const int32_t *ids, uint32_t n, uint32_t max_tokens)
{
    submit_rest(p, row, ids, n, 0, -1, 0, max_tokens);
}

static void
a_request_gives_its_tokens_in_order_and_one_finish(void **state)
{
    const int32_t ids[] = { 1, 5, 9 };
    struct played p;
    struct rec_ready ready;
    const struct ring_record *r;
    uint32_t tokens = 0;
    void *drain;
    int status;

    (void)state;
    play_start(&p, "tests/data/golden/llama2", options, NULL);
    play_wait_ready(&p, &ready);
    assert_int_equal(ready.vocab, 320);
    assert_int_equal(ready.max_len, 256);
    assert_int_equal(ready.max_source, 0);
    assert_int_equal(ready.has_text, 0);
    submit(&p, 3, ids, 3, 12);
    while ((r = play_next(&p)) && r->type == REC_STEP) {
        struct rec_step s;
        struct rec_out o;
        int32_t token;

        memcpy(&s, r->data, sizeof s);
        assert_int_equal(s.n_ent, 1);
        memcpy(&o, (const char *)r->data + sizeof s, sizeof o);
        memcpy(&token, (const char *)r->data + sizeof s + sizeof o, sizeof token);
        assert_int_equal(o.row, 3);
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

    assert_int_equal(ring_reserve(&p.link.out, REC_DRAIN, 0, 0, 0, &drain), 0);
    link_publish(&p.link);
    status = play_wait_exit(&p);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    play_close(&p);
}

static void
ready_says_how_many_beams_the_models_defaults_ask_for(void **state)
{
    static const char *const small[] = { "--max_num_seqs=4", "--kv.memory=4MiB", "--threads=1",
                                         NULL };
    struct rec_ready ready;
    struct played p;

    (void)state;
    play_start(&p, "tests/data/golden/bart", small, NULL);
    play_wait_ready(&p, &ready);
    assert_int_equal(ready.beams, 4);
    play_kill(&p, &(struct play_arenas){ 0 });
    play_close(&p);
}

/* The records of a row up to its FINISH: its reason; how many tokens it says it has. */
static uint32_t
finish_of(struct played *p, uint32_t *n_tokens)
{
    const struct ring_record *r;

    while ((r = play_next(p)) && r->type == REC_STEP) {
    }
    assert_non_null(r);
    assert_int_equal(r->type, REC_FINISH);
    *n_tokens = ((const struct rec_finish *)r->data)->n_tokens;
    return ((const struct rec_finish *)r->data)->reason;
}

static void
say_pause(struct played *p, uint32_t row, bool paused)
{
    struct rec_row rec = { .row = row, .gen = 1, .flags = paused };
    void *to;

    assert_int_equal(ring_reserve(&p->link.out, REC_PAUSE, 0, sizeof rec, 0, &to), 0);
    memcpy(to, &rec, sizeof rec);
    link_publish(&p->link);
}

static bool
quiet(struct played *p, int ms)
{
    for (nsec until = clock_now() + ms * NSEC_MS; clock_now() < until; poll(NULL, 0, 5))
        if (!ring_empty(&p->link.in)) return false;
    return true;
}

/* Tokens of STEPs from `at` on, until there are so many or, with no `most`, nothing has come for a while. */
static uint32_t
take_tokens(struct played *p, uint32_t at, uint32_t most, int32_t *token)
{
    while (most ? at < most : !quiet(p, 300)) {
        const struct ring_record *r = play_next(p);
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
a_paused_request_stands_still_and_goes_on_with_the_same_tokens(void **state)
{
    enum { TOKENS = 200 };
    const int32_t ids[] = { 1, 5, 9 };
    int32_t undisturbed[TOKENS], token[TOKENS], all[3 + TOKENS];
    struct played p;
    uint32_t n, n_finish, row = 2;

    (void)state;
    start(&p);
    submit(&p, 1, ids, 3, TOKENS);
    take_tokens(&p, 0, TOKENS, undisturbed);
    assert_int_equal(finish_of(&p, &n_finish), LAGAN_FINISH_LENGTH);

    for (n = TOKENS; n == TOKENS; row++) { /* once more if it was done before we said a word */
        submit(&p, row, ids, 3, TOKENS);
        say_pause(&p, row, true);
        n = take_tokens(&p, 0, 0, token); /* what was under way */
    }
    submit(&p, 1, ids, 3, 4); /* for others it works */
    assert_int_equal(finish_of(&p, &n_finish), LAGAN_FINISH_LENGTH);
    say_pause(&p, row - 1, false);
    take_tokens(&p, n, TOKENS, token);
    assert_int_equal(finish_of(&p, &n_finish), LAGAN_FINISH_LENGTH);
    assert_memory_equal(token, undisturbed, sizeof token);

    memcpy(all, ids, sizeof ids);
    memcpy(all + 3, undisturbed, 20 * sizeof *all);
    submit_flagged(&p, row, all, 23, 20, -1, 0, TOKENS, SUBMIT_PAUSED); /* from a dead worker */
    assert_true(quiet(&p, 300));
    say_pause(&p, row, false);
    take_tokens(&p, 20, TOKENS, token);
    assert_memory_equal(token, undisturbed, sizeof token);
    kill(p.pid, SIGKILL);
    play_wait_exit(&p);
    play_close(&p);
}

/* How long a worker that may say 1 << log2 bytes unread takes for logits that are read every 10 ms. */
static nsec
read_now_and_then(uint32_t log2, uint32_t n_tokens, uint32_t *n_reads)
{
    const int32_t ids[] = { 1, 5, 9 };
    struct played p;
    uint32_t n = 0;
    nsec since;

    play_ring(log2);
    start(&p);
    play_ring(20);
    submit_flagged(&p, 1, ids, 3, 0, -1, 0, n_tokens, SUBMIT_LOGITS);
    since = clock_now();
    for (*n_reads = 0; n < n_tokens; (*n_reads)++) {
        struct ring_record rec;

        usleep(10000);
        while (ring_peek(&p.link.in, &rec) > 0) n += rec.type == REC_STEP;
        link_release(&p.link);
    }
    since = clock_now() - since;
    kill(p.pid, SIGKILL);
    play_wait_exit(&p);
    play_close(&p);
    return since;
}

/* A step that has ended meanwhile wakes nobody twice: half a second for each time that the ring was full. */
static void
a_worker_whose_ring_was_full_goes_on_as_soon_as_it_is_read(void **state)
{
    enum { TOKENS = 200, LOG2 = 14, FULL = 10 };
    uint32_t n;
    nsec alone = read_now_and_then(20, TOKENS, &n), full = read_now_and_then(LOG2, TOKENS, &n);

    (void)state;
    print_message("read %u times in %.2f s, without a full ring in %.2f s\n", n,
                  (double)full / NSEC_S, (double)alone / NSEC_S);
    assert_true(n > FULL && full < 2 * alone + FULL * NSEC_S / 4);
}

static void
a_paused_request_gives_its_seat_to_who_waits_and_goes_on_with_the_same_tokens(void **state)
{
    enum { TOKENS = 200 };
    static const char *const one_seat[] = { "--kv.memory=4MiB", "--max_num_seqs=1", "--threads=1",
                                            "--dtype=fp32", NULL };
    const int32_t ids[] = { 1, 5, 9 };
    int32_t undisturbed[TOKENS], token[TOKENS];
    uint32_t n, n_finish, row = 2;
    struct rec_ready ready;
    struct played p;

    (void)state;
    play_start(&p, "tests/data/golden/llama2", one_seat, NULL);
    play_wait_ready(&p, &ready);
    submit(&p, 1, ids, 3, TOKENS);
    take_tokens(&p, 0, TOKENS, undisturbed);
    assert_int_equal(finish_of(&p, &n_finish), LAGAN_FINISH_LENGTH);
    for (n = TOKENS; n == TOKENS; row++) { /* once more if it was done before we said a word */
        submit(&p, row, ids, 3, TOKENS);
        say_pause(&p, row, true);
        n = take_tokens(&p, 0, 0, token);
    }
    submit(&p, 1, ids, 3, 4);
    assert_int_equal(finish_of(&p, &n_finish), LAGAN_FINISH_LENGTH);
    say_pause(&p, row - 1, false);
    take_tokens(&p, n, TOKENS, token);
    assert_int_equal(finish_of(&p, &n_finish), LAGAN_FINISH_LENGTH);
    assert_int_equal(n_finish, TOKENS);
    assert_memory_equal(token, undisturbed, sizeof token);
    kill(p.pid, SIGKILL);
    play_wait_exit(&p);
    play_close(&p);
}

static void
a_request_whose_worker_died_after_its_last_token_ends_at_once(void **state)
{
    int32_t ids[256] = { 1, 5, 9, 7, 8 };
    struct played p;
    uint32_t n;

    (void)state;
    for (uint32_t i = 5; i < ARRAY_LEN(ids); i++) ids[i] = 3;
    start(&p);
    submit_rest(&p, 1, ids, 5, 2, 8, 0, 20); /* the end of sequence was said, FINISH was not */
    assert_int_equal(finish_of(&p, &n), LAGAN_FINISH_EOS);
    assert_int_equal(n, 2);
    submit_rest(&p, 2, ids, 5, 2, 8, 2, 6); /* too early to be an end: it goes on */
    finish_of(&p, &n);
    assert_true(n > 2);
    submit_rest(&p, 3, ids, 256, 251, -1, 0, 300); /* at the model's length */
    assert_int_equal(finish_of(&p, &n), LAGAN_FINISH_LENGTH);
    assert_int_equal(n, 251);
    kill(p.pid, SIGKILL);
    play_wait_exit(&p);
    play_close(&p);
}

static void
arenas_come_up_the_hand_socket_complete(void **state)
{
    struct played p;
    struct rec_ready ready;
    struct hand_note note;
    struct err e;
    bool kv = false;
    int fd;

    (void)state;
    play_start(&p, "tests/data/golden/llama2", options, NULL);
    play_wait_ready(&p, &ready);
    while (hand_take(p.hand, &note, &fd, &e) > 0) {
        assert_true(note.flags & HAND_COMPLETE);
        assert_true(note.bytes > 0);
        if (!strcmp(note.name, "kv")) kv = note.bytes == ready.kv_bytes;
        close(fd);
    }
    assert_true(kv);
    kill(p.pid, SIGKILL);
    play_wait_exit(&p);
    play_close(&p);
}

static void
a_corrupt_request_ring_ends_the_worker_and_says_so(void **state)
{
    const int32_t ids[] = { 1 };
    struct played p;
    int status;

    (void)state;
    start(&p);
    submit(&p, 1, ids, 1, 0); /* no token asked for: lagand never writes that */
    status = play_wait_exit(&p);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 70);
    play_close(&p);
}

static void
a_worker_whose_lagand_is_gone_ends(void **state)
{
    struct played p;
    int status;

    (void)state;
    start(&p);
    close(p.hand);
    link_close(&p.link); /* the bell hangs up */
    status = play_wait_exit(&p);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void
a_signal_leaves_last_words(void **state)
{
    static const int fatal[] = { SIGSEGV, SIGBUS };
    struct played p;
    int status;

    (void)state;
    for (size_t k = 0; k < ARRAY_LEN(fatal); k++) {
        struct last_words *words;

        start(&p);
        words = shm_words(&p.link.w);
        kill(p.pid, SIGUSR2); /* a report that is asked for is not in the way of the last one */
        for (int i = 0; i < 1000 && atomic_load(&words->state) != 2; i++) usleep(10000);
        assert_int_equal(words->signal, SIGUSR2);
        kill(p.pid, fatal[k]);
        status = play_wait_exit(&p);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(atomic_load(&words->state), 2);
        assert_int_equal(words->signal, fatal[k]);
        assert_true(words->n_frames > 2);
        play_close(&p);
    }
}

/* No token may come twice, and all of the vocabulary has come. */
static void
a_request_that_may_ban_every_token_is_refused_and_kills_nobody(void **state)
{
    enum { VOCAB = 256 };
    static const char *const large[] = { "--max_num_seqs=4", "--kv.memory=16MiB", "--threads=1",
                                         NULL };
    struct rec_submit s = { PLAIN, .no_repeat_ngram = 1 };
    int32_t ids[VOCAB];
    struct rec_ready ready;
    struct played p;

    (void)state;
    for (int32_t i = 0; i < VOCAB; i++) ids[i] = i;
    play_start(&p, "tests/data/golden/gemma4_big", large, NULL);
    play_wait_ready(&p, &ready);
    assert_int_equal(ready.vocab, VOCAB);
    for (s.row = 0; s.row < 4; s.row++) {
        const struct ring_record *r;

        s.id = 1000 + s.row;
        s.beams = s.row % 2 ? 2 : 1;
        s.n_prompt = s.row < 2 ? VOCAB : VOCAB - 8;
        s.max_tokens = s.row < 2 ? 1 : 7;
        play_submit(&p, &s, ids, s.n_prompt * (uint32_t)sizeof *ids);
        do r = play_next(&p);
        while (r && r->type == REC_STEP);
        assert_non_null(r);
        assert_int_equal(r->type, s.row < 2 ? REC_REJECT : REC_FINISH);
    }
    play_kill(&p, &(struct play_arenas){ 0 });
    play_close(&p);
}

/* So far from 1 a length_penalty makes of any score more than a float holds; lagand's clients take no such number. */
static void
a_score_that_no_float_holds_is_told_as_the_largest(void **state)
{
    struct rec_submit s = { PLAIN,      .row = 1, .id = 1001,       .n_prompt = 4,
                            .beams = 2, .n = 2,   .max_tokens = 14, .length_penalty = -100,
                            .n_bias = 2 /* scores over 0: it goes on to the end */ };
    const struct ring_record *r;
    const struct {
        int32_t ids[4];
        struct {
            int32_t id;
            float add;
        } bias[2];
        float score[2];
    } with = { .ids = { 1, 5, 9, 7 }, .bias = { { 20, 100 }, { 30, 100 } } };
    uint32_t ended = 0;
    struct played p;

    (void)state;
    start(&p);
    play_submit(&p, &s, &with, sizeof with);
    while (ended < 2 && (r = play_next(&p))) {
        struct rec_finish f;
        struct rec_out o;

        if (r->type == REC_STEP) {
            memcpy(&o, (const char *)r->data + sizeof(struct rec_step), sizeof o);
            assert_true(isfinite(o.score));
            continue;
        }
        assert_int_equal(r->type, REC_FINISH);
        memcpy(&f, r->data, sizeof f);
        assert_int_equal(f.reason, LAGAN_FINISH_LENGTH);
        assert_true(f.score == FLT_MAX);
        ended++;
    }
    assert_int_equal(ended, 2);
    play_kill(&p, &(struct play_arenas){ 0 });
    play_close(&p);
}

enum { SECOND_NEW = 24 };

/* Of two outputs, of which the first needs one token more, the second's. others: when that one has ended the client stops
 * reading, others come and want its place and the second's, and then it reads on. */
static void
second_output(int32_t token[SECOND_NEW], bool others)
{
    static const char *const two[] = { "--max_num_seqs=2", "--kv.memory=4MiB", "--threads=1",
                                       "--max_source_tokens=32", NULL };
    struct {
        int32_t source[8], done[SECOND_NEW];
        uint8_t whose[ROUND_UP(SECOND_NEW, 8)];
        float score[2];
    } with = { .score = { 0 } };
    struct rec_submit s = { PLAIN,           .row = 1,
                            .id = 1001,      .seed = 3,
                            .n_prompt = 8,   .n_done = SECOND_NEW,
                            .n = 2,          .max_tokens = SECOND_NEW,
                            .temperature = 1 };
    uint32_t n = 1, ended = 0, all = others ? 4 : 2;
    struct rec_ready ready;
    struct played p;

    for (int32_t i = 0; i < 8; i++) with.source[i] = 60 + i;
    for (int32_t i = 0; i < SECOND_NEW; i++) with.done[i] = 50 + i % 5;
    with.whose[SECOND_NEW - 1] = 1; /* a token of the second; all but one of the first */
    token[0] = with.done[SECOND_NEW - 1];
    play_start(&p, "models/numbers-t5", two, NULL);
    play_wait_ready(&p, &ready);
    play_submit(&p, &s, &with, sizeof with);
    while (ended < all) {
        const struct ring_record *r = play_next(&p);
        const char *at;

        assert_non_null(r);
        if (r->type == REC_FINISH && ++ended == 1 && others) {
            const int32_t other[8] = { 90, 91, 92, 93, 94, 95, 96, 97 };

            say_pause(&p, 1, true);
            s.n_done = s.n = 0;
            for (s.row = 2; s.row < 4; s.row++) {
                s.id = 1000 + s.row;
                play_submit(&p, &s, other, sizeof other);
            }
        }
        if (r->type == REC_FINISH && ended == 3) say_pause(&p, 1, false);
        if (r->type != REC_STEP) continue;
        at = (const char *)r->data + sizeof(struct rec_step);
        for (uint32_t k = ((const struct rec_step *)r->data)->n_ent; k > 0; k--) {
            struct rec_out o;

            memcpy(&o, at, sizeof o);
            if (o.row == 1 && o.output == 1) {
                assert_int_equal(o.first, n);
                memcpy(&token[n++], at + sizeof o, sizeof token[0]);
            }
            at += sizeof o + ROUND_UP(sizeof token[0] + o.text_bytes, 8u);
        }
    }
    assert_int_equal(n, SECOND_NEW);
    play_kill(&p, &(struct play_arenas){ 0 });
    play_close(&p);
}

static void
an_output_keeps_its_source_though_the_first_is_gone_and_its_place_is_anothers(void **state)
{
    int32_t want[SECOND_NEW], got[SECOND_NEW];

    (void)state;
    second_output(want, /* others= */ false);
    second_output(got, /* others= */ true);
    assert_memory_equal(want, got, sizeof want);
}

/* What one character is. */
static int32_t
token_of(struct played *p, char text)
{
    struct rec_text call = { .op = 1, .gen = 1, .flags = 1, .text_bytes = 1 };
    const struct ring_record *r;
    struct rec_text_done d;
    int32_t id;
    char *to;

    assert_int_equal(
        ring_reserve(&p->link.out, REC_TEXT, 0, (uint32_t)sizeof call + 1, 0, (void **)&to), 0);
    memcpy(to, &call, sizeof call);
    to[sizeof call] = text;
    link_publish(&p->link);
    r = play_next(p);
    assert_non_null(r);
    assert_int_equal(r->type, REC_TEXT_DONE);
    memcpy(&d, r->data, sizeof d);
    assert_int_equal(d.n_ids, 1);
    memcpy(&id, (const char *)r->data + sizeof d, sizeof id);
    return id;
}

/* Two outputs go on behind a token each; that of the first has completed its stop string. text: of a prompt in words. */
static void
go_on_behind_a_stop(bool text)
{
    static const char *const two[] = { "--max_num_seqs=2", "--kv.memory=4MiB", "--threads=1",
                                       NULL };
    struct {
        struct rec_submit s;
        int32_t prompt[2], done[2];
        uint32_t stop_bytes;
        char stop[4];
        uint8_t whose[8];
        float score[2];
    } with = { .prompt = { 5, 9 }, .stop_bytes = 1, .stop = "x", .whose = { 0, 1 } };
    struct rec_submit s = { PLAIN,
                            .row = 1,
                            .id = 1001,
                            .seed = 3,
                            .n_prompt = text ? 0 : 2,
                            .text_bytes = text ? 8 : 0,
                            .n_done = 2,
                            .n_stop = 1,
                            .n = 2,
                            .max_tokens = 6,
                            .temperature = 1 };
    uint32_t reason[2] = { 0 }, n[2] = { 0 };
    char tail[sizeof with];
    struct rec_ready ready;
    struct played p;
    size_t at = 0;

    play_start(&p, "models/recall-gemma3", two, NULL);
    play_wait_ready(&p, &ready);
    with.done[0] = token_of(&p, 'x');
    with.done[1] = token_of(&p, 'y');
    if (!text) at += sizeof with.prompt;
    memcpy(tail, with.prompt, at);
    memcpy(tail + at, with.done, sizeof with.done);
    at += sizeof with.done;
    if (text) memcpy(tail + at, "k3=blue;", 8);
    if (text) at += 8;
    memcpy(tail + at, &with.stop_bytes, sizeof with.stop_bytes + sizeof with.stop);
    at += sizeof with.stop_bytes + sizeof with.stop;
    memcpy(tail + at, with.whose, sizeof with.whose + sizeof with.score);
    at += sizeof with.whose + sizeof with.score;
    play_submit(&p, &s, tail, (uint32_t)at);
    for (uint32_t ended = 0; ended < 2;) {
        const struct ring_record *r = play_next(&p);
        struct rec_finish f;

        assert_non_null(r);
        if (r->type != REC_FINISH) continue;
        memcpy(&f, r->data, sizeof f);
        assert_true(f.output < 2 && !reason[f.output]);
        reason[f.output] = f.reason;
        n[f.output] = f.n_tokens;
        ended++;
    }
    assert_int_equal(reason[0], LAGAN_FINISH_STOP);
    assert_int_equal(n[0], 1);
    assert_true(reason[1] == LAGAN_FINISH_STOP || n[1] == 6);
    assert_true(n[1] > 1);
    play_kill(&p, &(struct play_arenas){ 0 });
    play_close(&p);
}

static void
an_output_goes_on_though_the_first_has_met_its_stop(void **state)
{
    (void)state;
    go_on_behind_a_stop(/* text= */ false);
    go_on_behind_a_stop(/* text= */ true);
}

/* As many records as it takes. */
static void
submit_pieces(struct played *p, const char *bytes, uint32_t n)
{
    const uint32_t piece = 64 << 10;

    for (uint32_t at = 0; at < n;) {
        uint32_t some = MIN(piece, n - at);
        void *to;

        while (ring_reserve(&p->link.out, REC_SUBMIT, at + some < n ? RING_MORE : 0, some, 0,
                            &to) == -EAGAIN) {
            assert_int_equal(waitpid(p->pid, NULL, WNOHANG), 0); /* nobody takes them any more */
            usleep(1000);
        }
        memcpy(to, bytes + at, some);
        at += some;
        link_publish(&p->link);
    }
}

/* A model in a folder of its own, with a line of one file changed. */
static void
make_like(char dir[32], const char *model, const char *sed, const char *file)
{
    const char *top = getenv("srcdir");
    char line[400];

    snprintf(dir, 32, "/tmp/test_worker.XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(line, sizeof line, "cp %s/%s/* %s && sed -i \"%s\" %s/%s", top ? top : ".", model, dir,
             sed, dir, file);
    assert_int_equal(system(line), 0);
}

static void
remove_it(const char *dir)
{
    char line[64];

    snprintf(line, sizeof line, "rm -r %s", dir);
    assert_int_equal(system(line), 0);
}

enum { COMING = 64, COMING_SOURCE = 4 };

/* A request that goes on: all but one output were told to their end, and that one but for so many tokens; with so much text. */
static void
submit_told(struct played *p, uint32_t each, uint32_t missing, uint32_t text)
{
    const uint32_t n = COMING * each - missing;
    const struct rec_submit s = { PLAIN,           .row = 1,
                                  .id = 1001,      .n_prompt = COMING_SOURCE,
                                  .n_done = n,     .done_text = text,
                                  .n = COMING,     .max_tokens = each,
                                  .temperature = 1 };
    uint32_t prompt = sizeof s, done = prompt + COMING_SOURCE * 4,
             said = done + ROUND_UP(4 * n, 8u), whose = said + ROUND_UP(text, 8u),
             all = whose + ROUND_UP(n, 8u) + COMING * 4;
    char *with = calloc(1, all);

    assert_non_null(with);
    memcpy(with, &s, sizeof s);
    for (uint32_t i = 0; i < COMING_SOURCE + n; i++) {
        int32_t id = 60 + (int32_t)i % 7;

        memcpy(with + (i < COMING_SOURCE ? prompt + 4 * i : done + 4 * (i - COMING_SOURCE)), &id,
               4);
    }
    for (uint32_t i = 0; i < n; i++) with[whose + i] = (char)(i / each);
    submit_pieces(p, with, all);
    free(with);
}

static void
come_back(const char *model, const char *max_len, uint32_t each, uint32_t missing)
{
    const char *const long_ones[] = { "--max_num_seqs=64",
                                      "--kv.memory=32MiB",
                                      "--threads=1",
                                      "--max_source_tokens=64",
                                      max_len,
                                      NULL };
    bool over[COMING] = { false };
    struct rec_ready ready;
    struct played p;

    play_start(&p, model, long_ones, NULL);
    play_wait_ready(&p, &ready);
    submit_told(&p, each, missing, 0);
    for (uint32_t n = 0; n < COMING;) {
        const struct ring_record *r = play_next(&p);
        struct rec_finish f;

        assert_non_null(r);
        assert_true(r->type == REC_FINISH || r->type == REC_STEP);
        if (r->type == REC_STEP) continue;
        memcpy(&f, r->data, sizeof f);
        assert_true(f.output < COMING && !over[f.output]);
        assert_int_equal(f.reason, LAGAN_FINISH_LENGTH);
        assert_int_equal(f.n_tokens, each);
        over[f.output] = true;
        n++;
    }
    play_kill(&p, &(struct play_arenas){ 0 });
    play_close(&p);
}

static void
outputs_come_back_that_are_together_longer_than_any_can_be(void **state)
{
    char dir[32];

    (void)state;
    come_back("models/numbers-t5", "--max_model_len=2200", 2100, 1);
    /* Only that they had ended was not told. */
    come_back("models/numbers-t5", "--max_model_len=2200", 2100, 0);
    make_like(dir, "tests/data/golden/llama2", "s/\\(max_position_embeddings.*\\) 256/\\1 90000/",
              "config.json");
    come_back(dir, "--max_model_len=90000", 80000, 0); /* 25 MB of them */
    remove_it(dir);
}

static void
a_request_that_comes_back_too_long_is_refused_and_kills_nobody(void **state)
{
    static const char *const small[] = { "--max_num_seqs=64",    "--kv.memory=32MiB",
                                         "--threads=1",          "--max_source_tokens=64",
                                         "--max_model_len=2200", NULL };
    const int32_t ids[] = { 60, 61, 62 };
    const struct ring_record *r;
    struct rec_ready ready;
    struct played p;
    uint32_t n;

    (void)state;
    play_start(&p, "models/numbers-t5", small, NULL);
    play_wait_ready(&p, &ready);
    submit_told(&p, 2000, 0, 32 << 20);
    r = play_next(&p);
    assert_non_null(r);
    assert_int_equal(r->type, REC_REJECT);
    assert_int_equal(((const struct rec_reject *)r->data)->row, 1);
    assert_int_equal(((const struct rec_reject *)r->data)->reason, LAGAN_E_TOO_LONG);
    submit(&p, 2, ids, 3, 4);
    finish_of(&p, &n);
    assert_int_equal(n, 4);
    play_kill(&p, &(struct play_arenas){ 0 });
    play_close(&p);
}

/* One token more, whose text is as long. */
enum { LONG_TOKEN = 260, LONG_TEXT = 4000 };

/* All that the worse outputs of a search have comes with its last step. */
static void
a_search_whose_outputs_are_long_is_told_at_its_end(void **state)
{
    enum { N = 4, EACH = 1000, SOURCE = 4 };
    static const char *const four[] = { "--max_num_seqs=4",
                                        "--max_num_batched_tokens=8",
                                        "--kv.memory=32MiB",
                                        "--threads=1",
                                        "--max_source_tokens=16",
                                        "--max_model_len=1100",
                                        NULL };
    const struct {
        int32_t prompt[SOURCE];
        struct {
            int32_t id;
            float add;
        } bias;
        float score[N];
    } with = { { 60, 61, 62, 63 }, { LONG_TOKEN, 100 }, { 0 } };
    const struct rec_submit s = { PLAIN,       .row = 1, .id = 1001, .n_prompt = SOURCE,
                                  .n_bias = 1, .n = N,   .beams = N, .max_tokens = EACH };
    uint64_t text = 0;
    char dir[32], sed[100];
    struct rec_ready ready;
    struct played p;

    (void)state;
    snprintf(sed, sizeof sed, "s/\\\"vocab\\\": *{/&\\\"$(printf %%0%dd 0)\\\": %d,/", LONG_TEXT,
             LONG_TOKEN);
    make_like(dir, "models/numbers-t5", sed, "tokenizer.json");
    play_start(&p, dir, four, NULL);
    play_wait_ready(&p, &ready);
    play_submit(&p, &s, &with, sizeof with);
    for (uint32_t ended = 0; ended < N;) {
        const struct ring_record *r = play_next(&p);
        const char *at;

        assert_non_null(r);
        if (r->type == REC_FINISH) {
            assert_int_equal(((const struct rec_finish *)r->data)->n_tokens, EACH);
            ended++;
            continue;
        }
        assert_int_equal(r->type, REC_STEP);
        at = (const char *)r->data + sizeof(struct rec_step);
        for (uint32_t k = ((const struct rec_step *)r->data)->n_ent; k > 0; k--) {
            struct rec_out o;

            memcpy(&o, at, sizeof o);
            text += o.text_bytes;
            at += sizeof o + ROUND_UP(sizeof(int32_t) + o.text_bytes, 8u);
        }
    }
    assert_true(text > (uint64_t)N * (EACH - 100) * LONG_TEXT);
    play_kill(&p, &(struct play_arenas){ 0 });
    play_close(&p);
    remove_it(dir);
}

/* The worker has had no work for a while. */
static void
wait_until_it_rests(const struct played *p)
{
    struct timespec had = { 0 }, has = { .tv_sec = -1 };
    clockid_t clock;

    assert_int_equal(clock_getcpuclockid(p->pid, &clock), 0);
    do {
        had = has;
        usleep(200000);
        if (clock_gettime(clock, &has) < 0) return; /* it is gone */
    } while (has.tv_sec != had.tv_sec || has.tv_nsec - had.tv_nsec > 10 * NSEC_MS);
}

/* Each answer is nearly as long as a record may be, and all of them together longer than the worker has room for. */
static void
answers_to_calls_wait_for_a_reader_that_stands_still(void **state)
{
    enum { CALLS = 120, BYTES = 30000 };
    static const char *const small[] = { "--max_num_seqs=1", "--max_num_batched_tokens=8",
                                         "--kv.memory=4MiB", "--threads=1", NULL };
    struct rec_text call = { .op = 1, .gen = 1, .text_bytes = BYTES };
    const struct ring_record *r;
    struct rec_ready ready;
    struct played p;
    bool seen[CALLS] = { false };
    char *to;

    (void)state;
    play_start(&p, "models/recall-gemma3", small, NULL);
    play_wait_ready(&p, &ready);
    for (call.row = 0; call.row < CALLS; call.row++) {
        while (ring_reserve(&p.link.out, REC_TEXT, 0, (uint32_t)sizeof call + BYTES, 0,
                            (void **)&to) == -EAGAIN)
            usleep(1000);
        memcpy(to, &call, sizeof call);
        memset(to + sizeof call, 'x', BYTES);
        link_publish(&p.link);
    }
    wait_until_it_rests(&p);
    for (uint32_t i = 0; i < CALLS; i++) {
        struct rec_text_done d;

        r = play_next(&p);
        assert_non_null(r);
        assert_int_equal(r->type, REC_TEXT_DONE);
        memcpy(&d, r->data, sizeof d);
        assert_int_equal(d.reason, 0);
        assert_true(d.n_ids > BYTES / 2 && d.row < CALLS && !seen[d.row]);
        seen[d.row] = true;
    }
    play_kill(&p, &(struct play_arenas){ 0 });
    play_close(&p);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_gives_its_tokens_in_order_and_one_finish),
        cmocka_unit_test(ready_says_how_many_beams_the_models_defaults_ask_for),
        cmocka_unit_test(a_worker_whose_ring_was_full_goes_on_as_soon_as_it_is_read),
        cmocka_unit_test(a_paused_request_stands_still_and_goes_on_with_the_same_tokens),
        cmocka_unit_test(
            a_paused_request_gives_its_seat_to_who_waits_and_goes_on_with_the_same_tokens),
        cmocka_unit_test(a_request_whose_worker_died_after_its_last_token_ends_at_once),
        cmocka_unit_test(arenas_come_up_the_hand_socket_complete),
        cmocka_unit_test(a_corrupt_request_ring_ends_the_worker_and_says_so),
        cmocka_unit_test(a_request_that_may_ban_every_token_is_refused_and_kills_nobody),
        cmocka_unit_test(a_score_that_no_float_holds_is_told_as_the_largest),
        cmocka_unit_test(
            an_output_keeps_its_source_though_the_first_is_gone_and_its_place_is_anothers),
        cmocka_unit_test(an_output_goes_on_though_the_first_has_met_its_stop),
        cmocka_unit_test(outputs_come_back_that_are_together_longer_than_any_can_be),
        cmocka_unit_test(a_request_that_comes_back_too_long_is_refused_and_kills_nobody),
        cmocka_unit_test(a_search_whose_outputs_are_long_is_told_at_its_end),
        cmocka_unit_test(answers_to_calls_wait_for_a_reader_that_stands_still),
        cmocka_unit_test(a_worker_whose_lagand_is_gone_ends),
        cmocka_unit_test(a_signal_leaves_last_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

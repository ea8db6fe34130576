/* test_msg.c - tests of wire/msg.h: every limit, every key, and the golden frames.
 *
 * tests/data/frames/NAME.bin are frames of released versions and never change. `test_msg --write
 * DIR` writes the frames that DIR lacks, for a new message type. */
#include "ipc/records.h"
#include "tests/test.h"
#include "wire/msg.h"

#include <stdio.h>
#include <unistd.h>

struct frame {
    msgpack_sbuffer b;
    msgpack_packer p;
};

static void
frame_begin(struct frame *f, uint32_t type, uint64_t rid, uint32_t n_keys)
{
    msgpack_sbuffer_init(&f->b);
    msgpack_packer_init(&f->p, &f->b, msgpack_sbuffer_write);
    msg_begin(&f->p, type, rid, n_keys);
}

static void
frame_done(struct frame *f)
{
    msgpack_sbuffer_destroy(&f->b);
}

/* [1, 3, 1, {k: <raw bytes>}] through msg_check(); the sentence in e. */
static int
check_value(const char *raw, size_t n, struct err *e)
{
    char buf[4096] = "\x94\x01\x03\x01\x81\xa1k";

    assert_true(n + 7 <= sizeof buf);
    memcpy(buf + 7, raw, n);
    return msg_check(buf, n + 7, LAGAN_MAX_NODES, e);
}

static void
refused(const char *raw, size_t n, const char *words)
{
    struct err e = { 0 };

    assert_int_equal(check_value(raw, n, &e), -EBADMSG);
    if (!strstr(e.text, words)) fail_msg("'%s' does not say '%s'", e.text, words);
}

static void
every_valid_value_is_accepted(void **state)
{
    static const struct {
        const char *p;
        size_t n;
    } good[] = {
        { "\xc0", 1 },
        { "\xc2", 1 },
        { "\x7f", 1 },
        { "\xe0", 1 },
        { "\xcc\xff", 2 },
        { "\xd3\x80\0\0\0\0\0\0\0", 9 },
        { "\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 9 },
        { "\xca\x3f\x80\0\0", 5 },
        { "\xcb\x3f\xf0\0\0\0\0\0\0", 9 },
        { "\xa0", 1 },
        { "\xd9\x02hi", 4 },
        { "\xda\0\x02hi", 5 },
        { "\xdb\0\0\0\x02hi", 7 },
        { "\xc4\x01\xff", 3 },
        { "\xc5\0\x01\xff", 4 },
        { "\xc6\0\0\0\x01\xff", 6 },
        { "\x90", 1 },
        { "\xdc\0\x01\x07", 4 },
        { "\xdd\0\0\0\x01\x07", 6 },
        { "\x80", 1 },
        { "\xde\0\x01\xa1x\x01", 6 },
        { "\xdf\0\0\0\x01\xa1x\x01", 8 },
        { "\xa4\xf0\x9f\xa6\x80", 5 },
    };
    struct err e = { 0 };
    size_t i;

    (void)state;
    for (i = 0; i < ARRAY_LEN(good); i++)
        if (check_value(good[i].p, good[i].n, &e) < 0) fail_msg("%zu: %s", i, e.text);
}

static void
truncated_frame_is_rejected(void **state)
{
    struct frame f;
    struct err e;
    size_t n;

    (void)state;
    frame_begin(&f, LAGAN_MSG_SUBMIT, 7, 3);
    msg_key(&f.p, "text"), msg_text(&f.p, "hello");
    msg_key(&f.p, "top_p"), msgpack_pack_double(&f.p, 0.5);
    msg_key(&f.p, "stop_ids"), msg_bin(&f.p, "\1\0\0\0", 4);
    assert_int_equal(msg_check(f.b.data, f.b.size, LAGAN_MAX_NODES, &e), 0);
    for (n = 0; n < f.b.size; n++) {
        char *exact = malloc(n ? n : 1); /* so that a sanitizer detects a read past the end */

        memcpy(exact, f.b.data, n);
        assert_int_equal(msg_check(exact, n, LAGAN_MAX_NODES, &e), -EBADMSG);
        free(exact);
    }
    frame_done(&f);
}

static void
bytes_after_the_message_are_rejected(void **state)
{
    (void)state;
    refused("\xc0\xc0", 2, "bytes behind the message");
}

static void
header_longer_than_the_frame_is_rejected(void **state)
{
    (void)state;
    refused("\xdd\x7f\xff\xff\xff", 5, "longer than the frame");
    refused("\xdd\xff\xff\xff\xff\1\1", 7, "longer than the frame");
    refused("\xdf\x7f\xff\xff\xff", 5, "64 keys");
    refused("\xdb\xff\xff\xff\xff", 5, "longer than the frame");
    refused("\xc6\xff\xff\xff\xff", 5, "longer than the frame");
}

static void
ext_types_and_0xc1_are_rejected(void **state)
{
    static const unsigned char ext[] = { 0xc7, 0xc8, 0xc9, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8 };
    size_t i;

    (void)state;
    refused("\xc1", 1, "0xc1");
    for (i = 0; i < sizeof ext; i++) {
        char raw[20] = { (char)ext[i] };

        refused(raw, sizeof raw, "ext");
    }
}

static void
nan_and_infinity_are_rejected(void **state)
{
    (void)state;
    refused("\xca\x7f\x80\0\0", 5, "infinite or NaN");
    refused("\xca\xff\xc0\0\0", 5, "infinite or NaN");
    refused("\xcb\x7f\xf0\0\0\0\0\0\0", 9, "infinite or NaN");
    refused("\xcb\x7f\xf8\0\0\0\0\0\1", 9, "infinite or NaN");
}

static void
invalid_utf8_is_rejected(void **state)
{
    (void)state;
    refused("\xa1\xff", 2, "UTF-8");
    refused("\xa2\xc0\x80", 3, "UTF-8");         /* overlong */
    refused("\xa3\xe0\x80\x80", 4, "UTF-8");     /* overlong */
    refused("\xa3\xed\xa0\x80", 4, "UTF-8");     /* a surrogate */
    refused("\xa4\xf4\x90\x80\x80", 5, "UTF-8"); /* over U+10FFFF */
    refused("\xa2\xe2\x82", 3, "UTF-8");         /* cut */
}

static void
depth_is_limited(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(check_value("\x91\x91\x91\x91\x91\x90", 6, &e), 0); /* 2 of the envelope + 6 */
    refused("\x91\x91\x91\x91\x91\x91\x90", 7, "nested");
}

static void
keys_are_unique_short_strings(void **state)
{
    char raw[70] = "\x81\xd9\x41";

    (void)state;
    refused("\x82\xa1x\1\xa1x\2", 7, "twice");
    refused("\x82\xa1x\1\xd9\1x\2", 8, "twice"); /* the same key in another encoding */
    refused("\x81\1\1", 3, "not a string");
    refused("\x81\x90\1", 3, "not a string");
    memset(raw + 3, 'k', 65);
    refused(raw, 69, "key is longer");
}

static void
nodes_are_limited_over_the_whole_frame(void **state)
{
    struct frame f;
    struct err e = { 0 };
    int i, j;

    (void)state;
    frame_begin(&f, LAGAN_MSG_CALL, 1, 1);
    msg_key(&f.p, "args");
    msgpack_pack_array(&f.p, 70);
    for (i = 0; i < 70; i++) {
        msgpack_pack_array(&f.p, 60);
        for (j = 0; j < 60; j++) msgpack_pack_nil(&f.p);
    }
    assert_int_equal(msg_check(f.b.data, f.b.size, LAGAN_MAX_NODES, &e), -EBADMSG);
    assert_non_null(strstr(e.text, "4096 values"));
    frame_done(&f);
}

static void
integers_in_lists_have_their_own_limit(void **state)
{
    struct frame f;
    struct err e = { 0 };
    uint32_t i;

    (void)state;
    frame_begin(&f, LAGAN_MSG_SUBMIT, 1, 2);
    msg_key(&f.p, "ids");
    msgpack_pack_array(&f.p, LAGAN_MAX_LIST);
    for (i = 0; i < LAGAN_MAX_LIST; i++) msgpack_pack_uint8(&f.p, 1);
    msg_key(&f.p, "x");
    msgpack_pack_nil(&f.p);
    assert_int_equal(msg_check(f.b.data, f.b.size, LAGAN_MAX_NODES, &e), 0);
    frame_done(&f);

    frame_begin(&f, LAGAN_MSG_SUBMIT, 1, 2);
    msg_key(&f.p, "ids");
    msgpack_pack_array(&f.p, LAGAN_MAX_LIST);
    for (i = 0; i < LAGAN_MAX_LIST; i++) msgpack_pack_uint8(&f.p, 1);
    msg_key(&f.p, "stop_ids");
    msgpack_pack_array(&f.p, 1);
    msgpack_pack_uint8(&f.p, 1);
    assert_int_equal(msg_check(f.b.data, f.b.size, LAGAN_MAX_NODES, &e), -EBADMSG);
    assert_non_null(strstr(e.text, "integers"));
    frame_done(&f);
}

static void
length_of_strings_and_frames_is_limited(void **state)
{
    struct frame f;
    struct err e = { 0 };
    char *big = calloc(1, LAGAN_MAX_FRAME + 1);

    (void)state;
    memset(big, 'a', LAGAN_MAX_STR + 1);
    frame_begin(&f, LAGAN_MSG_SUBMIT, 1, 1);
    msg_key(&f.p, "text");
    msg_bytes(&f.p, big, LAGAN_MAX_STR + 1);
    assert_int_equal(msg_check(f.b.data, f.b.size, LAGAN_MAX_NODES, &e), -EBADMSG);
    assert_non_null(strstr(e.text, "4 MiB"));
    frame_done(&f);
    assert_int_equal(msg_check(big, LAGAN_MAX_FRAME + 1, LAGAN_MAX_NODES, &e), -EBADMSG);
    assert_non_null(strstr(e.text, "the limit is 4259840"));
    free(big);
}

static void
rid_is_found_without_unpacking_the_frame(void **state)
{
    (void)state;
#define RID(s) msg_head(s, sizeof s - 1).rid
    assert_int_equal(RID("\x94\x01\x03\x05\x80"), 5);
    assert_int_equal(RID("\x94\x01\x03\xcf\x01\x02\x03\x04\x05\x06\x07\x08\x80"),
                     0x0102030405060708);
    assert_int_equal(RID("\x94\x01\x03\xcf\x01\x02\x03\x04\x05\x06\x07"), 0); /* cut */
    assert_int_equal(RID("\x94\x01\x03\xcd\x01\x02"), 0x0102);
    assert_int_equal(RID("\xdc\0\x04\x01\x03\xcc\xff\x80"), 255); /* array 16 */
    assert_int_equal(RID("\x94\xd0\x01\xd0\x03\xd0\x05\x80"), 5); /* signed types */
    assert_int_equal(RID("\x94\x01\x03\xd0\xff\x80"), 0);         /* -1 */
    assert_int_equal(RID("\x94\x01\x03\xff\x80"), 0);
    assert_int_equal(RID("\x94\x01\x03\x80\x05"), 0);
    assert_int_equal(RID("\x84\x01\x03\x05\x80"), 0);
    assert_int_equal(RID("\x94\x01\x03"), 0);
    assert_int_equal(RID(""), 0);
}

static void
invalid_envelope_is_rejected_and_its_rid_kept(void **state)
{
    static const struct {
        const char *p;
        size_t n;
        int r;
        uint64_t rid;
    } bad[] = {
        { "\xc0", 1, -EBADMSG, 0 },
        { "\x90", 1, -EBADMSG, 0 },
        { "\x93\x01\x03\x09", 4, -EBADMSG, 9 },
        { "\x95\x01\x03\x09\x80\x80", 6, -EBADMSG, 9 },
        { "\x94\xa1x\x03\x09\x80", 6, -EBADMSG, 0 },
        { "\x94\x01\xa1x\x09\x80", 6, -EBADMSG, 0 },
        { "\x94\x01\x03\x09\x81\xa1k\xa1\xff", 9, -EBADMSG, 9 }, /* not UTF-8 */
        { "\x94\x01\x03\x09\xc1", 5, -EBADMSG, 9 },
        { "\x94\x01\x03\xff\x80", 5, -EBADMSG, 0 },
        { "\x94\x01\x03\x09\x90", 5, -EBADMSG, 9 },
        { "\x94\x02\x03\x09\x80", 5, -EPROTO, 9 },
        { "\x92\x02\x03", 3, -EPROTO, 0 },
    };
    struct msg m;
    struct err e;
    size_t i;

    (void)state;
    for (i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(msg_decode(&m, bad[i].p, bad[i].n, &e), bad[i].r);
        assert_int_equal(m.rid, bad[i].rid);
    }
}

/* Decodes a SUBMIT with text = "x" and the keys that pack() adds; returns the result of
 * msg_request(). */
static int
request_with(uint32_t n_keys, void (*pack)(msgpack_packer *p), struct msg_request *q, struct err *e)
{
    struct frame f;
    struct msg m;
    int r;

    frame_begin(&f, LAGAN_MSG_SUBMIT, 5, n_keys + 1);
    msg_key(&f.p, "text"), msg_text(&f.p, "x");
    if (pack) pack(&f.p);
    assert_int_equal(msg_decode(&m, f.b.data, f.b.size, e), 0);
    r = msg_request(q, &m, e);
    msg_done(&m);
    frame_done(&f);
    return r;
}

static void
absent_keys_have_their_default(void **state)
{
    struct msg_request q;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(request_with(0, NULL, &q, &e), 0);
    assert_true(q.has_text && !q.has_seed && !q.has_max_tokens && !q.has_eos);
    assert_int_equal(q.max_tokens, 16);
    assert_int_equal(q.min_tokens, 0);
    assert_true(q.temperature == 0 && q.top_p == 1 && q.min_p == 0 && q.repetition_penalty == 1);
    assert_true(q.priority == 0.5 && q.length_penalty == 1);
    assert_int_equal(q.forced_bos, -2);
    assert_int_equal(q.forced_eos, -2);
    assert_int_equal(q.ack_window, LAGAN_DEFAULT_ACK_WINDOW);
    assert_true(q.resume && !q.ignore_eos && !q.want_logprobs && !q.want_prompt_logprobs);
    assert_int_equal(q.beams, 1);
    assert_int_equal(q.n, 1);
}

/* One key with a number, and the expected sentence ("": accepted). */
static const struct number {
    const char *key;
    double v;
    bool whole;
    const char *words;
} numbers[] = {
    { "max_tokens", 0, true, "max_tokens is 0, the range is 1 to 16777216" },
    { "max_tokens", 2147483648.0, true, "max_tokens is 2147483648" },
    { "max_tokens", 16777216, true, "" },
    { "max_tokens", -1, true, "max_tokens is -1" },
    { "max_tokens", 1.5, false, "max_tokens is not an integer" },
    { "min_tokens", 17, true, "more than max_tokens, which is 16" },
    { "temperature", 100, true, "" },
    { "temperature", 100.5, false, "temperature is 100.5, the range is 0 to 100" },
    { "temperature", -0.1, false, "temperature" },
    { "top_p", 0, true, "top_p is 0, it must be above 0 and at most 1" },
    { "top_p", 1, true, "" },
    { "min_p", 1.01, false, "min_p" },
    { "top_k", 1 << 20, true, "" },
    { "top_k", (1 << 20) + 1, true, "top_k" },
    { "repetition_penalty", 0, true, "repetition_penalty" },
    { "repetition_penalty", 10, true, "" },
    { "priority", 1.5, false, "priority" },
    { "logprobs", 1024, true, "" },
    { "logprobs", 1025, true, "logprobs is 1025" },
    { "prompt_logprobs", 0, true, "" },
    { "forced_bos", -1, true, "" },
    { "forced_bos", -2, true, "forced_bos is -2" },
    { "seed", -1, true, "seed is not an unsigned integer" },
    { "ack_window", 257, true, "ack_window" },
    { "ack_window", 0, true, "ack_window" },
    { "deadline_ms", 0, true, "" },
    { "ignore_eos", 1, true, "ignore_eos is not true or false" },
    { "stop", 1, true, "stop[0] is not a string" },
    { "eos_ids", 1, true, "eos_ids is neither an array of token ids" },
    { "model", 1, true, "model is not a string" },
};
static const struct number *number;

static void
pack_number(msgpack_packer *p)
{
    msg_key(p, number->key);
    if (number->whole)
        msgpack_pack_int64(p, (int64_t)number->v);
    else
        msgpack_pack_double(p, number->v);
}

static void
range_error_names_key_and_range(void **state)
{
    struct msg_request q;
    struct err e;

    (void)state;
    for (number = numbers; number < numbers + ARRAY_LEN(numbers); number++) {
        int r = request_with(1, pack_number, &q, &e);

        if ((r == 0) != !*number->words)
            fail_msg("%s %g: %d %s", number->key, number->v, r, r < 0 ? e.text : "");
        if (r < 0 && !strstr(e.text, number->words))
            fail_msg("'%s' does not say '%s'", e.text, number->words);
    }
}

static void
pack_presets(msgpack_packer *p)
{
    msg_key(p, "beams"), msgpack_pack_int(p, 1);
    msg_key(p, "n"), msgpack_pack_int(p, 1);
    msg_key(p, "early_stopping"), msgpack_pack_false(p);
    msg_key(p, "length_penalty"), msgpack_pack_double(p, 1.0);
    msg_key(p, "return_logits"), msgpack_pack_false(p);
}

static void
pack_defaults(msgpack_packer *p)
{
    msg_key(p, "model_defaults"), msgpack_pack_true(p);
    msg_key(p, "top_k"), msgpack_pack_int(p, 7);
    msg_key(p, "temperature"), msgpack_pack_double(p, 0.5);
}

static void
absent_keys_are_known_with_model_defaults(void **state)
{
    struct msg_request q;
    struct err e;

    (void)state;
    assert_int_equal(request_with(3, pack_defaults, &q, &e), 0);
    assert_int_equal(q.absent & (ABSENT_top_k | ABSENT_temperature), 0);
    assert_int_not_equal(q.absent & ABSENT_max_tokens, 0);
    assert_int_not_equal(q.absent & ABSENT_no_repeat_ngram, 0);
    assert_int_equal(q.max_tokens, LAGAN_MAX_TOKENS);
    assert_int_equal(request_with(5, pack_presets, &q, &e), 0);
    assert_int_equal(q.absent, 0);
}

static void
pack_unknown(msgpack_packer *p)
{
    msg_key(p, "temprature"), msg_text(p, "red");
}

static void
pack_strange(msgpack_packer *p)
{
    msg_key(p, "wxyz"), msgpack_pack_nil(p);
}

static void
pack_must(msgpack_packer *p)
{
    msg_key(p, "!colour"), msg_text(p, "red");
}

static void
unknown_request_key_is_refused_with_a_suggestion(void **state)
{
    struct msg_request q;
    struct err e;

    (void)state;
    assert_int_equal(request_with(1, pack_unknown, &q, &e), -EINVAL);
    assert_string_equal(e.text, "unknown request key \"temprature\"; did you mean temperature?");
    assert_int_equal(request_with(1, pack_strange, &q, &e), -EINVAL);
    assert_string_equal(e.text, "unknown request key \"wxyz\"");
    assert_int_equal(request_with(1, pack_must, &q, &e), -EINVAL);
    assert_non_null(strstr(e.text, "\"!colour\""));
}

static void
pack_ids(msgpack_packer *p)
{
    msg_key(p, "ids"), msg_bin(p, "\1\0\0\0", 4);
}

static void
prompt_is_ids_or_text_and_not_empty(void **state)
{
    static const struct {
        const char *p;
        size_t n;
        const char *words;
    } bad[] = {
        { "\x94\x01\x03\x01\x80", 5, "prompt is missing" },
        { "\x94\x01\x03\x01\x81\xa4text\xa0", 11, "text is empty" },
        { "\x94\x01\x03\x01\x81\xa4text\xc4\0", 12, "text is empty" },
        { "\x94\x01\x03\x01\x81\xa3ids\x90", 10, "ids is empty" },
        { "\x94\x01\x03\x01\x81\xa3ids\xc4\0", 11, "ids is empty" },
        { "\x94\x01\x03\x01\x81\xa3ids\xc4\3abc", 14, "ids has 3 bytes" },
        { "\x94\x01\x03\x01\x81\xa3ids\x92\1\xff", 12, "ids[1] is -1" },
        { "\x94\x01\x03\x01\x81\xa3ids\x91\xa1x", 12, "ids[0] is not an integer from 0" },
        { "\x94\x01\x03\x01\x81\xa3ids\x91\xce\x80\0\0\0", 15, "ids[0] is not an integer from 0" },
        { "\x94\x01\x03\x01\x81\xa3ids\xc4\4\0\0\0\x80", 15, "ids[0] is -2147483648" },
        { "\x94\x01\x03\x01\x81\xa4text\xc4\1\xff", 13, "text is not UTF-8" },
    };
    struct msg_request q;
    struct msg m;
    struct err e = { 0 };
    size_t i;

    (void)state;
    for (i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(msg_decode(&m, bad[i].p, bad[i].n, &e), 0);
        assert_int_equal(msg_request(&q, &m, &e), -EINVAL);
        if (!strstr(e.text, bad[i].words)) fail_msg("%zu: %s", i, e.text);
        msg_done(&m);
    }
    assert_int_equal(request_with(1, pack_ids, &q, &e), -EINVAL);
    assert_non_null(strstr(e.text, "both ids and text"));
}

static int n_stops, stop_bytes;

static void
pack_stops(msgpack_packer *p)
{
    char s[300];
    int i;

    memset(s, 's', sizeof s);
    msg_key(p, "stop");
    msgpack_pack_array(p, (size_t)n_stops);
    for (i = 0; i < n_stops; i++) msg_bytes(p, s, (size_t)stop_bytes);
}

static void
number_and_length_of_stop_strings_are_limited(void **state)
{
    struct msg_request q;
    struct err e;

    (void)state;
    n_stops = 16, stop_bytes = 256;
    assert_int_equal(request_with(1, pack_stops, &q, &e), 0);
    assert_int_equal(q.n_stop, 16);
    assert_int_equal(q.stop[15].n, 256);
    n_stops = 17;
    assert_int_equal(request_with(1, pack_stops, &q, &e), -EINVAL);
    n_stops = 1, stop_bytes = 257;
    assert_int_equal(request_with(1, pack_stops, &q, &e), -EINVAL);
    stop_bytes = 0;
    assert_int_equal(request_with(1, pack_stops, &q, &e), -EINVAL);
    assert_non_null(strstr(e.text, "stop[0] is 0 bytes"));
}

static void
ids_may_be_a_bin_or_a_list(void **state)
{
    static const char bin[] = "\x94\x01\x03\x01\x81\xa3ids\xc4\x08\x01\x02\0\0\xff\xff\xff\x7f";
    static const char list[] = "\x94\x01\x03\x01\x81\xa3ids\x92\xcd\x02\x01\xce\x7f\xff\xff\xff";
    struct msg_request q;
    struct msg m;
    struct err e;

    (void)state;
    assert_int_equal(msg_decode(&m, bin, sizeof bin - 1, &e), 0);
    assert_int_equal(msg_request(&q, &m, &e), 0);
    assert_int_equal(q.ids.n, 2);
    assert_int_equal(msg_id(&q.ids, 0), 513);
    assert_int_equal(msg_id(&q.ids, 1), INT32_MAX);
    msg_done(&m);
    assert_int_equal(msg_decode(&m, list, sizeof list - 1, &e), 0);
    assert_int_equal(msg_request(&q, &m, &e), 0);
    assert_int_equal(q.ids.n, 2);
    assert_int_equal(msg_id(&q.ids, 0), 513);
    assert_int_equal(msg_id(&q.ids, 1), INT32_MAX);
    msg_done(&m);
}

static void
every_error_has_a_name_and_a_sentence(void **state)
{
    bool retry;

    (void)state;
#define X(number_, name, word, again, sentence) \
    assert_string_equal(msg_reason(LAGAN_E_##name, &retry), word); \
    assert_int_equal(retry, again); \
    assert_string_equal(msg_reason_sentence(number_), sentence);
    LAGAN_ERRORS(X)
#undef X
    assert_string_equal(msg_reason(LAGAN_FINISH_EOS, &retry), "eos");
    assert_null(msg_reason(0, NULL));
    assert_null(msg_reason(999, &retry));
    assert_false(retry);
}

/* ---- golden frames: version 1, one of each type */

static void
pack_golden(struct frame *f, uint32_t type)
{
    static const char sixteen[] = "0123456789abcdef";

    switch (type) {
    case LAGAN_MSG_HELLO:
        frame_begin(f, type, 0, 3);
        msg_key(&f->p, "min"), msgpack_pack_int(&f->p, 1);
        msg_key(&f->p, "max"), msgpack_pack_int(&f->p, 1);
        msg_key(&f->p, "client"), msg_text(&f->p, "liblagan 0.1.0");
        return;
    case LAGAN_MSG_WELCOME:
        frame_begin(f, type, 0, 5);
        msg_key(&f->p, "proto"), msgpack_pack_int(&f->p, 1);
        msg_key(&f->p, "instance"), msg_bin(&f->p, sixteen, 16);
        msg_key(&f->p, "state"), msg_text(&f->p, "ready");
        msg_key(&f->p, "models"), msgpack_pack_array(&f->p, 1), msg_text(&f->p, "tiny");
        msg_key(&f->p, "features"), msgpack_pack_array(&f->p, 1), msg_text(&f->p, "fit");
        return;
    case LAGAN_MSG_SUBMIT:
        frame_begin(f, type, 42, 6);
        msg_key(&f->p, "ids"), msg_bin(&f->p, "\1\0\0\0\2\0\0\0", 8);
        msg_key(&f->p, "max_tokens"), msgpack_pack_int(&f->p, 8);
        msg_key(&f->p, "temperature"), msgpack_pack_double(&f->p, 0.5);
        msg_key(&f->p, "stop"), msgpack_pack_array(&f->p, 1), msg_text(&f->p, "\n");
        msg_key(&f->p, "request_id"), msg_text(&f->p, "req-1");
        msg_key(&f->p, "fit"), msgpack_pack_true(&f->p);
        return;
    case LAGAN_MSG_ACCEPT:
        frame_begin(f, type, 42, 2);
        msg_key(&f->p, "queue_position"), msgpack_pack_int(&f->p, 3);
        msg_key(&f->p, "at"), msgpack_pack_uint64(&f->p, 1764000000);
        return;
    case LAGAN_MSG_CHUNK:
        frame_begin(f, type, 42, 6);
        msg_key(&f->p, "o"), msgpack_pack_int(&f->p, 0);
        msg_key(&f->p, "i"), msgpack_pack_int(&f->p, 0);
        msg_key(&f->p, "n"), msgpack_pack_int(&f->p, 1);
        msg_key(&f->p, "t"), msg_bin(&f->p, "\3\0\0\0", 4);
        msg_key(&f->p, "s"), msg_text(&f->p, "a");
        msg_key(&f->p, "lp"), msg_bin(&f->p, "\0\0\x80\xbf", 4);
        return;
    case LAGAN_MSG_ACK:
        frame_begin(f, type, 42, 1);
        msg_key(&f->p, "n"), msgpack_pack_int(&f->p, 1);
        return;
    case LAGAN_MSG_DONE:
        frame_begin(f, type, 42, 1);
        msg_key(&f->p, "outputs"), msgpack_pack_array(&f->p, 1), msgpack_pack_map(&f->p, 7);
        msg_key(&f->p, "o"), msgpack_pack_int(&f->p, 0);
        msg_key(&f->p, "reason"), msgpack_pack_int(&f->p, LAGAN_FINISH_STOP);
        msg_key(&f->p, "reason_name"), msg_text(&f->p, "stop");
        msg_key(&f->p, "stop"), msg_text(&f->p, "\n");
        msg_key(&f->p, "n_tokens"), msgpack_pack_int(&f->p, 1);
        msg_key(&f->p, "score"), msgpack_pack_double(&f->p, -1.0);
        msg_key(&f->p, "seed"), msgpack_pack_int(&f->p, 99);
        return;
    case LAGAN_MSG_ERROR:
        frame_begin(f, type, 42, 7);
        msg_key(&f->p, "code"), msgpack_pack_int(&f->p, LAGAN_E_TOO_LONG);
        msg_key(&f->p, "reason_name"), msg_text(&f->p, "too_long");
        msg_key(&f->p, "message"), msg_text(&f->p, "the prompt is too long");
        msg_key(&f->p, "retryable"), msgpack_pack_false(&f->p);
        msg_key(&f->p, "delivered"), msgpack_pack_int(&f->p, 0);
        msg_key(&f->p, "n_prompt_tokens"), msgpack_pack_int(&f->p, 5000);
        msg_key(&f->p, "max_len"), msgpack_pack_int(&f->p, 4096);
        return;
    case LAGAN_MSG_CANCEL:
    case LAGAN_MSG_RESUME:
    case LAGAN_MSG_QUERY:
        frame_begin(f, type, 42, 1);
        msg_key(&f->p, "rids"), msgpack_pack_array(&f->p, 1), msgpack_pack_int(&f->p, 42);
        return;
    case LAGAN_MSG_PING:
    case LAGAN_MSG_PONG:
        frame_begin(f, type, 0, 1);
        msg_key(&f->p, "t"), msgpack_pack_int64(&f->p, 123456789);
        return;
    case LAGAN_MSG_BYE:
        frame_begin(f, type, 0, 2);
        msg_key(&f->p, "reason"), msg_text(&f->p, "draining");
        msg_key(&f->p, "retry_after_ms"), msgpack_pack_int(&f->p, 1000);
        return;
    case LAGAN_MSG_CALL:
        frame_begin(f, type, 43, 2);
        msg_key(&f->p, "verb"), msg_text(&f->p, "status");
        msg_key(&f->p, "args"), msgpack_pack_map(&f->p, 0);
        return;
    case LAGAN_MSG_REPLY:
        frame_begin(f, type, 43, 1);
        msg_key(&f->p, "result"), msgpack_pack_map(&f->p, 1);
        msg_key(&f->p, "state"), msg_text(&f->p, "ready");
        return;
    default:
        frame_begin(f, type, 43, 2);
        msg_key(&f->p, "verb"), msg_text(&f->p, "events");
        msg_key(&f->p, "body"), msgpack_pack_map(&f->p, 0);
    }
}

static const struct {
    uint32_t type;
    const char *name;
} types[] = {
#define X(number_, name, sentence) { number_, #name },
    LAGAN_MESSAGES(X)
#undef X
};

static void
golden_path(char *buf, size_t n, const char *dir, size_t i)
{
    snprintf(buf, n, "%s/v1-%02u-%s.bin", dir, types[i].type, types[i].name);
}

static void
golden_frames_decode_and_encode_unchanged(void **state)
{
    const char *src = getenv("srcdir");
    char dir[512], path[600], got[4096];
    size_t i;

    (void)state;
    snprintf(dir, sizeof dir, "%s/tests/data/frames", src ? src : ".");
    for (i = 0; i < ARRAY_LEN(types); i++) {
        struct frame f;
        struct msg m;
        struct err e = { 0 };
        FILE *in;
        size_t n;

        golden_path(path, sizeof path, dir, i);
        in = fopen(path, "rb");
        if (!in) fail_msg("%s is missing", path);
        n = fread(got, 1, sizeof got, in);
        fclose(in);
        if (msg_decode(&m, got, n, &e) < 0) fail_msg("%s: %s", path, e.text);
        assert_int_equal(m.type, types[i].type);
        assert_int_equal(m.version, 1);
        if (m.type == LAGAN_MSG_SUBMIT) {
            struct msg_request q;

            assert_int_equal(msg_request(&q, &m, &e), 0);
            assert_int_equal(q.max_tokens, 8);
            assert_int_equal(msg_id(&q.ids, 1), 2);
            assert_memory_equal(q.request_id.p, "req-1", q.request_id.n);
            assert_true(q.fit);
        }
        msg_done(&m);
        pack_golden(&f, types[i].type);
        assert_int_equal(f.b.size, n);
        assert_memory_equal(f.b.data, got, n);
        frame_done(&f);
    }
}

static int
write_golden(const char *dir)
{
    char path[600];
    size_t i;

    for (i = 0; i < ARRAY_LEN(types); i++) {
        struct frame f;
        FILE *out;

        golden_path(path, sizeof path, dir, i);
        if (!access(path, F_OK)) continue;
        out = fopen(path, "wb");
        if (!out) return perror(path), 1;
        pack_golden(&f, types[i].type);
        fwrite(f.b.data, 1, f.b.size, out);
        frame_done(&f);
        if (fclose(out)) return perror(path), 1;
    }
    return 0;
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_valid_value_is_accepted),
        cmocka_unit_test(truncated_frame_is_rejected),
        cmocka_unit_test(bytes_after_the_message_are_rejected),
        cmocka_unit_test(header_longer_than_the_frame_is_rejected),
        cmocka_unit_test(ext_types_and_0xc1_are_rejected),
        cmocka_unit_test(nan_and_infinity_are_rejected),
        cmocka_unit_test(invalid_utf8_is_rejected),
        cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(keys_are_unique_short_strings),
        cmocka_unit_test(nodes_are_limited_over_the_whole_frame),
        cmocka_unit_test(integers_in_lists_have_their_own_limit),
        cmocka_unit_test(length_of_strings_and_frames_is_limited),
        cmocka_unit_test(rid_is_found_without_unpacking_the_frame),
        cmocka_unit_test(invalid_envelope_is_rejected_and_its_rid_kept),
        cmocka_unit_test(absent_keys_have_their_default),
        cmocka_unit_test(range_error_names_key_and_range),
        cmocka_unit_test(absent_keys_are_known_with_model_defaults),
        cmocka_unit_test(unknown_request_key_is_refused_with_a_suggestion),
        cmocka_unit_test(prompt_is_ids_or_text_and_not_empty),
        cmocka_unit_test(number_and_length_of_stop_strings_are_limited),
        cmocka_unit_test(ids_may_be_a_bin_or_a_list),
        cmocka_unit_test(every_error_has_a_name_and_a_sentence),
        cmocka_unit_test(golden_frames_decode_and_encode_unchanged),
    };

    if (argc == 3 && !strcmp(argv[1], "--write")) return write_golden(argv[2]);
    return cmocka_run_group_tests_name("msg", tests, NULL, NULL);
}

/* decoder.c - reads the "decoder" of tokenizer.json and decodes tokens with it (decoder.h). */
#include "worker/text/decoder.h"

#include "worker/text/json_section.h"

#include <stdio.h>

/* The steps of a Sequence, in the only order that is supported. */
enum stage { REPLACE, BYTES, FUSE, STRIP, NOTHING_MORE };

struct config {
    char type[64], from[DECODE_STRING], to[DECODE_STRING], scheme[16];
    int8_t prefix; /* SECTION_SIGN */
    uint64_t start, stop;
    struct json list;
};

static int MUST_USE
read_count(void *count, struct json *j, struct err *e)
{
    TRY(json_next(j, e));
    if (j->kind != JSON_NUMBER || json_u64(j, count) < 0)
        return err_set(e, -EBADMSG, "start or stop of Strip is not an integer of at least 0");
    return 0;
}

static int MUST_USE
read_pattern(void *from, struct json *j, struct err *e)
{
    int more;

    TRY(json_next(j, e));
    TRY(json_section_object(j, "pattern", e));
    while ((more = json_section_key(j, e)) > 0) {
        if (!json_is(j, "String"))
            return err_set(e, -ENOTSUP, "a Replace with a pattern of kind %.*s is not served yet",
                           (int)MIN(j->text_len, (size_t)32), j->text);
        TRY(json_section_text(j, "String", from, DECODE_STRING, e));
    }
    return more;
}

static const struct section_field fields[] = {
    SECTION(TEXT, config, "type", type),
    { "pattern", SECTION_READ, offsetof(struct config, from), 0, read_pattern },
    SECTION(TEXT, config, "content", to),
    SECTION(TEXT, config, "replacement", from),
    SECTION(TEXT, config, "prepend_scheme", scheme),
    SECTION(SIGN, config, "add_prefix_space", prefix),
    { "start", SECTION_READ, offsetof(struct config, start), 0, read_count },
    { "stop", SECTION_READ, offsetof(struct config, stop), 0, read_count },
    SECTION(VALUE, config, "decoders", list),
    { NULL },
};

static int MUST_USE
set_replace(struct decoder *d, const char *from, const char *to, struct err *e)
{
    if (!*from) return err_set(e, -EBADMSG, "the pattern or replacement is empty");
    snprintf(d->from, sizeof d->from, "%s", from);
    snprintf(d->to, sizeof d->to, "%s", to);
    return 0;
}

static int MUST_USE
read_step(struct decoder *d, const struct config *c, enum stage *stage, struct err *e)
{
    static const char *const names[] = { "Replace", "ByteFallback", "Fuse", "Strip" };
    enum stage is = REPLACE;
    bool fused = *stage == STRIP;

    while (is < NOTHING_MORE && strcmp(c->type, names[is])) is++;
    if (is == NOTHING_MORE)
        return err_set(e, -ENOTSUP, "type %s is not served yet", *c->type ? c->type : "null");
    if (is < *stage)
        return err_set(e, -ENOTSUP, "%s after %s in a Sequence is not served yet", c->type,
                       names[*stage - 1]);
    *stage = is + 1;
    if (is == REPLACE) return set_replace(d, c->from, c->to, e);
    if (is == BYTES) d->bytes = true;
    if (is == STRIP) {
        /* A stream's end is unknown: no Strip there. Without Fuse, each token would be stripped. */
        if (!fused || c->stop || strcmp(c->to, " ") || c->start > INT32_MAX)
            return err_set(e, -ENOTSUP, "Strip is supported only for leading spaces after Fuse");
        d->strip = (uint32_t)c->start;
    }
    return 0;
}

/* Steps of a Sequence. */
struct steps {
    struct decoder *d;
    enum stage stage;
};

static int MUST_USE
read_element(void *arg, struct json *j, int depth, struct err *e)
{
    struct steps *s = arg;
    struct config c = { 0 };

    (void)depth;
    TRY(json_section_read(j, "an element", fields, &c, e));
    return read_step(s->d, &c, &s->stage, e);
}

int
decoder_open(struct decoder *d, struct json *j, struct err *e)
{
    struct steps steps = { d, REPLACE };
    struct config c = { 0 };

    if (j->kind == JSON_NULL) return err_set(e, -ENOTSUP, "null is not served yet");
    TRY(json_section_read(j, "its value", fields, &c, e));
    if (strcmp(c.type, "ByteLevel") == 0) {
        d->byte_level = true;
        return 0;
    }
    if (strcmp(c.type, "Metaspace") == 0) {
        bool never = strcmp(c.scheme, "never") == 0;

        if (*c.scheme && !never && strcmp(c.scheme, "always") && strcmp(c.scheme, "first"))
            return err_set(e, -ENOTSUP, "prepend_scheme %s is not served yet", c.scheme);
        d->drop_first = !never && c.prefix >= 0;
        return set_replace(d, c.from, " ", e);
    }
    if (strcmp(c.type, "Sequence")) return read_step(d, &c, &steps.stage, e);
    return json_section_sequence(c.list, 0, read_element, &steps, e);
}

uint32_t
decoder_longest(const struct decoder *d, uint32_t longest)
{
    uint64_t n = MAX(longest, 6u); /* 3 malformed bytes before the token */

    if (*d->from) n = MAX(n, n * strlen(d->to) / strlen(d->from) + strlen(d->to));
    return (uint32_t)MIN(n, (uint64_t)INT32_MAX / 8);
}

struct out {
    const struct decoder *d;
    struct decoding *s;
    decode_sink *sink;
    void *arg;
};

static void
put(const struct out *o, const char *text, size_t n)
{
    while (n && *text == ' ' && o->s->stripped < o->d->strip) {
        o->s->stripped++;
        text++;
        n--;
    }
    if (n == 0) return;
    o->s->stripped = o->d->strip;
    o->sink(o->arg, text, (uint32_t)n);
}

static void
put_replaced(const struct out *o, const char *text, size_t n)
{
    const char *from = o->d->from, *to = o->d->drop_first && !o->s->begun ? "" : o->d->to, *at;

    while (*from && n && (at = memmem(text, n, from, strlen(from)))) {
        put(o, text, (size_t)(at - text));
        put(o, to, strlen(to));
        n -= (size_t)(at - text) + strlen(from);
        text = at + strlen(from);
    }
    put(o, text, n);
}

static void
end_character(const struct out *o)
{
    char out[12];

    put(o, out, utf8_end(&o->s->part, !o->d->byte_level, out));
}

void
decoder_add(const struct decoder *d, struct decoding *s, const struct vocab *v,
            const struct piece *p, decode_sink *sink, void *arg)
{
    const struct out o = { d, s, sink, arg };
    const char *text = v->bytes + p->at;
    bool byte = !d->byte_level && d->bytes && p->is_byte;
    char out[12];

    if (byte) put(&o, out, utf8_feed(&s->part, (char)p->byte, true, out));
    for (uint32_t i = 0; d->byte_level && i < p->len; i++)
        put(&o, out, utf8_feed(&s->part, text[i], false, out));
    if (!byte && !d->byte_level) {
        end_character(&o);
        put_replaced(&o, text, p->len);
    }
    s->begun = true;
}

void
decoder_piece(const struct decoder *d, const struct vocab *v, const struct piece *p,
              decode_sink *sink, void *arg)
{
    struct decoding inside = { .begun = true, .stripped = d->strip };
    const struct out o = { d, &inside, sink, arg };
    const char byte = (char)p->byte;

    if (!d->byte_level && d->bytes && p->is_byte)
        put(&o, &byte, 1);
    else if (d->byte_level)
        put(&o, v->bytes + p->at, p->len);
    else
        put_replaced(&o, v->bytes + p->at, p->len);
}

void
decoder_end(const struct decoder *d, struct decoding *s, decode_sink *sink, void *arg)
{
    const struct out o = { d, s, sink, arg };

    end_character(&o);
}

/* post_processor.c - reads the "post_processor" of tokenizer.json (post_processor.h).
 *
 * In a Sequence each processor encloses the result of the processor before it, so the tokens of a
 * later processor are the outer ones. */
#include "worker/text/post_processor.h"

#include "worker/text/json_section.h"

static int MUST_USE
put(token_id *list, uint32_t *n, uint32_t at, token_id id, struct err *e)
{
    if (*n == POST_MAX)
        return err_set(e, -ENOTSUP, "the text has over %d tokens before or after it", POST_MAX);
    memmove(list + at + 1, list + at, (*n - at) * sizeof *list);
    list[at] = id;
    ++*n;
    return 0;
}

/* Reads the id of "cls" or "sep" of RobertaProcessing, for example ["</s>", 2]. */
static int MUST_USE
read_named_id(void *id, struct json *j, struct err *e)
{
    char name[256];

    TRY(json_next(j, e));
    TRY(json_section_array(j, "cls, sep", e));
    TRY(json_section_text(j, "cls, sep", name, sizeof name, e));
    TRY(json_section_id(j, "cls, sep", id, e));
    TRY(json_next(j, e));
    return j->kind == JSON_ARRAY_END
               ? 0
               : err_set(e, -EBADMSG, "cls or sep has more than a name and an id");
}

/* Inserts the ids of the special token `name` at position `at` of a list. */
static int MUST_USE
put_special(struct json table, const char *name, token_id *list, uint32_t *n, uint32_t at,
            struct err *e)
{
    const struct section_field named[] = { { name, SECTION_VALUE }, { NULL } };
    static const struct section_field with_ids[] = { { "ids", SECTION_VALUE }, { NULL } };
    struct json token = { 0 }, ids = { 0 };
    int more;

    TRY(json_section_read(&table, "special_tokens", named, &token, e));
    if (token.p) TRY(json_section_read(&token, "a special token", with_ids, &ids, e));
    if (!ids.p) return err_set(e, -EBADMSG, "\"%.64s\" is not in special_tokens", name);
    TRY(json_section_array(&ids, "ids", e));
    while ((more = json_section_element(&ids, e)) > 0) {
        uint64_t id;

        if (ids.kind != JSON_NUMBER || json_u64(&ids, &id) < 0 || id > INT32_MAX)
            return err_set(e, -EBADMSG, "special_tokens: \"%.64s\" has an invalid token id", name);
        TRY(put(list, n, at++, (token_id)id, e));
    }
    return more;
}

/* Reads a token, {"SpecialToken": {"id": "<s>"}}, or the text, {"Sequence": {"id": "A"}}. */
static int MUST_USE
read_piece(struct json *j, bool *special, char id[256], struct err *e)
{
    static const struct section_field fields[] = { { "id", SECTION_TEXT, 0, 256 }, { NULL } };

    TRY(json_section_object(j, "an element of \"single\"", e));
    TRY(json_section_key(j, e));
    if (j->kind != JSON_KEY || (!json_is(j, "SpecialToken") && !json_is(j, "Sequence")))
        return err_set(e, -EBADMSG, "an element of \"single\" is not SpecialToken or Sequence");
    *special = json_is(j, "SpecialToken");
    id[0] = '\0';
    TRY(json_next(j, e));
    TRY(json_section_read(j, "an element of \"single\"", fields, id, e));
    TRY(json_next(j, e));
    return j->kind == JSON_OBJECT_END ? 0 : err_set(e, -EBADMSG, "an element has two keys");
}

static int MUST_USE
read_template(struct post *p, struct json single, struct json table, struct err *e)
{
    uint32_t before = 0;
    bool text = false;
    int more;

    TRY(json_section_array(&single, "single", e));
    while ((more = json_section_element(&single, e)) > 0) {
        char id[256];
        bool special = false;

        TRY(read_piece(&single, &special, id, e));
        if (!special) {
            if (text || strcmp(id, "A") != 0)
                return err_set(e, -ENOTSUP, "\"single\" may only have one Sequence, \"A\"");
            text = true;
        } else if (text) {
            TRY(put_special(table, id, p->after, &p->n_after, p->n_after, e));
        } else {
            uint32_t was = p->n_before;

            TRY(put_special(table, id, p->before, &p->n_before, before, e));
            before += p->n_before - was;
        }
    }
    TRY(more);
    return text ? 0 : err_set(e, -EBADMSG, "\"single\" has no Sequence (the text)");
}

struct config {
    char type[64];
    token_id cls, sep;
    struct json single, table, list;
};

static const struct section_field fields[] = {
    SECTION(TEXT, config, "type", type),
    { "cls", SECTION_READ, offsetof(struct config, cls), 0, read_named_id },
    { "sep", SECTION_READ, offsetof(struct config, sep), 0, read_named_id },
    SECTION(VALUE, config, "single", single),
    SECTION(VALUE, config, "special_tokens", table),
    SECTION(VALUE, config, "processors", list),
    { NULL },
};

static int MUST_USE
read_post(void *arg, struct json *j, int depth, struct err *e)
{
    struct config c = { .cls = -1, .sep = -1 };
    struct post *p = arg;

    TRY(json_section_read(j, "its value", fields, &c, e));
    if (strcmp(c.type, "ByteLevel") == 0) return 0;
    if (strcmp(c.type, "TemplateProcessing") == 0) return read_template(p, c.single, c.table, e);
    if (strcmp(c.type, "Sequence") == 0)
        return json_section_sequence(c.list, depth, read_post, p, e);
    if (strcmp(c.type, "RobertaProcessing"))
        return err_set(e, -ENOTSUP, "type %s is not served yet", c.type);
    if (c.cls < 0 || c.sep < 0) return err_set(e, -EBADMSG, "RobertaProcessing: no cls or sep");
    TRY(put(p->before, &p->n_before, 0, c.cls, e));
    return put(p->after, &p->n_after, p->n_after, c.sep, e);
}

int
post_processor_open(struct post *p, struct json *j, struct err *e)
{
    return j->kind == JSON_NULL ? 0 : read_post(p, j, 0, e);
}

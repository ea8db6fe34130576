/* post_processor.c - see post_processor.h.
 *
 * In a Sequence each processor encloses the result of the one before, so tokens of a later template
 * are outside. */
#include "worker/text/post_processor.h"

#include "worker/text/json_section.h"

#include <errno.h>
#include <string.h>

static int MUST_USE
put(token_id *list, uint32_t *n, uint32_t at, token_id id, struct err *e)
{
    if (*n == POST_MAX)
        return err_set(e, -ENOTSUP, "post_processor: more than %d tokens on one side", POST_MAX);
    memmove(list + at + 1, list + at, (*n - at) * sizeof *list);
    list[at] = id;
    ++*n;
    return 0;
}

/* ["</s>", 2] of RobertaProcessing. */
static int MUST_USE
read_named_id(struct json *j, token_id *id, struct err *e)
{
    char name[256];

    TRY(json_next(j, e));
    TRY(json_section_array(j, "post_processor: cls, sep", e));
    TRY(json_section_text(j, "post_processor: cls, sep", name, sizeof name, e));
    TRY(json_section_id(j, "post_processor: cls, sep", id, e));
    TRY(json_next(j, e));
    return j->kind == JSON_ARRAY_END
               ? 0
               : err_set(e, -EBADMSG, "post_processor: cls, sep has more than a name and an id");
}

/* Inserts the ids of the special token `name` at position `at` of a list. */
static int MUST_USE
put_special(struct json table, const char *name, token_id *list, uint32_t *n, uint32_t at,
            struct err *e)
{
    int more;

    TRY(json_section_object(&table, "post_processor: special_tokens", e));
    while ((more = json_section_key(&table, e)) > 0) {
        bool this = json_is(&table, name);

        TRY(json_next(&table, e));
        if (!this) {
            TRY(json_skip(&table, e));
            continue;
        }
        TRY(json_section_object(&table, "post_processor: a special token", e));
        while ((more = json_section_key(&table, e)) > 0) {
            if (!json_is(&table, "ids")) {
                TRY(json_skip(&table, e));
                continue;
            }
            TRY(json_next(&table, e));
            TRY(json_section_array(&table, "post_processor: ids", e));
            while ((more = json_section_element(&table, e)) > 0) {
                uint64_t id;

                if (table.kind != JSON_NUMBER || json_u64(&table, &id) < 0 || id > INT32_MAX)
                    return err_set(e, -EBADMSG, "post_processor: ids of \"%.64s\"", name);
                TRY(put(list, n, at++, (token_id)id, e));
            }
            return more;
        }
        TRY(more);
    }
    TRY(more);
    return err_set(e, -EBADMSG, "post_processor: \"%.64s\" is not in special_tokens", name);
}

/* {"SpecialToken": {"id": "<s>", ...}} or {"Sequence": {"id": "A", ...}} */
static int MUST_USE
read_piece(struct json *j, bool *special, char *id, size_t capacity, struct err *e)
{
    int more;

    TRY(json_section_object(j, "post_processor: an element of single", e));
    TRY(json_section_key(j, e));
    if (j->kind != JSON_KEY || (!json_is(j, "SpecialToken") && !json_is(j, "Sequence")))
        return err_set(e, -EBADMSG, "post_processor: single has an unknown element");
    *special = json_is(j, "SpecialToken");
    id[0] = '\0';
    TRY(json_next(j, e));
    TRY(json_section_object(j, "post_processor: an element of single", e));
    while ((more = json_section_key(j, e)) > 0) {
        if (json_is(j, "id"))
            TRY(json_section_text(j, "post_processor: id", id, capacity, e));
        else
            TRY(json_skip(j, e));
    }
    TRY(more);
    TRY(json_next(j, e));
    return j->kind == JSON_OBJECT_END
               ? 0
               : err_set(e, -EBADMSG, "post_processor: single has an unknown element");
}

static int MUST_USE
read_template(struct post *p, struct json single, struct json table, struct err *e)
{
    uint32_t before = 0;
    bool text = false;
    int more;

    TRY(json_section_array(&single, "post_processor: single", e));
    while ((more = json_section_element(&single, e)) > 0) {
        char id[256];
        bool special = false;

        TRY(read_piece(&single, &special, id, sizeof id, e));
        if (!special) {
            if (text || strcmp(id, "A") != 0)
                return err_set(e, -ENOTSUP, "post_processor: single is more than one text");
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
    return text ? 0 : err_set(e, -EBADMSG, "post_processor: single has no place for the text");
}

struct config {
    char type[64];
    token_id cls, sep;
    struct json single, table, list; /* their first event is read */
};

static int MUST_USE
read_config(struct json *j, struct config *c, struct err *e)
{
    int more;

    *c = (struct config){ .cls = -1, .sep = -1 };
    TRY(json_section_object(j, "post_processor", e));
    while ((more = json_section_key(j, e)) > 0) {
        struct json *keep = json_is(j, "single")           ? &c->single
                            : json_is(j, "special_tokens") ? &c->table
                            : json_is(j, "processors")     ? &c->list
                                                           : NULL;

        if (keep) {
            TRY(json_next(j, e));
            *keep = *j;
            TRY(json_skip(j, e));
        } else if (json_is(j, "type")) {
            TRY(json_section_text(j, "post_processor: type", c->type, sizeof c->type, e));
        } else if (json_is(j, "cls")) {
            TRY(read_named_id(j, &c->cls, e));
        } else if (json_is(j, "sep")) {
            TRY(read_named_id(j, &c->sep, e));
        } else {
            TRY(json_skip(j, e));
        }
    }
    return more;
}

static int MUST_USE
read_post(struct post *p, struct json *j, int depth, struct err *e)
{
    struct config c;
    int more;

    TRY(read_config(j, &c, e));
    if (strcmp(c.type, "ByteLevel") == 0) return 0;
    if (strcmp(c.type, "TemplateProcessing") == 0) return read_template(p, c.single, c.table, e);
    if (strcmp(c.type, "RobertaProcessing") == 0) {
        if (c.cls < 0 || c.sep < 0) return err_set(e, -EBADMSG, "post_processor: no cls or sep");
        TRY(put(p->before, &p->n_before, 0, c.cls, e));
        return put(p->after, &p->n_after, p->n_after, c.sep, e);
    }
    if (strcmp(c.type, "Sequence") != 0 || depth == 4)
        return err_set(e, -ENOTSUP, "post_processor type %s is not served yet", c.type);
    TRY(json_section_array(&c.list, "post_processor: processors", e));
    while ((more = json_section_element(&c.list, e)) > 0) TRY(read_post(p, &c.list, depth + 1, e));
    return more;
}

int
post_processor_open(struct post *p, struct json *j, struct err *e)
{
    return j->kind == JSON_NULL ? 0 : read_post(p, j, 0, e);
}

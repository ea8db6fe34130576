/* messages.c - checks the messages of a conversation and writes what the chat template gets.
 *
 * The texts are copied as they were written, with their escapes; parts of type text are joined. */
#include "gateway/api/api_internal.h"

#include <stdarg.h>
#include <stdio.h>

enum { MESSAGES_BYTES = 1 << 20 };

struct messages {
    struct json j;
    uint32_t n;
};

/* What one message has. */
struct message {
    uint32_t index;
    enum { ROLE_NONE, ROLE_SYSTEM, ROLE_DEVELOPER, ROLE_USER, ROLE_ASSISTANT } role;
    bool content;
};

/* Sets a fault about message i; key: "" or ".role". The sentence begins with the path. */
static int
message_fault(struct fault *f, enum api_error error, uint32_t i, const char *key, const char *what)
{
    char path[128];

    snprintf(path, sizeof path, "messages[%u]%s", i, key);
    return fault_set(f, error, path, "%s %s", path, what);
}

static int
read_role(struct exchange *e, struct messages *m, struct message *of, struct fault *f)
{
    static const char *const roles[] = { NULL, "system", "developer", "user", "assistant" };
    static const char *const later[] = { "tool", "function" };

    if (m->j.kind != JSON_STRING)
        return message_fault(f, API_E_INVALID_TYPE, of->index, ".role", "must be a string");
    for (size_t i = 0; i < ARRAY_LEN(later); i++)
        if (json_is(&m->j, later[i]))
            return message_fault(f, API_E_UNSUPPORTED, of->index, ".role",
                                 "is a role that is not served");
    for (size_t i = 1; i < ARRAY_LEN(roles); i++)
        if (json_is(&m->j, roles[i])) of->role = (int)i;
    if (!of->role)
        return message_fault(f, API_E_INVALID_VALUE, of->index, ".role",
                             "must be system, developer, user or assistant");
    if (of->role == ROLE_DEVELOPER && !e->model.developer) of->role = ROLE_SYSTEM;
    out_format(&e->messages, ",\"role\":\"%s\"", roles[of->role]);
    return 0;
}

/* Reads one part of content and adds its text to o. */
static int
read_part(struct messages *m, struct message *of, uint32_t i, struct out *o, struct fault *f)
{
    struct http_text text = { 0 };
    bool is_text = false, typed = false;
    char key[64];

    snprintf(key, sizeof key, ".content[%u]", i);
    if (m->j.kind != JSON_OBJECT)
        return message_fault(f, API_E_INVALID_TYPE, of->index, key, "must be an object");
    while (json_next(&m->j, NULL) == 0 && m->j.kind != JSON_OBJECT_END) {
        bool type = json_is(&m->j, "type"), value = json_is(&m->j, "text"),
             refusal = json_is(&m->j, "refusal");

        if (json_next(&m->j, NULL) < 0) return -EINVAL;
        if (type) {
            typed = m->j.kind == JSON_STRING;
            is_text = typed && (json_is(&m->j, "text") ||
                                (of->role == ROLE_ASSISTANT && json_is(&m->j, "refusal")));
        }
        if ((value || refusal) && m->j.kind == JSON_STRING)
            text = (struct http_text){ m->j.text, m->j.text_len };
        if (json_skip(&m->j, NULL) < 0) return -EINVAL;
    }
    snprintf(key, sizeof key, ".content[%u].type", i);
    if (!typed) return message_fault(f, API_E_MISSING, of->index, key, "is absent or no string");
    if (!is_text)
        return message_fault(f, API_E_UNSUPPORTED, of->index, key,
                             "is not served; only parts of type text are");
    snprintf(key, sizeof key, ".content[%u].text", i);
    if (!text.p) return message_fault(f, API_E_MISSING, of->index, key, "is absent or no string");
    out_bytes(o, text.p, text.n);
    return 0;
}

static int
read_content(struct messages *m, struct message *of, struct out *o, struct fault *f)
{
    of->content = true;
    out_put(o, ",\"content\":\"");
    if (m->j.kind == JSON_STRING) {
        out_bytes(o, m->j.text, m->j.text_len);
    } else if (m->j.kind == JSON_ARRAY) {
        uint32_t i = 0;

        while (json_next(&m->j, NULL) == 0 && m->j.kind != JSON_ARRAY_END)
            TRY(read_part(m, of, i++, o, f));
        if (!i) return message_fault(f, API_E_INVALID_VALUE, of->index, ".content", "has no parts");
    } else {
        return message_fault(f, API_E_INVALID_TYPE, of->index, ".content",
                             "must be a string or a list of parts");
    }
    out_put(o, "\"");
    return 0;
}

/* Copies a member whose value is a string. */
static int
copy_string(struct messages *m, struct message *of, const char *key, struct out *o, struct fault *f)
{
    char path[32];

    snprintf(path, sizeof path, ".%s", key);
    if (m->j.kind != JSON_STRING)
        return message_fault(f, API_E_INVALID_TYPE, of->index, path, "must be a string");
    out_format(o, ",\"%s\":\"", key);
    out_bytes(o, m->j.text, m->j.text_len);
    out_put(o, "\"");
    return 0;
}

/* Reads one member of a message: its key is known. */
static int
read_member(struct exchange *e, struct messages *m, struct message *of, struct http_text key,
            struct fault *f)
{
    static const char *const copied[] = { "name", "reasoning_content", "reasoning" };
    static const char *const refused[] = { "tool_calls", "function_call" };
    char path[96];

#define IS(s) (key.n == strlen(s) && memcmp(key.p, s, key.n) == 0)
    TRY(json_next(&m->j, NULL));
    if (m->j.kind == JSON_NULL) return 0;
    for (size_t i = 0; i < ARRAY_LEN(copied); i++)
        if (IS(copied[i])) return copy_string(m, of, copied[i], &e->messages, f);
    if (IS("role")) return read_role(e, m, of, f);
    if (IS("content")) return read_content(m, of, &e->messages, f);
    snprintf(path, sizeof path, ".%.*s", (int)MIN(key.n, (size_t)64), key.p);
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        const char *from = m->j.p;

        if (!IS(refused[i])) continue;
        TRY(json_skip(&m->j, NULL));
        if (m->j.kind == JSON_ARRAY_END && m->j.p - from == 1) return 0; /* [] */
        return message_fault(f, API_E_UNSUPPORTED, of->index, path, "is not served");
    }
#undef IS
    snprintf(path, sizeof path, "messages[%u].%.*s", of->index, (int)MIN(key.n, (size_t)40), key.p);
    body_ignore(e->body, path, strlen(path));
    return json_skip(&m->j, NULL);
}

static int
read_message(struct exchange *e, struct messages *m, struct fault *f)
{
    struct message of = { .index = m->n++ };
    size_t start = e->messages.n;

    if (m->j.kind != JSON_OBJECT)
        return message_fault(f, API_E_INVALID_TYPE, of.index, "", "must be an object");
    while (json_next(&m->j, NULL) == 0 && m->j.kind != JSON_OBJECT_END)
        TRY(read_member(e, m, &of, (struct http_text){ m->j.text, m->j.text_len }, f));
    if (!of.role) return message_fault(f, API_E_MISSING, of.index, ".role", "is absent");
    if (!of.content) return message_fault(f, API_E_MISSING, of.index, ".content", "is absent");
    if (e->messages.failed) return -ENOMEM;
    out_put(&e->messages, "}");
    e->messages.p[start] = '{'; /* each member begins with a comma */
    return 0;
}

int
messages_read(struct exchange *e, struct fault *f)
{
    const struct value *v = &e->body->v[F_messages];
    struct messages *m = e->reading;
    const char *from;

    if (!v->given) return fault_set(f, API_E_MISSING, "messages", "messages is absent");
    if (!m) {
        if (v->raw.n > MESSAGES_BYTES)
            return fault_set(f, API_E_INVALID_VALUE, "messages",
                             "messages has %zu bytes; the limit is %d", v->raw.n, MESSAGES_BYTES);
        m = e->reading = body_memory(e->body, sizeof *m);
        if (!m) return -ENOMEM;
        *m = (struct messages){ 0 };
        json_open(&m->j, v->raw.p, v->raw.n);
        if (json_next(&m->j, NULL) < 0 || m->j.kind != JSON_ARRAY)
            return fault_set(f, API_E_INVALID_TYPE, "messages", "messages must be a list");
        out_put(&e->messages, "[");
    }
    from = m->j.p;
    while ((size_t)(m->j.p - from) < e->a->read_bytes) {
        TRY(json_next(&m->j, NULL));
        if (m->j.kind == JSON_ARRAY_END) {
            if (!m->n) return fault_set(f, API_E_INVALID_VALUE, "messages", "messages is empty");
            out_put(&e->messages, "]");
            e->reading = NULL;
            return e->messages.failed ? -ENOMEM : 0;
        }
        if (m->n) out_put(&e->messages, ",");
        TRY(read_message(e, m, f));
    }
    return 1;
}

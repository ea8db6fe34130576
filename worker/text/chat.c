/* chat.c - reads conversations, selects the chat template, and separates replies (chat.h). */
#include "worker/text/chat.h"

#include "base/json.h"
#include "worker/text/chat_file.h"
#include "worker/text/chat_templates.h"

#include <stdio.h>

/* ---- reading */

/* State of reading the JSON of a conversation. */
struct talk {
    struct json j;
    char *buffer; /* unused part of the work memory, `left` bytes */
    size_t left;
    uint32_t n; /* number of messages read */
    const char *day;
};

static int
bad(struct err *e, const struct talk *t, const char *what)
{
    return err_set(e, -EINVAL, "messages[%u]: %s", t->n, what);
}

static int
read_role(struct talk *t, enum role *ret, struct err *e)
{
    static const char *const names[] = { "system", "user", "assistant", "developer" };

    for (unsigned i = 0; i < ARRAY_LEN(names) && t->j.kind == JSON_STRING; i++)
        if (json_is(&t->j, names[i])) {
            *ret = (enum role)i;
            return 0;
        }
    return bad(e, t, "role is not system, developer, user or assistant");
}

static int
read_content(struct talk *t, struct span *ret, struct err *e)
{
    int n;

    if (t->j.kind != JSON_STRING) return bad(e, t, "content is not a string");
    n = json_unescape(&t->j, t->buffer, t->left);
    if (n < 0) return bad(e, t, "content occurs twice");
    *ret = (struct span){ t->buffer, (size_t)n };
    t->buffer += n;
    t->left -= (size_t)n;
    return 0;
}

/* Reads the next message. Returns 1: *ret, with content in the work memory; 0: there is none. */
static int
next_message(struct talk *t, struct message *ret, struct err *e)
{
    bool has_role = false, has_content = false;

    ret->reasons = 0;
    TRY(json_next(&t->j, e));
    if (t->j.kind == JSON_ARRAY_END) {
        TRY(json_next(&t->j, e)); /* the end of the document; anything else is an error */
        return 0;
    }
    if (t->j.kind != JSON_OBJECT) return bad(e, t, "is not an object with role and content");
    for (;;) {
        TRY(json_next(&t->j, e));
        if (t->j.kind == JSON_OBJECT_END) break;
        if (json_is(&t->j, "role")) {
            TRY(json_next(&t->j, e));
            TRY(read_role(t, &ret->role, e));
            has_role = true;
        } else if (json_is(&t->j, "content")) {
            TRY(json_next(&t->j, e));
            TRY(read_content(t, &ret->content, e));
            has_content = true;
        } else if (json_is(&t->j, "reasoning_content")) {
            TRY(json_next(&t->j, e));
            if (t->j.kind != JSON_STRING && t->j.kind != JSON_NULL)
                return bad(e, t, "reasoning_content is not a string");
            if (t->j.kind == JSON_STRING) ret->reasons |= REASONING_CONTENT;
        } else if (json_is(&t->j, "reasoning")) {
            TRY(json_next(&t->j, e));
            if (t->j.kind == JSON_STRING) ret->reasons |= REASONING;
            TRY(json_skip(&t->j, e));
        } else if (json_is(&t->j, "tool_calls")) {
            return bad(e, t, "tool_calls is not supported");
        } else {
            TRY(json_skip(&t->j, e));
        }
    }
    if (!has_role || !has_content) return bad(e, t, has_role ? "has no content" : "has no role");
    t->n++;
    return 1;
}

const char *
chat_name(uint32_t i)
{
    return i < CHAT_TEMPLATES ? chat_templates[i].name : NULL;
}

/* ---- a conversation */

static bool
is_day(const char *text, size_t n)
{
    static const char like[] = "0000-00-00\n";
    uint32_t month, day;

    if (n < CHAT_DAY) return false;
    for (uint32_t i = 0; i < CHAT_DAY; i++)
        if (like[i] == '0' ? text[i] < '0' || text[i] > '9' : text[i] != like[i]) return false;
    month = (uint32_t)(10 * (text[5] - '0') + text[6] - '0');
    day = (uint32_t)(10 * (text[8] - '0') + text[9] - '0');
    return month >= 1 && month <= 12 && day >= 1 && day <= 31;
}

static int
put_begin(const struct chat_template *m, struct chat_state *s, struct err *e)
{
    struct message system = { .role = SYSTEM, .content = s->system };

    if (s->system.p && m->flags & CHAT_NO_SYSTEM)
        return err_set(e, -EINVAL, "messages[0]: this chat template does not accept role system");
    chat_say(&s->o, m->begin);
    if (m->system && !s->system.p) system.content = (struct span){ m->system, strlen(m->system) };
    if (m->system && (s->system.p || *m->system)) chat_put(s, m->format, &system);
    if (m->preamble) m->preamble(s);
    return 0;
}

static int
put_message(const struct chat_template *m, struct chat_state *s, const struct message *t,
            uint32_t index, struct err *e)
{
    if (t->role == DEVELOPER || (t->role == SYSTEM && !(m->flags & CHAT_LATE_SYSTEM)))
        return err_set(e, -EINVAL, "messages[%u]: %s", index,
                       t->role == SYSTEM
                           ? "role system is allowed only in the first message"
                           : "this model's chat template does not accept role developer here");
    if (m->flags & CHAT_ALTERNATES && (t->role == USER) != (index % 2 == (s->system.p ? 1 : 0)))
        return err_set(
            e, -EINVAL,
            "messages[%u]: roles must alternate between user and assistant, beginning with user",
            index);
    s->at = (int32_t)index;
    if ((m->thinks & t->reasons) && t->role == ASSISTANT && s->at > s->query)
        return err_set(e, -EINVAL, "messages[%u]: %s after the last user message is not supported",
                       index, t->reasons & REASONING_CONTENT ? "reasoning_content" : "reasoning");
    if (m->message)
        m->message(s, t);
    else
        chat_put(s, m->format, t);
    return 0;
}

static bool
is_tools_reply(struct span c)
{
    static const char before[] = "<tool_response>", behind[] = "</tool_response>";
    enum { BEFORE = sizeof before - 1, BEHIND = sizeof behind - 1 };

    return c.n >= BEHIND && memcmp(c.p, before, BEFORE) == 0 &&
           memcmp(c.p + c.n - BEHIND, behind, BEHIND) == 0;
}

/* Sets *ret to the index of the last user message, -1 if there is none. For Qwen 3, tool replies do
 * not count, and the last message counts if there is no user message. t is a copy. */
static int
find_query(const struct chat_template *m, struct talk t, int32_t *ret, struct err *e)
{
    bool qwen = m->thinks == REASONING_CONTENT, found = false;
    struct message now;
    int more;

    for (*ret = -1;;) {
        TRY(more = next_message(&t, &now, e));
        if (!more) break;
        if (now.role == USER && !(qwen && is_tools_reply(now.content)))
            *ret = (int32_t)t.n - 1, found = true;
    }
    if (!found && qwen) *ret = (int32_t)t.n - 1;
    return 0;
}

int
chat_render(const struct chat *c, const char *text, size_t n, char *work, char *buf, size_t cap,
            struct err *e)
{
    const struct chat_template *m = c->template;
    struct chat_state s = { .o = { buf, 0, cap }, .day = text, .first = true };
    struct talk t = { .buffer = work, .left = n };
    struct message now, next;
    uint32_t index = 0;
    int more;

    if (!m) return err_set(e, -ENOTSUP, "%s", c->why);
    if (!is_day(text, n))
        return err_set(
            e, -EINVAL,
            "messages: the text does not begin with a date line YYYY-MM-DD (internal error)");
    json_open(&t.j, text + CHAT_DAY, n - CHAT_DAY);
    TRY(json_next(&t.j, e));
    if (t.j.kind != JSON_ARRAY) return err_set(e, -EINVAL, "messages is not a list");
    if (m->thinks) TRY(find_query(m, t, &s.query, e));
    TRY(more = next_message(&t, &now, e));
    if (!more) return err_set(e, -EINVAL, "messages is empty");
    if ((now.role == SYSTEM && !(m->flags & CHAT_SYSTEM_IS_MESSAGE)) ||
        (now.role == DEVELOPER && m->flags & CHAT_DEVELOPER)) {
        s.system = now.content;
        index = 1;
        TRY(more = next_message(&t, &now, e));
    }
    TRY(put_begin(m, &s, e));
    for (; more; now = next, s.first = false) {
        TRY(more = next_message(&t, &next, e));
        s.last = !more;
        TRY(put_message(m, &s, &now, index++, e));
    }
    chat_say(&s.o, m->reply);
    if (s.o.n > cap)
        return err_set(e, -EMSGSIZE, "messages has %zu bytes with its template; the limit is %zu",
                       s.o.n, cap);
    return (int)s.o.n;
}

/* ---- selecting the template */

#define NAME_ONE "set the option chat_template to a template name or none"

static token_id
find(struct tokenizer *t, const char *piece)
{
    token_id id[2];
    bool special = false;
    uint32_t n;

    if (tokenizer_encode(t, piece, strlen(piece), true, id, ARRAY_LEN(id), NULL) != 1) return -1;
    return tokenizer_piece(t, id[0], &n, &special) && special ? id[0] : -1;
}

/* Returns the first token that template m needs and the vocabulary lacks; NULL: none. */
static const char *
lacks(const struct chat_template *m, struct tokenizer *t)
{
    for (size_t i = 0; i < ARRAY_LEN(m->needs) && m->needs[i]; i++)
        if (find(t, m->needs[i]) < 0) return m->needs[i];
    return NULL;
}

/* True, with the reason in why, if the checkpoint's bos_token or eos_token differs from m's. */
static bool
names_others(const struct chat_template *m, const char *dir, char why[240])
{
    static const char *const key[] = { "bos_token", "eos_token" };

    for (size_t i = 0; i < m->named; i++) {
        char token[128];
        struct err e = { 0 };
        int there = chat_file_token(dir, key[i], token, sizeof token, &e);

        if (there == 0 || (there > 0 && strcmp(token, m->needs[i]) == 0)) continue;
        snprintf(
            why, 240,
            "the chat template %s has %s for %s, tokenizer_config.json has \"%.60s\"; " NAME_ONE,
            m->name, m->needs[i], key[i], there < 0 ? e.text : token);
        return true;
    }
    return false;
}

static const struct chat_template *
named(const char *name)
{
    for (size_t i = 0; i < CHAT_TEMPLATES; i++)
        if (!strcmp(chat_templates[i].name, name)) return &chat_templates[i];
    return NULL;
}

/* Returns the first template for model_type `type` whose tokens the vocabulary has, or NULL. */
static const struct chat_template *
usual(const char *type, struct tokenizer *t)
{
    static const struct {
        const char *type, *name;
    } usual[] = {
        { "llama", "llama3" },        { "llama", "llama2" },       { "mistral", "mistral" },
        { "gemma3", "gemma3" },       { "gemma3_text", "gemma3" }, { "gemma3n", "gemma3" },
        { "gemma3n_text", "gemma3" }, { "gpt_oss", "harmony" },    { "qwen2", "qwen2" },
        { "qwen3", "qwen3" },
    };

    for (size_t i = 0; i < ARRAY_LEN(usual); i++)
        if (!strcmp(usual[i].type, type) && !lacks(named(usual[i].name), t))
            return named(usual[i].name);
    return NULL;
}

static void
set_tokens(struct chat *c, struct tokenizer *t)
{
    bool harmony = c->template && c->template->flags & CHAT_CHANNELS;

    c->channel = harmony ? find(t, "<|channel|>") : -1;
    c->message = harmony ? find(t, "<|message|>") : -1;
    c->start = harmony ? find(t, "<|start|>") : -1;
    c->end = harmony ? find(t, "<|end|>") : -1;
    c->ret = harmony ? find(t, "<|return|>") : -1;
    c->call = harmony ? find(t, "<|call|>") : -1;
}

static void
choose(struct chat *c, const char *dir, struct tokenizer *t, char note[240])
{
    uint64_t hash[2];
    struct err e = { 0 };
    const char *known;
    char type[32];
    int there = chat_file_hash(dir, hash, &e);

    if (there < 0) {
        snprintf(c->why, sizeof c->why, "%.150s; " NAME_ONE, e.text);
        return;
    }
    known = there ? chat_file_known(hash) : NULL;
    c->template = known ? named(known) : usual(chat_file_type(dir, type), t);
    if (c->template && names_others(c->template, dir, c->why)) {
        c->template = NULL;
        memcpy(note, c->why, sizeof c->why);
        return;
    }
    if (known) return;
    if (!c->template && there)
        snprintf(c->why, sizeof c->why,
                 "the checkpoint's chat template (hash %016llx%016llx) is "
                 "unknown; " NAME_ONE,
                 (unsigned long long)hash[0], (unsigned long long)hash[1]);
    else if (!c->template)
        snprintf(c->why, sizeof c->why, "the checkpoint has no chat template; " NAME_ONE);
    else if (there)
        snprintf(note, 240,
                 "chat template: using %s for the architecture, because the checkpoint's "
                 "template (hash %016llx%016llx) is unknown; " NAME_ONE,
                 c->template->name, (unsigned long long)hash[0], (unsigned long long)hash[1]);
}

void
chat_open(struct chat *c, const char *dir, uint32_t wanted, struct tokenizer *t, char note[240])
{
    const char *token;

    *note = 0;
    *c = (struct chat){ .template = NULL };
    if (wanted == CHAT_AUTO)
        choose(c, dir, t, note);
    else if (wanted == CHAT_NONE)
        snprintf(c->why, sizeof c->why, "the option chat_template is none");
    else
        c->template = named(chat_name(wanted - CHAT_NAMED));
    token = c->template ? lacks(c->template, t) : NULL;
    if (token) {
        snprintf(c->why, sizeof c->why,
                 "the chat template %s needs the special token %s, which the vocabulary lacks",
                 c->template->name, token);
        c->template = NULL;
        memcpy(note, c->why, sizeof c->why);
    }
    set_tokens(c, t);
}

/* ---- the reply */

void
chat_reply_begin(struct chat_reply *r, const struct chat *c)
{
    *r = (struct chat_reply){ .chat = c->channel >= 0 ? c : NULL };
    r->hidden = r->chat != NULL;
}

static void
read_name(struct chat_reply *r, const struct tokenizer *t, token_id id)
{
    uint32_t n = 0;
    bool special = false;
    const char *piece = tokenizer_piece(t, id, &n, &special);

    for (uint32_t i = 0; piece && !special && i < n && r->n < sizeof r->name; i++)
        r->name[r->n++] = piece[i];
}

bool
chat_shows(struct chat_reply *r, const struct tokenizer *t, token_id id)
{
    const struct chat *c = r->chat;

    if (!c) return true;
    if (id == c->channel) {
        r->naming = true;
        r->n = 0;
    } else if (id == c->message) {
        r->hidden = r->n && !(r->n >= 5 && !memcmp(r->name, "final", 5));
        r->naming = false;
        return false;
    } else if (id == c->start || id == c->end || id == c->ret || id == c->call) {
        r->hidden = true;
        r->naming = false;
        r->n = 0;
    } else if (r->naming) {
        read_name(r, t, id);
    }
    return !r->hidden;
}

/* chat.c - see chat.h. Writing, reading a conversation, the templates, choosing one, the reply. */
#include "worker/text/chat.h"

#include "base/json.h"
#include "worker/text/chars.h"
#include "worker/text/chat_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct span {
    const char *p;
    size_t n;
};

/* ---- out */

struct out {
    char *p;
    size_t n, cap; /* n goes on counting beyond cap */
};

static void
put(struct out *o, struct span s)
{
    if (o->n + s.n <= o->cap) memcpy(o->p + o->n, s.p, s.n);
    o->n += s.n;
}

static void
say(struct out *o, const char *words)
{
    put(o, (struct span){ words, strlen(words) });
}

/* As Python's str.strip(): what it takes for white space and Unicode does not are four separators. */
static bool
is_space(int32_t c)
{
    return char_is_space(c) || (c >= 0x1c && c <= 0x1f);
}

static struct span
trim(struct span s)
{
    size_t len;

    while (s.n && is_space(char_at(s.p, s.n, 0, &len))) s.p += len, s.n -= len;
    while (s.n && is_space(char_before(s.p, s.n, &len))) s.n -= len;
    return s;
}

/* ---- in */

enum role { SYSTEM, USER, ASSISTANT, DEVELOPER };

struct turn {
    enum role role;
    struct span content;
};

struct talk {
    struct json j;
    char *room; /* what is left of it */
    size_t left;
    uint32_t n; /* turns read */
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
    static const struct {
        const char *word;
        enum role role;
    } roles[] = { { "system", SYSTEM },
                  { "developer", DEVELOPER },
                  { "user", USER },
                  { "assistant", ASSISTANT } };

    for (size_t i = 0; i < ARRAY_LEN(roles) && t->j.kind == JSON_STRING; i++)
        if (json_is(&t->j, roles[i].word)) return *ret = roles[i].role, 0;
    return bad(e, t, "role is none of system, developer, user and assistant");
}

static int
read_content(struct talk *t, struct span *ret, struct err *e)
{
    int n;

    if (t->j.kind != JSON_STRING) return bad(e, t, "content is not a string");
    n = json_unescape(&t->j, t->room, t->left);
    if (n < 0) return bad(e, t, "content comes twice");
    *ret = (struct span){ t->room, (size_t)n };
    t->room += n;
    t->left -= (size_t)n;
    return 0;
}

/* 1: *ret, which stays where it is; 0: there are no more. */
static int
next_turn(struct talk *t, struct turn *ret, struct err *e)
{
    bool has_role = false, has_content = false;

    TRY(json_next(&t->j, e));
    if (t->j.kind == JSON_ARRAY_END) {
        TRY(json_next(&t->j, e)); /* the end, or more than there should be: a sentence */
        return 0;
    }
    if (t->j.kind != JSON_OBJECT) return bad(e, t, "is not an object");
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
        } else if (json_is(&t->j, "tool_calls")) {
            return bad(e, t, "tool_calls is not served");
        } else {
            TRY(json_skip(&t->j, e));
        }
    }
    if (!has_role || !has_content) return bad(e, t, has_role ? "has no content" : "has no role");
    t->n++;
    return 1;
}

/* ---- the templates: how it begins, a turn, how the reply begins */

struct state {
    struct out o;
    struct span system; /* .p NULL: none */
    const char *day;
    bool first, last; /* of this turn, the system's not counted */
    struct err *e;
};

struct chat_template {
    const char *name;
    const char *needs[3]; /* tokens of the vocabulary, without which it is not this template */
    bool alternates;      /* user, assistant, user, ... and nothing else */
    bool system_is_turn;  /* the first too; else it is taken out, */
    bool late_system;     /* and another is refused, unless it is a turn here */
    int (*begin)(struct state *s);
    void (*turn)(struct state *s, const struct turn *t);
    const char *reply;
};

static int
begin_s(struct state *s)
{
    say(&s->o, "<s>");
    return 0;
}

static int
begin_nothing(struct state *s)
{
    (void)s;
    return 0;
}

static int
refuse_system(struct state *s)
{
    return err_set(s->e, -EINVAL, "messages[0]: this model's template takes no system message");
}

/* What is trimmed is the first user's words with the system's in front of them. */
static void
llama2_turn(struct state *s, const struct turn *t)
{
    struct span c = trim(t->content);

    if (t->role == ASSISTANT) {
        say(&s->o, " ");
        put(&s->o, c);
        say(&s->o, " </s>");
        return;
    }
    say(&s->o, "<s>[INST] ");
    if (s->first && s->system.p) {
        say(&s->o, "<<SYS>>\n");
        put(&s->o, s->system);
        say(&s->o, c.n ? "\n<</SYS>>\n\n" : "\n<</SYS>>");
        if (c.n) c = (struct span){ t->content.p, (size_t)(c.p + c.n - t->content.p) };
    }
    put(&s->o, c);
    say(&s->o, " [/INST]");
}

static void
llama3_head(struct state *s, const char *role)
{
    say(&s->o, "<|start_header_id|>");
    say(&s->o, role);
    say(&s->o, "<|end_header_id|>\n\n");
}

static void
llama3_turn(struct state *s, const struct turn *t)
{
    static const char *const roles[] = { "system", "user", "assistant" };

    llama3_head(s, roles[t->role]);
    put(&s->o, trim(t->content));
    say(&s->o, "<|eot_id|>");
}

static int
llama3_begin(struct state *s)
{
    say(&s->o, "<|begin_of_text|>");
    return 0;
}

static void
llama31_system(struct state *s, const char *today)
{
    say(&s->o, "<|begin_of_text|>");
    llama3_head(s, "system");
    say(&s->o, "Cutting Knowledge Date: December 2023\nToday Date: ");
    say(&s->o, today);
    say(&s->o, "\n\n");
    if (s->system.p) put(&s->o, trim(s->system));
    say(&s->o, "<|eot_id|>");
}

static int
llama31_begin(struct state *s)
{
    llama31_system(s, "26 Jul 2024");
    return 0;
}

static int
llama32_begin(struct state *s)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    uint32_t month = (uint32_t)(10 * (s->day[5] - '0') + s->day[6] - '0');
    char today[16];

    snprintf(today, sizeof today, "%.2s %.3s %.4s", s->day + 8, months + 3 * (month - 1), s->day);
    llama31_system(s, today);
    return 0;
}

static int
mistral_begin(struct state *s)
{
    if (s->system.p) return refuse_system(s);
    return begin_s(s);
}

static void
user_between(struct state *s, const struct turn *t, bool with_system, const char *before,
             const char *behind)
{
    say(&s->o, before);
    if (with_system && s->system.p) {
        put(&s->o, s->system);
        say(&s->o, "\n\n");
    }
    put(&s->o, t->content);
    say(&s->o, behind);
}

static void
mistral_turn(struct state *s, const struct turn *t)
{
    if (t->role == USER) {
        user_between(s, t, false, "[INST] ", " [/INST]");
        return;
    }
    put(&s->o, t->content);
    say(&s->o, "</s>");
}

static void
mistral1_turn(struct state *s, const struct turn *t)
{
    if (t->role == USER) {
        user_between(s, t, s->first, " [INST] ", " [/INST]");
        return;
    }
    say(&s->o, " ");
    put(&s->o, t->content);
    say(&s->o, "</s>");
}

static void
mistral3_turn(struct state *s, const struct turn *t)
{
    if (t->role == USER) {
        user_between(s, t, s->last, "[INST] ", "[/INST]");
        return;
    }
    say(&s->o, " ");
    put(&s->o, trim(t->content));
    say(&s->o, "</s>");
}

static void
nemo_turn(struct state *s, const struct turn *t)
{
    if (t->role == USER) {
        user_between(s, t, s->last, "[INST]", "[/INST]");
        return;
    }
    put(&s->o, t->content);
    say(&s->o, "</s>");
}

static int
gemma3_begin(struct state *s)
{
    say(&s->o, "<bos>");
    return 0;
}

static int
gemma_begin(struct state *s)
{
    if (s->system.p) return refuse_system(s);
    return gemma3_begin(s);
}

static void
gemma_turn(struct state *s, const struct turn *t)
{
    say(&s->o, t->role == USER ? "<start_of_turn>user\n" : "<start_of_turn>model\n");
    if (s->first && s->system.p) {
        put(&s->o, s->system);
        say(&s->o, "\n\n");
    }
    put(&s->o, trim(t->content));
    say(&s->o, "<end_of_turn>\n");
}

static int
harmony_begin(struct state *s)
{
    say(&s->o, "<|start|>system<|message|>You are ChatGPT, a large language model trained by "
               "OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: ");
    put(&s->o, (struct span){ s->day, CHAT_DAY - 1 });
    say(&s->o, "\n\nReasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel "
               "must be included for every message.<|end|>");
    if (!s->system.n) return 0;
    say(&s->o, "<|start|>developer<|message|># Instructions\n\n");
    put(&s->o, s->system);
    say(&s->o, "\n\n<|end|>");
    return 0;
}

/* What it thought before is left out. */
static void
harmony_turn(struct state *s, const struct turn *t)
{
    say(&s->o, t->role == USER ? "<|start|>user<|message|>"
                               : "<|start|>assistant<|channel|>final<|message|>");
    put(&s->o, t->content);
    say(&s->o, "<|end|>");
}

/* clang-format off */
#define HEADERS { "<|begin_of_text|>", "<|start_header_id|>", "<|eot_id|>" }
#define S       { "<s>", "</s>" }
#define TURNS   { "<bos>", "<start_of_turn>", "<end_of_turn>" }
#define MARKS   { "<|start|>", "<|channel|>", "<|message|>" }
/* clang-format on */
#define LLAMA3_REPLY "<|start_header_id|>assistant<|end_header_id|>\n\n"

/* In the order of the key chat_template (ipc/keys.c). */
static const struct chat_template templates[] = {
    /* clang-format off */
    { "llama2",       S,       true,  false, false, begin_nothing, llama2_turn,   "" },
    { "llama3",       HEADERS, false, true,  true,  llama3_begin,  llama3_turn,   LLAMA3_REPLY },
    { "llama3.1",     HEADERS, false, false, true,  llama31_begin, llama3_turn,   LLAMA3_REPLY },
    { "llama3.2",     HEADERS, false, false, true,  llama32_begin, llama3_turn,   LLAMA3_REPLY },
    { "mistral",      S,       true,  false, false, mistral_begin, mistral_turn,  "" },
    { "mistral-v1",   S,       true,  false, false, begin_s,       mistral1_turn, "" },
    { "mistral-v3",   S,       true,  false, false, begin_s,       mistral3_turn, "" },
    { "mistral-nemo", S,       true,  false, false, begin_s,       nemo_turn,     "" },
    { "gemma",        TURNS,   true,  false, false, gemma_begin,   gemma_turn,    "<start_of_turn>model\n" },
    { "gemma3",       TURNS,   true,  false, false, gemma3_begin,  gemma_turn,    "<start_of_turn>model\n" },
    { "harmony",      MARKS,   false, false, false, harmony_begin, harmony_turn,  "<|start|>assistant" },
    /* clang-format on */
};

const char *
chat_name(uint32_t i)
{
    return i < ARRAY_LEN(templates) ? templates[i].name : NULL;
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
put_turn(const struct chat_template *m, struct state *s, const struct turn *t, uint32_t index)
{
    if (t->role == DEVELOPER || (t->role == SYSTEM && !m->late_system))
        return err_set(s->e, -EINVAL, "messages[%u]: a %s message is %s", index,
                       t->role == SYSTEM ? "system" : "developer",
                       t->role == SYSTEM ? "the first, or is not"
                                         : "none of this model's template");
    if (m->alternates && (t->role == USER) != (index % 2 == (s->system.p ? 1 : 0)))
        return err_set(s->e, -EINVAL, "messages[%u]: user and assistant take turns, the user first",
                       index);
    m->turn(s, t);
    return 0;
}

int
chat_render(const struct chat *c, const char *text, size_t n, char *room, char *buf, size_t cap,
            struct err *e)
{
    const struct chat_template *m = c->template;
    struct state s = { .o = { buf, 0, cap }, .day = text, .first = true, .e = e };
    struct talk t = { .room = room, .left = n };
    struct turn now, next;
    uint32_t index = 0;
    int more;

    if (!m) return err_set(e, -ENOTSUP, "%s", c->why);
    if (!is_day(text, n)) return err_set(e, -EINVAL, "messages: there is no day in front of them");
    json_open(&t.j, text + CHAT_DAY, n - CHAT_DAY);
    TRY(json_next(&t.j, e));
    if (t.j.kind != JSON_ARRAY) return err_set(e, -EINVAL, "messages is not a list");
    TRY(more = next_turn(&t, &now, e));
    if (!more) return err_set(e, -EINVAL, "messages is empty");
    if ((now.role == SYSTEM && !m->system_is_turn) ||
        (now.role == DEVELOPER && m->begin == harmony_begin)) {
        s.system = now.content;
        index = 1;
        TRY(more = next_turn(&t, &now, e));
    }
    TRY(m->begin(&s));
    for (; more; now = next, s.first = false) {
        TRY(more = next_turn(&t, &next, e));
        s.last = !more;
        TRY(put_turn(m, &s, &now, index++));
    }
    say(&s.o, m->reply);
    if (s.o.n > cap)
        return err_set(e, -EMSGSIZE, "the conversation is %zu bytes as the model reads it", s.o.n);
    return (int)s.o.n;
}

/* ---- which one */

static token_id
find(struct tokenizer *t, const char *piece)
{
    token_id id[2];
    bool special = false;
    uint32_t n;

    if (tokenizer_encode(t, piece, strlen(piece), true, id, ARRAY_LEN(id), NULL) != 1) return -1;
    return tokenizer_piece(t, id[0], &n, &special) && special ? id[0] : -1;
}

/* The first token that it lacks; NULL: none. */
static const char *
lacks(const struct chat_template *m, struct tokenizer *t)
{
    for (size_t i = 0; i < ARRAY_LEN(m->needs) && m->needs[i]; i++)
        if (find(t, m->needs[i]) < 0) return m->needs[i];
    return NULL;
}

static const struct chat_template *
named(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(templates); i++)
        if (!strcmp(templates[i].name, name)) return &templates[i];
    return NULL;
}

/* By the architecture: the first whose tokens are all there. */
static const struct chat_template *
usual(const char *type, struct tokenizer *t)
{
    static const struct {
        const char *type, *name;
    } usual[] = {
        { "llama", "llama3" },        { "llama", "llama2" },       { "mistral", "mistral" },
        { "gemma3", "gemma3" },       { "gemma3_text", "gemma3" }, { "gemma3n", "gemma3" },
        { "gemma3n_text", "gemma3" }, { "gpt_oss", "harmony" },
    };

    for (size_t i = 0; i < ARRAY_LEN(usual); i++)
        if (!strcmp(usual[i].type, type) && !lacks(named(usual[i].name), t))
            return named(usual[i].name);
    return NULL;
}

static void
set_tokens(struct chat *c, struct tokenizer *t)
{
    bool harmony = c->template && c->template->begin == harmony_begin;

    c->channel = harmony ? find(t, "<|channel|>") : -1;
    c->message = harmony ? find(t, "<|message|>") : -1;
    c->start = harmony ? find(t, "<|start|>") : -1;
    c->end = harmony ? find(t, "<|end|>") : -1;
    c->ret = harmony ? find(t, "<|return|>") : -1;
    c->call = harmony ? find(t, "<|call|>") : -1;
}

#define NAME_ONE "the key chat_template names one of ours, or none"

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
    if (known) return;
    if (!c->template && there)
        snprintf(c->why, sizeof c->why,
                 "the chat template of the checkpoint (%016llx%016llx) is none that is "
                 "served; " NAME_ONE,
                 (unsigned long long)hash[0], (unsigned long long)hash[1]);
    else if (!c->template)
        snprintf(c->why, sizeof c->why, "the checkpoint has no chat template; " NAME_ONE);
    else if (there)
        snprintf(note, 240,
                 "chat template: %s by the architecture, since the checkpoint's own "
                 "(%016llx%016llx) is none we know; " NAME_ONE,
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
        snprintf(c->why, sizeof c->why, "the key chat_template is none");
    else
        c->template = named(chat_name(wanted - CHAT_NAMED));
    token = c->template ? lacks(c->template, t) : NULL;
    if (token) {
        snprintf(c->why, sizeof c->why,
                 "the chat template %s needs the special token %s, which this vocabulary lacks",
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

/* fuzz_chat.c - hostile conversations: rejected with a sentence, or rendered like the reference.
 *
 * Input: a byte that selects the template, a byte of flags, then the bytes that a client sent after
 * a date, or choices. BUILT: choices of roles and contents, from which a conversation is written as
 * JSON. DATE: a changed byte of the date, and a length. CHECKPOINT: choices of a checkpoint's files
 * and of a token that the vocabulary lacks. An accepted conversation must be rendered equally into
 * a buffer of the exact size, and must fail in one that is 1 byte smaller. A built one must give
 * the text of the reference, or be rejected if the reference rejects it. The template that a
 * checkpoint gets must equal the choice of a reference. The text shown of a reply must equal
 * the text of a reference.
 */
#include "tests/fuzz/fuzz.h"

#include "worker/text/chat.h"
#include "worker/text/tokenizer_parts.h"

#include <stdio.h>
#include <unistd.h>

enum { BUILT = 1, CHECKPOINT = 2, DATE = 4, MAX_MESSAGES = 12, MAX_TEXT = 1 << 15 };

static const char DAY[] = "2026-03-09\n";

/* Every template's tokens, and a letter. */
static const char *const tokens[] = {
    "<|im_start|>",
    "<|im_end|>",
    "<s>",
    "</s>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|eot_id|>",
    "<bos>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|turn>",
    "<turn|>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "final",
    "fi",
    "nal",
    " x",
    "a",
};
enum { CHANNEL = 13, MESSAGE = 14, N_SPECIAL = 18, N_TOKENS = 23, NO_TOKEN = N_TOKENS };

/* A vocabulary of all tokens; `without` is the special token that it lacks, or NO_TOKEN. */
static struct tokenizer *
open_tokenizer(int without)
{
    static char doc[4096];
    struct tokenizer *t = calloc(1, sizeof *t);
    int n = snprintf(doc, sizeof doc, "{\"added_tokens\":[");

    for (int i = 0; i < N_TOKENS; i++)
        n += snprintf(doc + n, sizeof doc - (size_t)n,
                      "%s{\"id\":%d,\"content\":\"%s\",\"special\":%s,\"normalized\":false}",
                      i ? "," : "", i, i == without ? "<other>" : tokens[i],
                      i < N_SPECIAL ? "true" : "false");
    n += snprintf(doc + n, sizeof doc - (size_t)n,
                  "],\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"b\":%"
                  "d},\"merges\":[]}}",
                  N_TOKENS);
    check(t && tokenizer_json_read(t, doc, (size_t)n, NULL) == 0);
    return t;
}

/* ---- a conversation by choices */

static const struct content {
    const char *json,
        *text; /* as written, and what it says; trimmed it is the text between the bars */
    const char *trimmed, *beside; /* beside its thoughts, where that is another */
} contents[] = {
    { "", "", "" },
    { "a", "a", "a" },
    { " a ", " a ", "a" },
    { "\\n\\tb\\u00e9 c\\r", "\n\tb\xc3\xa9 c\r", "b\xc3\xa9 c" },
    { "\\u2003x\\u00a0\\u001c", "\xe2\x80\x83x\xc2\xa0\x1c", "x" },
    { "  ", "  ", "" },
    { "\\\"</s>\\\\", "\"</s>\\", "\"</s>\\" },
    { "\\u200bz\xf0\x9f\x98\x80", "\xe2\x80\x8bz\xf0\x9f\x98\x80",
      "\xe2\x80\x8bz\xf0\x9f\x98\x80" },
    { "<think>\\nw\\n</think>\\n\\ny", "<think>\nw\n</think>\n\ny", "<think>\nw\n</think>\n\ny" },
    { "v</think><think>w</think>", "v</think><think>w</think>", "v</think><think>w</think>" },
    { "<think>y\\n", "<think>y\n", "<think>y" },
    { "<tool_response></tool_response>", "<tool_response></tool_response>",
      "<tool_response></tool_response>" },
    { "<|channel>t<channel|> p ", "<|channel>t<channel|> p ", "<|channel>t<channel|> p", "p" },
    { " q <channel|><|channel>r<channel|>\\n s<channel|>\\t",
      " q <channel|><|channel>r<channel|>\n s<channel|>\t",
      "q <channel|><|channel>r<channel|>\n s<channel|>", "q \n s" },
    { "<|channel>", "<|channel>", "<|channel>", "" },
};
static const char *const roles[] = { "system", "user", "assistant", "developer", "tool" };

/* The second key of a message, beside its content: none; reasoning with a content, without one, or
 * empty; or a content that is not a string. */
enum beside { BARE, CONTENT_THOUGHT, THOUGHT, NO_THOUGHT, NO_WORDS };

struct message {
    int role;
    const struct content *c;
    enum beside beside;
};

struct text {
    char p[MAX_TEXT];
    size_t n;
};

static void
add(struct text *t, const char *s)
{
    size_t len = strlen(s);

    check(t->n + len < MAX_TEXT);
    memcpy(t->p + t->n, s, len + 1);
    t->n += len;
}

#define ADD(t, ...) \
    do { \
        const char *const parts[] = { __VA_ARGS__ }; \
        for (size_t part = 0; part < ARRAY_LEN(parts); part++) add(t, parts[part]); \
    } while (0)

/* What Qwen 3 says of an assistant's words. */
static void
ref_thought(struct text *t, const char *x, bool later, bool last)
{
    const char *end = strstr(x, "</think>"), *content = x, *thought = "";
    char lead[64];

    for (const char *at = x; (at = strstr(at, "</think>"));) content = at += strlen("</think>");
    while (end && *content == '\n') content++;
    if (end) {
        snprintf(lead, sizeof lead, "%.*s", (int)(end - x), x);
        thought = lead;
        for (const char *at = lead; (at = strstr(at, "<think>"));)
            thought = at += strlen("<think>");
        while (*thought == '\n') thought++;
        for (size_t n; (n = strlen(thought)) && thought[n - 1] == '\n';)
            lead[thought - lead + (ptrdiff_t)n - 1] = 0;
    }
    if (!later || !(last || *thought)) {
        add(t, content);
        return;
    }
    while (*content == '\n') content++;
    ADD(t, "<think>\n", thought, "\n</think>\n\n", content);
}

/* By hand, template by template. false: refused. */
static bool
ref(const char *name, const struct message *s, uint32_t n, struct text *t)
{
    bool llama3 = !strncmp(name, "llama3", 6), plain3 = !strcmp(name, "llama3");
    bool harmony = !strcmp(name, "harmony"), gemma4 = !strncmp(name, "gemma4", 6);
    bool gemma = !strncmp(name, "gemma", 5) && !gemma4, developer = harmony || gemma4;
    bool llama2 = !strcmp(name, "llama2"), mistral = !strncmp(name, "mistral", 7);
    bool alternates = llama2 || gemma || mistral, qwen = !strncmp(name, "qwen", 4);
    bool qwen3 = !strcmp(name, "qwen3");
    uint32_t query = n - 1;
    bool first_is_system = n && (s[0].role == 0 || (developer && s[0].role == 3));
    const struct content *sys = first_is_system && !plain3 ? s[0].c : NULL;
    uint32_t from = sys ? 1 : 0;
    int asked = -1; /* the last user's */

    t->n = 0;
    if (!n) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (s[i].beside == NO_WORDS) return false;
        if (s[i].role == 1) asked = (int)i;
        if (s[i].role == 1 && strncmp(s[i].c->text, "<tool_response>", 15)) query = i;
    }
    for (uint32_t i = 0; i < n; i++) {
        bool thought = s[i].beside == CONTENT_THOUGHT || (gemma4 && s[i].beside == THOUGHT);

        if (thought && s[i].role == 2 && ((gemma4 && (int)i > asked) || (qwen3 && i > query)))
            return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (s[i].role == 4 || (s[i].role == 3 && !(developer && i == 0))) return false;
        if (s[i].role == 0 && i >= from && !llama3 && !qwen && !gemma4) return false;
        if (alternates && i >= from && (s[i].role == 1) != ((i - from) % 2 == 0)) return false;
    }
    if (sys && (!strcmp(name, "mistral") || !strcmp(name, "gemma"))) return false;
    if (plain3) add(t, "<|begin_of_text|>");
    if (llama3 && !plain3)
        ADD(t,
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge "
            "Date: December 2023\nToday Date: ",
            !strcmp(name, "llama3.1") ? "26 Jul 2024" : "09 Mar 2026", "\n\n",
            sys ? sys->trimmed : "", "<|eot_id|>");
    if (mistral) add(t, "<s>");
    if (gemma || gemma4) add(t, "<bos>");
    if (gemma4 && sys) ADD(t, "<|turn>system\n", sys->trimmed, "<turn|>\n");
    if (harmony)
        add(t, "<|start|>system<|message|>You are ChatGPT, a large language model trained by "
               "OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: 2026-03-09\n\nReasoning: "
               "medium\n\n# Valid channels: analysis, commentary, final. Channel must be included "
               "for every message.<|end|>");
    if (qwen && (sys || !qwen3))
        ADD(t, "<|im_start|>system\n",
            sys ? sys->text
            : name[4] == '2' && name[5]
                ? "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
                : "You are a helpful assistant.",
            "<|im_end|>\n");
    if (harmony && sys && *sys->text)
        ADD(t, "<|start|>developer<|message|># Instructions\n\n", sys->text, "\n\n<|end|>");
    for (uint32_t i = from; i < n; i++) {
        const char *x = s[i].c->text, *trimmed = s[i].c->trimmed;
        bool user = s[i].role == 1, first = i == from, last = i == n - 1;

        if (llama3)
            ADD(t, "<|start_header_id|>", roles[s[i].role], "<|end_header_id|>\n\n", trimmed,
                "<|eot_id|>");
        if (qwen) {
            ADD(t, "<|im_start|>", roles[s[i].role], "\n");
            if (qwen3 && s[i].role == 2 && s[i].beside != CONTENT_THOUGHT)
                ref_thought(t, x, i > query, last);
            else
                add(t, x);
            add(t, "<|im_end|>\n");
        }
        if (harmony)
            ADD(t, user ? "<|start|>user" : "<|start|>assistant<|channel|>final", "<|message|>", x,
                "<|end|>");
        if (gemma4) {
            bool reply = s[i].role == 2;

            if (first || !reply || s[i - 1].role != 2)
                ADD(t, "<|turn>", reply ? "model" : roles[s[i].role], "\n");
            add(t, reply && s[i].c->beside ? s[i].c->beside : trimmed);
            if (!reply || last || s[i + 1].role != 2) add(t, "<turn|>\n");
        }
        if (gemma)
            ADD(t, "<start_of_turn>", user ? "user\n" : "model\n", first && sys ? sys->text : "",
                first && sys ? "\n\n" : "", trimmed, "<end_of_turn>\n");
        if (llama2 && user && first && sys) {
            ADD(t, "<s>[INST] <<SYS>>\n", sys->text, "\n<</SYS>>");
            if (*trimmed) {
                const char *at = strstr(x, trimmed);
                char lead[64];

                snprintf(lead, sizeof lead, "%.*s", (int)(at - x), x);
                ADD(t, "\n\n", lead, trimmed);
            }
            add(t, " [/INST]");
        } else if (llama2) {
            ADD(t, user ? "<s>[INST] " : " ", trimmed, user ? " [/INST]" : " </s>");
        }
        if (mistral && user) {
            bool nemo = !strcmp(name, "mistral-nemo"), one = !strcmp(name, "mistral-v1");
            bool with = sys && (one ? first : last);

            ADD(t,
                one    ? " [INST] "
                : nemo ? "[INST]"
                       : "[INST] ",
                with ? sys->text : "", with ? "\n\n" : "", x,
                nemo || !strcmp(name, "mistral-v3") ? "[/INST]" : " [/INST]");
        } else if (mistral) {
            bool three = !strcmp(name, "mistral-v3");

            ADD(t, three || !strcmp(name, "mistral-v1") ? " " : "", three ? trimmed : x, "</s>");
        }
    }
    if (llama3) add(t, "<|start_header_id|>assistant<|end_header_id|>\n\n");
    if (gemma) add(t, "<start_of_turn>model\n");
    if (gemma4) add(t, "<|turn>model\n");
    if (!strcmp(name, "gemma4")) add(t, "<|channel>thought\n<channel|>");
    if (harmony) add(t, "<|start|>assistant");
    if (qwen) add(t, "<|im_start|>assistant\n");
    return true;
}

/* ---- what is held */

/* Renders text[n], a date line and JSON, from memory of exactly n bytes to one of exactly cap. */
static int
render(const struct chat *c, const char *text, size_t n, char *buf, size_t cap)
{
    char *copy = malloc(n + !n), *scratch = malloc(n + !n), *exact = malloc(cap + !cap);
    struct err e = { 0 };
    int r;

    check(copy && scratch && exact);
    if (n) memcpy(copy, text, n);
    r = chat_render(c, copy, n, scratch, exact, cap, &e);
    check(r >= 0 || (*e.text && (r == -EINVAL || r == -EBADMSG || r == -EMSGSIZE)));
    check(r <= (int)cap);
    if (r > 0) memcpy(buf, exact, (size_t)r);
    free(exact);
    free(scratch);
    free(copy);
    return r;
}

static int
examine(const struct chat *c, const char *json, size_t n, char *buf)
{
    static char again[MAX_TEXT];
    char *text = malloc(sizeof DAY - 1 + n);
    int r;

    check(text);
    memcpy(text, DAY, sizeof DAY - 1);
    if (n) memcpy(text + sizeof DAY - 1, json, n);
    n += sizeof DAY - 1;
    r = render(c, text, n, buf, MAX_TEXT);
    if (r > 0) {
        check(render(c, text, n, again, (size_t)r) == r && !memcmp(buf, again, (size_t)r));
        check(render(c, text, n, again, (size_t)r - 1) == -EMSGSIZE);
    }
    free(text);
    return r;
}

/* A date line with one byte changed, and perhaps cut off. */
static void
examine_date(const struct chat *c, struct in *in)
{
    static char got[MAX_TEXT];
    char text[] = "2026-03-09\n[{\"role\": \"user\", \"content\": \"a\"}]";
    uint32_t at = byte(in) % CHAT_DAY, to = byte(in), n = byte(in), digits = 0;
    bool whole = n >= sizeof text - 1, date;
    int r;

    if (whole) n = sizeof text - 1;
    text[at] = (char)to;
    for (const char *p = "\0\1\2\3\5\6\10\11", *end = p + 8; p < end; p++)
        digits += text[(size_t)*p] >= '0' && text[(size_t)*p] <= '9';
    date = n >= CHAT_DAY && digits == 8 && text[4] == '-' && text[7] == '-' && text[10] == '\n';
    date = date && strncmp(text + 5, "01", 2) >= 0 && strncmp(text + 5, "12", 2) <= 0;
    date = date && strncmp(text + 8, "01", 2) >= 0 && strncmp(text + 8, "31", 2) <= 0;
    r = render(c, text, n, got, MAX_TEXT);
    check(date ? (r > 0) == whole : r == -EINVAL);
}

/* A fault of the built JSON: none; a message without a role, without content, or with a content of
 * another type; bytes after the list, or a list without an end. */
enum fault { NONE, NO_ROLE, NO_CONTENT, NO_STRING, MORE, NO_END };

static void
add_message(struct text *t, const struct message *s, uint32_t how, enum fault f)
{
    add(t, how & 1 ? "{\"name\": [{}]" : "{\"name\": 1");
    if (f != NO_ROLE) ADD(t, ", \"role\": \"", roles[s->role], "\"");
    if (f == NO_STRING) add(t, ", \"content\": [\"a\"]");
    if (f != NO_STRING && f != NO_CONTENT) ADD(t, ", \"content\": \"", s->c->json, "\"");
    if (s->beside != BARE)
        ADD(t, s->beside == THOUGHT ? ", \"reasoning\": " : ", \"reasoning_content\": ",
            s->beside == NO_THOUGHT ? "null"
            : s->beside == NO_WORDS ? "1"
                                    : "\"because\"");
    add(t, how & 2 ? ", \"x\": {\"role\": 1}}" : "}");
}

static void
examine_built(const struct chat *c, const char *name, struct in *in)
{
    static struct text json, want;
    static char got[MAX_TEXT];
    struct message message[MAX_MESSAGES] = { { .role = 1 } };
    uint32_t choice = byte(in), n = choice % (MAX_MESSAGES + 1), at = n ? choice / 16 % n : 0;
    enum fault fault = (enum fault)(byte(in) % 8);
    int r;

    if (fault > NO_END || (!n && fault <= NO_STRING)) fault = NONE;
    json.n = 0;
    add(&json, "[");
    for (uint32_t i = 0; i < n; i++) {
        uint32_t how = byte(in);

        message[i].role = how & 128 ? (int)(how & 7) % 5 : (i + !message[0].role) % 2 ? 2 : 1;
        if (i == 0 && how & 64) message[i].role = 0;
        message[i].c = &contents[(how >> 3 & 7) + (how & 4) + (i && how & 64 ? 3 : 0)];
        message[i].beside = (enum beside)(byte(in) % 16);
        if (message[i].beside > NO_WORDS) message[i].beside = BARE;
        if (i) add(&json, ", ");
        add_message(&json, &message[i], how, i == at ? fault : NONE);
    }
    add(&json, fault == NO_END ? "" : fault == MORE ? "] []" : "]");
    r = examine(c, json.p, json.n, got);
    if (fault == NONE && ref(name, message, n, &want))
        check(r == (int)want.n && !memcmp(got, want.p, want.n));
    else
        check(r < 0);
}

/* A reply of any tokens: shown are those behind <|message|> of the channel final, or of none. */
static void
examine_reply(const struct chat *c, const struct tokenizer *t, struct in *in)
{
    bool channels = c->channel >= 0, shown = !channels, naming = false;
    char name[128] = "";
    struct chat_reply reply;

    chat_reply_begin(&reply, c);
    for (uint32_t i = 0; i < 16; i++) {
        token_id id = (token_id)(byte(in) % N_TOKENS);
        const char *piece = tokens[id];
        bool marks = channels && id >= CHANNEL - 1 && id < N_SPECIAL;
        bool got = chat_shows(&reply, t, id);

        if (!marks) {
            check(got == shown);
            if (channels && naming && id >= N_SPECIAL && strlen(name) < 100) strcat(name, piece);
            continue;
        }
        if (id == CHANNEL) {
            naming = true;
            *name = 0;
        } else if (id == MESSAGE) {
            shown = !*name || !strncmp(name, "final", 5);
            naming = false;
        } else {
            shown = naming = false;
            *name = 0;
        }
    }
}

/* ---- the template of a checkpoint */

static char dir[64];

/* Writes the text as the file `name` of the checkpoint; "": there is no such file. */
static void
put_file(const char *name, const char *text)
{
    char path[128];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!*text) {
        unlink(path);
        return;
    }
    check((f = fopen(path, "w")) && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void
remove_all(void)
{
    put_file("config.json", "");
    put_file("tokenizer_config.json", "");
    put_file("chat_template.jinja", "");
    put_file("chat_template.json", "");
    rmdir(dir);
}

/* The tokens that templates need, by the begin of their names; the checkpoint may name the first
 * n_named of them as its bos_token and eos_token. */
static const struct needs {
    const char *begin;
    uint8_t token[3], n_named;
} needs[] = {
    { "llama3", { 4, 5, 6 }, 1 },     { "llama2", { 2, 3, 3 }, 2 }, { "mistral", { 2, 3, 3 }, 2 },
    { "gemma4", { 7, 10, 11 }, 1 },   { "gemma", { 7, 8, 9 }, 1 },  { "qwen", { 0, 1, 1 }, 0 },
    { "harmony", { 12, 13, 14 }, 0 },
};
/* The templates of an architecture, in order of preference. */
static const struct {
    const char *type, *name[2];
} types[] = {
    { "t5", { NULL } },
    { "llama", { "llama3", "llama2" } },
    { "mistral", { "mistral" } },
    { "gemma3", { "gemma3" } },
    { "gemma3_text", { "gemma3" } },
    { "gemma3n", { "gemma3" } },
    { "gemma3n_text", { "gemma3" } },
    { "gpt_oss", { "harmony" } },
    { "qwen2", { "qwen2" } },
    { "qwen3", { "qwen3" } },
    { "llama is a name of more than 31 bytes", { NULL } },
};
/* What tokenizer_config.json has for bos_token or eos_token. text NULL: it is malformed. */
static const struct {
    const char *json, *text;
} values[] = {
    { "", "" }, /* absent */
    { "\"<s>\"", "<s>" },
    { "\"</s>\"", "</s>" },
    { "\"<bos>\"", "<bos>" },
    { "\"<|begin_of_text|>\"", "<|begin_of_text|>" },
    { "{\"lstrip\": false, \"content\": \"<s>\"}", "<s>" },
    { "{\"content\": \"<bos>\", \"x\": [1]}", "<bos>" },
    { "null", "" },
    { "3", NULL },
};
/* Where the checkpoint's Jinja program is, all unknown; `BAD`: the file is malformed. */
enum source {
    NOWHERE,
    JINJA,
    CONFIG,
    PROCESSOR,
    CONFIG_NULL,
    JINJA_CONFIG_BAD,
    BAD_CONFIG,
    BAD_PROCESSOR,
    BAD_JSON,
    SOURCES
};

struct checkpoint {
    enum source source;
    uint32_t type, value[2]; /* indices; value: of bos_token, eos_token */
    int without;             /* the token that the vocabulary lacks */
};

static void
write_checkpoint(const struct checkpoint *c)
{
    static const char *const keys[] = { "bos_token", "eos_token" };
    static struct text config;
    char type[128];
    bool bad = c->source == BAD_JSON || c->source == JINJA_CONFIG_BAD;

    config.n = 0;
    add(&config, bad ? "[" : "{\"a\": {\"chat_template\": 1}");
    for (int i = 0; i < 2 && !bad; i++)
        if (c->value[i]) ADD(&config, ", \"", keys[i], "\": ", values[c->value[i]].json);
    if (c->source == CONFIG) add(&config, ", \"chat_template\": \"{{ 1 }}\"");
    if (c->source == CONFIG_NULL) add(&config, ", \"chat_template\": null");
    if (c->source == BAD_CONFIG) add(&config, ", \"chat_template\": 1");
    add(&config, bad ? "" : "}");
    snprintf(type, sizeof type, "{\"model_type\": \"%s\"}", types[c->type].type);
    put_file("config.json", c->type ? type : "");
    put_file("tokenizer_config.json", config.p);
    put_file("chat_template.jinja",
             c->source == JINJA || c->source == JINJA_CONFIG_BAD ? "{{ 1 }}\n" : "");
    put_file("chat_template.json", c->source == PROCESSOR       ? "{\"chat_template\": \"{{ 1 }}\"}"
                                   : c->source == BAD_PROCESSOR ? "{\"chat_template\": []}"
                                                                : "");
}

static const struct needs *
needs_of(const char *name)
{
    const struct needs *n = needs;

    while (strncmp(name, n->begin, strlen(n->begin)) != 0) n++;
    return n;
}

static bool
has_tokens(const char *name, int without)
{
    const struct needs *n = needs_of(name);

    return n->token[0] != without && n->token[1] != without && n->token[2] != without;
}

/* Returns the name of the template that the option auto selects, or NULL; *noted: with a note. */
static const char *
ref_auto(const struct checkpoint *c, bool *noted)
{
    const char *name = NULL;
    const struct needs *n;

    *noted = false;
    if (c->source >= BAD_CONFIG) return NULL;
    for (int i = 1; i >= 0; i--)
        if (types[c->type].name[i] && has_tokens(types[c->type].name[i], c->without))
            name = types[c->type].name[i];
    if (!name) return NULL;
    n = needs_of(name);
    *noted = true;
    for (uint32_t i = 0; i < n->n_named; i++) {
        const char *text = values[c->value[i]].text;

        if (c->source == JINJA_CONFIG_BAD) return NULL;
        if (c->value[i] && (!text || strcmp(text, tokens[n->token[i]]) != 0)) return NULL;
    }
    *noted = c->source != NOWHERE && c->source != CONFIG_NULL;
    return name;
}

static void
examine_checkpoint(struct in *in, uint32_t n_names)
{
    static struct tokenizer *lacking[NO_TOKEN + 1];
    struct checkpoint k;
    uint32_t wanted = byte(in), i = 0;
    const char *want;
    char note[240];
    struct chat c, named;
    bool noted;

    k.source = (enum source)(byte(in) % SOURCES);
    k.type = byte(in) % ARRAY_LEN(types);
    k.value[0] = byte(in) % ARRAY_LEN(values);
    k.value[1] = byte(in) % ARRAY_LEN(values);
    k.without = (int)(byte(in) % (N_SPECIAL + 1));
    if (k.without == N_SPECIAL) k.without = NO_TOKEN;
    if (!*dir) {
        /* Thousands of files: in memory where there is such a place. */
        snprintf(dir, sizeof dir, "%s/fuzz_chat-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        check(mkdtemp(dir));
        atexit(remove_all);
    }
    if (!lacking[k.without]) lacking[k.without] = open_tokenizer(k.without);
    write_checkpoint(&k);
    if (wanted & 128) {
        want = chat_name(wanted % n_names);
        noted = !has_tokens(want, k.without);
        if (noted) want = NULL;
    } else {
        want = ref_auto(&k, &noted);
    }
    chat_open(&c, dir, wanted & 128 ? CHAT_NAMED + wanted % n_names : CHAT_AUTO, lacking[k.without],
              note);
    check(noted == (*note != 0));
    check(!c.template == !want && (want || *c.why));
    if (!want) return;
    while (strcmp(chat_name(i), want) != 0) i++;
    chat_open(&named, "/nowhere", CHAT_NAMED + i, lacking[k.without], note);
    check(c.template == named.template);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tokenizer *t;
    static char buf[MAX_TEXT];
    struct in in = { data, data + size };
    uint32_t which = byte(&in), flags = byte(&in), n = 0;
    char note[240];
    struct err e;
    struct chat c;

    if (!t) t = open_tokenizer(NO_TOKEN);
    chat_open(&c, "/nowhere", which & 128 ? CHAT_AUTO : CHAT_NONE, t, note);
    check(!c.template && *c.why && !*note);
    check(chat_render(&c, DAY, sizeof DAY - 1, buf, buf, sizeof buf, &e) == -ENOTSUP && *e.text);
    while (chat_name(n)) n++;
    chat_open(&c, "/nowhere", CHAT_NAMED + which % n, t, note);
    check(c.template && !*note);
    if (flags & BUILT)
        examine_built(&c, chat_name(which % n), &in);
    else if (flags & CHECKPOINT)
        examine_checkpoint(&in, n);
    else if (flags & DATE)
        examine_date(&c, &in);
    else if (in.p < in.end)
        examine(&c, (const char *)in.p, (size_t)(in.end - in.p), buf);
    examine_reply(&c, t, &(struct in){ data, data + size });
    return 0;
}

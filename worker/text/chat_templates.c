/* chat_templates.c - the chat templates: formats and functions print as the Jinja programs do. */
#include "worker/text/chat_templates.h"

#include "worker/text/chars.h"
#include "worker/text/chat.h"

#include <stdio.h>

static void
put(struct out *o, struct span s)
{
    if (o->n + s.n <= o->cap) memcpy(o->p + o->n, s.p, s.n);
    o->n += s.n;
}

void
chat_say(struct out *o, const char *words)
{
    put(o, (struct span){ words, strlen(words) });
}

/* True for what Python's str.strip() removes: White_Space and the separators U+001C to U+001F. */
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

void
chat_put(struct chat_state *s, const struct chat_format *f, const struct message *t)
{
    bool here = (f->with_system == FIRST_MESSAGE && s->first) ||
                (f->with_system == LAST_MESSAGE && s->last);

    chat_say(&s->o, f->before[t->role]);
    if (here && t->role == USER && s->system.p) {
        put(&s->o, s->system);
        chat_say(&s->o, "\n\n");
    }
    put(&s->o, f->trims & 1u << t->role ? trim(t->content) : t->content);
    chat_say(&s->o, f->behind[t->role]);
}

/* Prints a Llama 2 message. The system and the first user message are trimmed as one text. */
static void
llama2_message(struct chat_state *s, const struct message *t)
{
    struct span c = trim(t->content);

    if (t->role == ASSISTANT) {
        chat_say(&s->o, " ");
        put(&s->o, c);
        chat_say(&s->o, " </s>");
        return;
    }
    chat_say(&s->o, "<s>[INST] ");
    if (s->first && s->system.p) {
        chat_say(&s->o, "<<SYS>>\n");
        put(&s->o, s->system);
        chat_say(&s->o, c.n ? "\n<</SYS>>\n\n" : "\n<</SYS>>");
        if (c.n) c = (struct span){ t->content.p, (size_t)(c.p + c.n - t->content.p) };
    }
    put(&s->o, c);
    chat_say(&s->o, " [/INST]");
}

#define HEADER(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"

static const struct chat_format llama3 = {
    .before = { HEADER("system"), HEADER("user"), HEADER("assistant") },
    .behind = { "<|eot_id|>", "<|eot_id|>", "<|eot_id|>" },
    .trims = 1 << SYSTEM | 1 << USER | 1 << ASSISTANT,
};

static void
say_today(struct chat_state *s, const char *today)
{
    chat_say(&s->o, HEADER("system") "Cutting Knowledge Date: December 2023\nToday Date: ");
    chat_say(&s->o, today);
    chat_say(&s->o, "\n\n");
    if (s->system.p) put(&s->o, trim(s->system));
    chat_say(&s->o, "<|eot_id|>");
}

static void
llama31_preamble(struct chat_state *s)
{
    say_today(s, "26 Jul 2024");
}

static void
llama32_preamble(struct chat_state *s)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    uint32_t month = (uint32_t)(10 * (s->day[5] - '0') + s->day[6] - '0');
    char today[16];

    snprintf(today, sizeof today, "%.2s %.3s %.4s", s->day + 8, months + 3 * (month - 1), s->day);
    say_today(s, today);
}

/* clang-format off */
static const struct chat_format
    mistral  = { { "", "[INST] ", "" },   { "", " [/INST]", "</s>" }, 0, NO_MESSAGE },
    mistral1 = { { "", " [INST] ", " " }, { "", " [/INST]", "</s>" }, 0, FIRST_MESSAGE },
    mistral3 = { { "", "[INST] ", " " }, { "", "[/INST]", "</s>" }, 1 << ASSISTANT, LAST_MESSAGE },
    nemo     = { { "", "[INST]", "" },    { "", "[/INST]", "</s>" },  0, LAST_MESSAGE };
/* clang-format on */

static const struct chat_format gemma = {
    .before = { "", "<start_of_turn>user\n", "<start_of_turn>model\n" },
    .behind = { "", "<end_of_turn>\n", "<end_of_turn>\n" },
    .trims = 1 << USER | 1 << ASSISTANT,
    .with_system = FIRST_MESSAGE,
};

/* A reply is printed in the channel "final"; the reasoning of earlier replies is dropped. */
static const struct chat_format harmony = {
    .before = { "", "<|start|>user<|message|>", "<|start|>assistant<|channel|>final<|message|>" },
    .behind = { "", "<|end|>", "<|end|>" },
};

static void
harmony_preamble(struct chat_state *s)
{
    chat_say(&s->o, "<|start|>system<|message|>You are ChatGPT, a large language model trained by "
                    "OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: ");
    put(&s->o, (struct span){ s->day, CHAT_DAY - 1 });
    chat_say(&s->o,
             "\n\nReasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel "
             "must be included for every message.<|end|>");
    if (!s->system.n) return;
    chat_say(&s->o, "<|start|>developer<|message|># Instructions\n\n");
    put(&s->o, s->system);
    chat_say(&s->o, "\n\n<|end|>");
}

static const struct chat_format im = {
    .before = { "<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n" },
    .behind = { "<|im_end|>\n", "<|im_end|>\n", "<|im_end|>\n" },
};

/* Returns s without line breaks at the beginning and, if `end`, at the end. */
static struct span
unlined(struct span s, bool end)
{
    while (s.n && *s.p == '\n') s.p++, s.n--;
    while (end && s.n && s.p[s.n - 1] == '\n') s.n--;
    return s;
}

/* Returns the part of s behind the last occurrence of mark, or all of s if there is none. */
static struct span
behind(struct span s, const char *mark)
{
    size_t n = strlen(mark);

    for (const char *at; (at = memmem(s.p, s.n, mark, n));)
        s = (struct span){ at + n, (size_t)(s.p + s.n - at) - n };
    return s;
}

static void
qwen3_message(struct chat_state *s, const struct message *t)
{
    static const char end[] = "</think>";
    struct message now = *t;
    struct span thought = { t->content.p, 0 };
    const char *at = memmem(t->content.p, t->content.n, end, sizeof end - 1);

    if (t->role != ASSISTANT) {
        chat_put(s, &im, t);
        return;
    }
    if (at && !(t->reasons & REASONING_CONTENT)) {
        thought.n = (size_t)(at - thought.p);
        thought = unlined(behind(thought, "<think>"), true);
        now.content = unlined(behind(now.content, end), false);
    }
    if (s->at <= s->query || !(s->last || thought.n)) {
        chat_put(s, &im, &now);
        return;
    }
    chat_say(&s->o, "<|im_start|>assistant\n<think>\n");
    put(&s->o, thought);
    chat_say(&s->o, "\n</think>\n\n");
    put(&s->o, unlined(now.content, false));
    chat_say(&s->o, "<|im_end|>\n");
}

/* Returns the next visible piece of a Gemma 4 reply, in which reasoning is written <|channel>...
 * <channel|>: the text up to the next reasoning. *text becomes the text behind the reasoning. */
static struct span
next_piece(struct span *text)
{
    static const char begin[] = "<|channel>", end[] = "<channel|>";
    const char *at = memmem(text->p, text->n, end, sizeof end - 1);
    struct span piece = { text->p, at ? (size_t)(at - text->p) : text->n };

    *text = at ? (struct span){ at + sizeof end - 1, text->n - piece.n - (sizeof end - 1) }
               : (struct span){ NULL, 0 };
    at = memmem(piece.p, piece.n, begin, sizeof begin - 1);
    if (at) piece.n = (size_t)(at - piece.p);
    return piece;
}

/* Prints a Gemma 4 reply without its reasoning; the result as a whole is trimmed. */
static void
put_visible(struct out *o, struct span text)
{
    struct span rest = text, piece;
    uint32_t n = 0, last = 0; /* number of pieces; number of the last piece with text, from 1 */
    bool begun = false;

    for (; rest.p; n++) {
        piece = next_piece(&rest);
        if (trim(piece).n) last = n + 1;
    }
    for (n = 1, rest = text; n <= last; n++) {
        struct span cut;

        piece = next_piece(&rest);
        cut = trim(piece);
        if (!begun) piece.n -= (size_t)(cut.p - piece.p), piece.p = cut.p;
        if (n == last) piece.n = (size_t)(cut.p + cut.n - piece.p);
        begun |= cut.n > 0;
        if (begun) put(o, piece);
    }
}

static const struct chat_format gemma4 = {
    .before = { "<|turn>system\n", "<|turn>user\n", "<|turn>model\n" },
    .behind = { "<turn|>\n", "<turn|>\n", "<turn|>\n" },
    .trims = 1 << SYSTEM | 1 << USER,
};

/* Prints a message of Gemma 4, where consecutive replies become one message. */
static void
gemma4_message(struct chat_state *s, const struct message *t)
{
    if (s->open && t->role != ASSISTANT) chat_say(&s->o, gemma4.behind[ASSISTANT]);
    if (t->role != ASSISTANT) {
        chat_put(s, &gemma4, t);
    } else {
        if (!s->open) chat_say(&s->o, gemma4.before[ASSISTANT]);
        put_visible(&s->o, t->content);
        if (s->last) chat_say(&s->o, gemma4.behind[ASSISTANT]);
    }
    s->open = t->role == ASSISTANT && !s->last;
}

/* clang-format off */
#define HEADERS { "<|begin_of_text|>", "<|start_header_id|>", "<|eot_id|>" }
#define S       { "<s>", "</s>" }
#define GEMMA   { "<bos>", "<start_of_turn>", "<end_of_turn>" }
#define CONTENT REASONING_CONTENT
#define EITHER  (REASONING_CONTENT | REASONING)
#define TURNED  { "<bos>", "<|turn>", "<turn|>" }
#define MARKS   { "<|start|>", "<|channel|>", "<|message|>" }
#define IM      { "<|im_start|>", "<|im_end|>" }

#define ALT     CHAT_ALTERNATES
#define ALT_NO  (CHAT_ALTERNATES | CHAT_NO_SYSTEM)
#define LATE    CHAT_LATE_SYSTEM
#define ANY     (CHAT_LATE_SYSTEM | CHAT_SYSTEM_IS_MESSAGE)
#define CHANNEL (CHAT_DEVELOPER | CHAT_CHANNELS)
#define DEV     (CHAT_DEVELOPER | CHAT_LATE_SYSTEM)

#define BOT     "<|begin_of_text|>"
#define REPLY3  HEADER("assistant")
#define ASSIST  "<|im_start|>assistant\n"
#define START   "<|start|>assistant"
#define MODEL   "<|turn>model\n"
#define THOUGHT "<|channel>thought\n<channel|>"
#define HELPFUL "You are a helpful assistant."
#define QWEN    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

const struct chat_template chat_templates[CHAT_TEMPLATES] = {
    /* name, needs, named, thinks, flags, begin, system, format, reply, preamble, message; words in
     * capitals stand for the values above */
    { "llama2",       S,       2, 0, ALT,     "", NULL, NULL, "", NULL, llama2_message },
    { "llama3",       HEADERS, 1, 0, ANY,     BOT, NULL, &llama3, REPLY3 },
    { "llama3.1",     HEADERS, 1, 0, LATE,    BOT, NULL, &llama3, REPLY3, llama31_preamble },
    { "llama3.2",     HEADERS, 1, 0, LATE,    BOT, NULL, &llama3, REPLY3, llama32_preamble },
    { "mistral",      S,       2, 0, ALT_NO,  "<s>", NULL, &mistral, "" },
    { "mistral-v1",   S,       2, 0, ALT,     "<s>", NULL, &mistral1, "" },
    { "mistral-v3",   S,       2, 0, ALT,     "<s>", NULL, &mistral3, "" },
    { "mistral-nemo", S,       2, 0, ALT,     "<s>", NULL, &nemo, "" },
    { "gemma",        GEMMA,   1, 0, ALT_NO,  "<bos>", NULL, &gemma, "<start_of_turn>model\n" },
    { "gemma3",       GEMMA,   1, 0, ALT,     "<bos>", NULL, &gemma, "<start_of_turn>model\n" },
    { "harmony",      MARKS,   0, 0, CHANNEL, "", NULL, &harmony, START, harmony_preamble },
    { "qwen2",        IM,      0, 0, LATE,    "", HELPFUL, &im, ASSIST },
    { "qwen2.5",      IM,      0, 0, LATE,    "", QWEN, &im, ASSIST },
    { "qwen3",        IM,      0, CONTENT, LATE, "", "", &im, ASSIST, NULL, qwen3_message },
    { "gemma4",       TURNED,  1, EITHER, DEV, "<bos>", "", &gemma4, MODEL THOUGHT, NULL,
      gemma4_message },
    { "gemma4-e",     TURNED,  1, EITHER, DEV, "<bos>", "", &gemma4, MODEL, NULL, gemma4_message },
};
/* clang-format on */

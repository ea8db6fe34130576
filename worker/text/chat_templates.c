/* chat_templates.c - see chat_templates.h. Each function follows its Jinja program, including
 * trimming. */
#include "worker/text/chat_templates.h"

#include "worker/text/chars.h"
#include "worker/text/chat.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

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

/* As Python's str.strip(), which removes 4 separators that Unicode does not call white space. */
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

static int
begin_s(struct chat_state *s)
{
    chat_say(&s->o, "<s>");
    return 0;
}

static int
begin_nothing(struct chat_state *s)
{
    (void)s;
    return 0;
}

static int
refuse_system(struct chat_state *s)
{
    return err_set(s->e, -EINVAL, "messages[0]: this model's template takes no system message");
}

/* The first user message is trimmed together with the system message in front of it. */
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

static void
llama3_head(struct chat_state *s, const char *role)
{
    chat_say(&s->o, "<|start_header_id|>");
    chat_say(&s->o, role);
    chat_say(&s->o, "<|end_header_id|>\n\n");
}

static void
llama3_message(struct chat_state *s, const struct message *t)
{
    static const char *const roles[] = { "system", "user", "assistant" };

    llama3_head(s, roles[t->role]);
    put(&s->o, trim(t->content));
    chat_say(&s->o, "<|eot_id|>");
}

static int
llama3_begin(struct chat_state *s)
{
    chat_say(&s->o, "<|begin_of_text|>");
    return 0;
}

static void
llama31_system(struct chat_state *s, const char *today)
{
    chat_say(&s->o, "<|begin_of_text|>");
    llama3_head(s, "system");
    chat_say(&s->o, "Cutting Knowledge Date: December 2023\nToday Date: ");
    chat_say(&s->o, today);
    chat_say(&s->o, "\n\n");
    if (s->system.p) put(&s->o, trim(s->system));
    chat_say(&s->o, "<|eot_id|>");
}

static int
llama31_begin(struct chat_state *s)
{
    llama31_system(s, "26 Jul 2024");
    return 0;
}

static int
llama32_begin(struct chat_state *s)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    uint32_t month = (uint32_t)(10 * (s->day[5] - '0') + s->day[6] - '0');
    char today[16];

    snprintf(today, sizeof today, "%.2s %.3s %.4s", s->day + 8, months + 3 * (month - 1), s->day);
    llama31_system(s, today);
    return 0;
}

static int
mistral_begin(struct chat_state *s)
{
    if (s->system.p) return refuse_system(s);
    return begin_s(s);
}

static void
user_between(struct chat_state *s, const struct message *t, bool with_system, const char *before,
             const char *behind)
{
    chat_say(&s->o, before);
    if (with_system && s->system.p) {
        put(&s->o, s->system);
        chat_say(&s->o, "\n\n");
    }
    put(&s->o, t->content);
    chat_say(&s->o, behind);
}

static void
mistral_message(struct chat_state *s, const struct message *t)
{
    if (t->role == USER) {
        user_between(s, t, false, "[INST] ", " [/INST]");
        return;
    }
    put(&s->o, t->content);
    chat_say(&s->o, "</s>");
}

static void
mistral1_message(struct chat_state *s, const struct message *t)
{
    if (t->role == USER) {
        user_between(s, t, s->first, " [INST] ", " [/INST]");
        return;
    }
    chat_say(&s->o, " ");
    put(&s->o, t->content);
    chat_say(&s->o, "</s>");
}

static void
mistral3_message(struct chat_state *s, const struct message *t)
{
    if (t->role == USER) {
        user_between(s, t, s->last, "[INST] ", "[/INST]");
        return;
    }
    chat_say(&s->o, " ");
    put(&s->o, trim(t->content));
    chat_say(&s->o, "</s>");
}

static void
nemo_message(struct chat_state *s, const struct message *t)
{
    if (t->role == USER) {
        user_between(s, t, s->last, "[INST]", "[/INST]");
        return;
    }
    put(&s->o, t->content);
    chat_say(&s->o, "</s>");
}

static int
gemma3_begin(struct chat_state *s)
{
    chat_say(&s->o, "<bos>");
    return 0;
}

static int
gemma_begin(struct chat_state *s)
{
    if (s->system.p) return refuse_system(s);
    return gemma3_begin(s);
}

static void
gemma_message(struct chat_state *s, const struct message *t)
{
    chat_say(&s->o, t->role == USER ? "<start_of_turn>user\n" : "<start_of_turn>model\n");
    if (s->first && s->system.p) {
        put(&s->o, s->system);
        chat_say(&s->o, "\n\n");
    }
    put(&s->o, trim(t->content));
    chat_say(&s->o, "<end_of_turn>\n");
}

static int
harmony_begin(struct chat_state *s)
{
    chat_say(&s->o, "<|start|>system<|message|>You are ChatGPT, a large language model trained by "
                    "OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: ");
    put(&s->o, (struct span){ s->day, CHAT_DAY - 1 });
    chat_say(&s->o,
             "\n\nReasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel "
             "must be included for every message.<|end|>");
    if (!s->system.n) return 0;
    chat_say(&s->o, "<|start|>developer<|message|># Instructions\n\n");
    put(&s->o, s->system);
    chat_say(&s->o, "\n\n<|end|>");
    return 0;
}

/* Earlier reasoning is dropped. */
static void
harmony_message(struct chat_state *s, const struct message *t)
{
    chat_say(&s->o, t->role == USER ? "<|start|>user<|message|>"
                                    : "<|start|>assistant<|channel|>final<|message|>");
    put(&s->o, t->content);
    chat_say(&s->o, "<|end|>");
}

static void
im_message(struct chat_state *s, const struct message *t)
{
    static const char *const roles[] = { "system\n", "user\n", "assistant\n" };

    chat_say(&s->o, "<|im_start|>");
    chat_say(&s->o, roles[t->role]);
    put(&s->o, t->content);
    chat_say(&s->o, "<|im_end|>\n");
}

static int
im_begin(struct chat_state *s, const char *otherwise)
{
    struct span words = { otherwise, strlen(otherwise) };

    im_message(s, &(struct message){ .role = SYSTEM, .content = s->system.p ? s->system : words });
    return 0;
}

static int
qwen2_begin(struct chat_state *s)
{
    return im_begin(s, "You are a helpful assistant.");
}

static int
qwen25_begin(struct chat_state *s)
{
    return im_begin(s, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
}

static int
qwen3_begin(struct chat_state *s)
{
    return s->system.p ? im_begin(s, "") : 0;
}

/* Removes line breaks at the beginning, and at the end if `end`. */
static struct span
unlined(struct span s, bool end)
{
    while (s.n && *s.p == '\n') s.p++, s.n--;
    while (end && s.n && s.p[s.n - 1] == '\n') s.n--;
    return s;
}

/* The text behind the last mark; all of it if there is none. */
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
        im_message(s, t);
        return;
    }
    if (at && !(t->reasons & REASONING_CONTENT)) {
        thought.n = (size_t)(at - thought.p);
        thought = unlined(behind(thought, "<think>"), true);
        now.content = unlined(behind(now.content, end), false);
    }
    if (s->at <= s->query || !(s->last || thought.n)) {
        im_message(s, &now);
        return;
    }
    chat_say(&s->o, "<|im_start|>assistant\n<think>\n");
    put(&s->o, thought);
    chat_say(&s->o, "\n</think>\n\n");
    put(&s->o, unlined(now.content, false));
    chat_say(&s->o, "<|im_end|>\n");
}

/* Takes the next part of a reply that is divided by reasoning marks; text becomes the rest. The
 * first part has no mark before it. */
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

/* The text of a reply without its reasoning, trimmed. */
static void
put_visible(struct out *o, struct span text)
{
    struct span rest = text, piece;
    uint32_t n = 0, last = 0; /* parts; number of the last part with visible text, from 1 */
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

static void
gemma4_head(struct chat_state *s, const char *role)
{
    chat_say(&s->o, "<|turn>");
    chat_say(&s->o, role);
    chat_say(&s->o, "\n");
}

static int
gemma4_begin(struct chat_state *s)
{
    chat_say(&s->o, "<bos>");
    if (!s->system.p) return 0;
    gemma4_head(s, "system");
    put(&s->o, trim(s->system));
    chat_say(&s->o, "<turn|>\n");
    return 0;
}

/* Consecutive replies are one message. */
static void
gemma4_message(struct chat_state *s, const struct message *t)
{
    static const char *const roles[] = { "system", "user", "model" };

    if (s->open && t->role != ASSISTANT) chat_say(&s->o, "<turn|>\n");
    if (!s->open || t->role != ASSISTANT) gemma4_head(s, roles[t->role]);
    if (t->role == ASSISTANT)
        put_visible(&s->o, t->content);
    else
        put(&s->o, trim(t->content));
    s->open = t->role == ASSISTANT && !s->last;
    if (!s->open) chat_say(&s->o, "<turn|>\n");
}

/* clang-format off */
#define HEADERS { "<|begin_of_text|>", "<|start_header_id|>", "<|eot_id|>" }
#define S       { "<s>", "</s>" }
#define GEMMA   { "<bos>", "<start_of_turn>", "<end_of_turn>" }
#define EITHER  (REASONING_CONTENT | REASONING)
#define TURNED  { "<bos>", "<|turn>", "<turn|>" }
#define MARKS   { "<|start|>", "<|channel|>", "<|message|>" }
#define IM      { "<|im_start|>", "<|im_end|>" }
/* clang-format on */
#define LLAMA3_REPLY "<|start_header_id|>assistant<|end_header_id|>\n\n"

const struct chat_template chat_templates[CHAT_TEMPLATES] = {
    /* clang-format off */
    /*                       named alternates system_is_message late_system developer channels thinks */
    { "llama2",         S,       2, true,  false, false, false, false, 0, begin_nothing, llama2_message,   "" },
    { "llama3",         HEADERS, 1, false, true,  true,  false, false, 0, llama3_begin,  llama3_message,   LLAMA3_REPLY },
    { "llama3.1",       HEADERS, 1, false, false, true,  false, false, 0, llama31_begin, llama3_message,   LLAMA3_REPLY },
    { "llama3.2",       HEADERS, 1, false, false, true,  false, false, 0, llama32_begin, llama3_message,   LLAMA3_REPLY },
    { "mistral",        S,       2, true,  false, false, false, false, 0, mistral_begin, mistral_message,  "" },
    { "mistral-v1",     S,       2, true,  false, false, false, false, 0, begin_s,       mistral1_message, "" },
    { "mistral-v3",     S,       2, true,  false, false, false, false, 0, begin_s,       mistral3_message, "" },
    { "mistral-nemo",   S,       2, true,  false, false, false, false, 0, begin_s,       nemo_message,     "" },
    { "gemma",          GEMMA,   1, true,  false, false, false, false, 0, gemma_begin,   gemma_message,    "<start_of_turn>model\n" },
    { "gemma3",         GEMMA,   1, true,  false, false, false, false, 0, gemma3_begin,  gemma_message,    "<start_of_turn>model\n" },
    { "harmony",        MARKS,   0, false, false, false, true,  true,  0, harmony_begin, harmony_message,  "<|start|>assistant" },
    { "qwen2",          IM,      0, false, false, true,  false, false, 0, qwen2_begin,   im_message,       "<|im_start|>assistant\n" },
    { "qwen2.5",        IM,      0, false, false, true,  false, false, 0, qwen25_begin,  im_message,       "<|im_start|>assistant\n" },
    { "qwen3",          IM,      0, false, false, true,  false, false, REASONING_CONTENT, qwen3_begin,   qwen3_message,    "<|im_start|>assistant\n" },
    { "gemma4",         TURNED,  1, false, false, true,  true,  false, EITHER, gemma4_begin,  gemma4_message,   "<|turn>model\n<|channel>thought\n<channel|>" },
    { "gemma4-e",       TURNED,  1, false, false, true,  true,  false, EITHER, gemma4_begin,  gemma4_message,   "<|turn>model\n" },
    /* clang-format on */
};

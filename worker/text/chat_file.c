/* chat_file.c - reads chat templates and model_type, and has the hashes of published templates. */
#include "worker/text/chat_file.h"

#include "base/file.h"
#include "worker/text/json_section.h"
#include "worker/text/tokenizer_parts.h"

#include <stdio.h>

/* Hashes of published templates. A template has several if files differ in white space or spell
 * line breaks in its strings literally or as \n. */
/* clang-format off */
static const struct {
    uint64_t hash[2];
    const char *name;
} known[] = {
    { { UINT64_C(0x4adb1f81f5c508ea), UINT64_C(0x24f6d97f87d647f5) }, "llama2" },
    { { UINT64_C(0x97aac26c37e4a675), UINT64_C(0xcb7c5112dfc4a3b0) }, "llama2" },
    { { UINT64_C(0x5cc730147bc3d550), UINT64_C(0x018fc13eb46e7703) }, "llama2" },
    { { UINT64_C(0x848be123721a9679), UINT64_C(0xd8a2bf0556e03726) }, "llama2" },
    { { UINT64_C(0x8f20b9eda669ce10), UINT64_C(0xb97891b7adc1beb8) }, "llama3" },
    { { UINT64_C(0x0debe51b618cd792), UINT64_C(0x80e4830e93c6d9f7) }, "llama3" },
    { { UINT64_C(0x09facc0e4aa94318), UINT64_C(0x9799ad6e2dea0594) }, "llama3" },
    { { UINT64_C(0x11cc8d79e9815d5c), UINT64_C(0x866fc8fa50da12fe) }, "llama3" },
    { { UINT64_C(0x9ddcd6cd71f96dd7), UINT64_C(0x6ca7779b7730196a) }, "llama3.1" },
    { { UINT64_C(0x573e1bcc8c56f178), UINT64_C(0xc3d57e38f5ff0756) }, "llama3.2" },
    { { UINT64_C(0xf395fc5daa794129), UINT64_C(0xa5d004210ebce758) }, "mistral" },
    { { UINT64_C(0x6aef58edf0d62df9), UINT64_C(0xf89cfc57f651ff3d) }, "mistral-v1" },
    { { UINT64_C(0xdf3ebcd92fa9a63f), UINT64_C(0xc6614466504d495b) }, "mistral-v3" },
    { { UINT64_C(0x638e5c8b05f6278c), UINT64_C(0xcae647ce0048756b) }, "mistral-nemo" },
    { { UINT64_C(0x8b30bb763d138e69), UINT64_C(0x2c2e86beabccd2a4) }, "gemma" },
    { { UINT64_C(0x3e5cd793cecbf962), UINT64_C(0x344edb205734f341) }, "gemma" },
    { { UINT64_C(0x6c84c2da794fd4c1), UINT64_C(0xd9c620dcaf86f38d) }, "gemma3" },
    { { UINT64_C(0xb273f4af11a32b5e), UINT64_C(0xd927416abefac232) }, "gemma3" },
    { { UINT64_C(0x263b899cbc2e65c8), UINT64_C(0xb619f5c43a935065) }, "harmony" },
    { { UINT64_C(0xe580c2da83415028), UINT64_C(0xd5d943bd0bd9082f) }, "qwen2" },
    { { UINT64_C(0x7c4c17cbc95b1d56), UINT64_C(0xc79034a9d5f0ae58) }, "qwen2" },
    { { UINT64_C(0xe392aa06018503fd), UINT64_C(0x2469c9508f79506e) }, "qwen2.5" },
    { { UINT64_C(0x4457e3d12b367a86), UINT64_C(0x0283f874ff58d644) }, "qwen3" },
    { { UINT64_C(0x0fab82ce8f4d5175), UINT64_C(0xc9e0155c80737cf2) }, "qwen3" },
    { { UINT64_C(0xb63cc14647b4fdba), UINT64_C(0xee1d2baa49816bb7) }, "gemma4" },
    { { UINT64_C(0xf5c55ae4f37edb32), UINT64_C(0x6b025fb2ff9052d9) }, "gemma4-e" },
};
/* clang-format on */

const char *
chat_file_known(const uint64_t hash[2])
{
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (!memcmp(known[i].hash, hash, sizeof known[i].hash)) return known[i].name;
    return NULL;
}

/* Returns 1 with the content of dir/name in *text[*n], or 0 if there is no such file. */
static int
read_one(const char *dir, const char *name, char **text, size_t *n, struct err *e)
{
    int r = file_read(text, n, dir, name, SECTION_FILE_MAX, e);

    if (r == -ENOENT) return 0;
    return r < 0 ? r : 1;
}

/* Finds a key of the JSON object text[n]. Returns 1 if the last event of *j is the key, or 0. */
static int
find_key(struct json *j, const char *text, size_t n, const char *key, struct err *e)
{
    int more;

    json_open(j, text, n);
    TRY(json_next(j, e));
    TRY(json_section_object(j, "the document", e));
    while ((more = json_section_key(j, e)) > 0 && !json_is(j, key)) TRY(json_skip(j, e));
    return more;
}

/* Replaces the JSON in *text by the decoded string of a key. Returns 0 if it is absent or null. */
static int
string_of(char **text, size_t *n, const char *key, struct err *e)
{
    struct json j;
    int r = find_key(&j, *text, *n, key, e);

    if (r <= 0) return r;
    TRY(json_next(&j, e));
    if (j.kind == JSON_NULL) return 0;
    if (j.kind != JSON_STRING) return err_set(e, -EBADMSG, "%s is not a string", key);
    r = json_unescape(&j, *text, *n); /* shorter than the quoted string */
    if (r < 0) return err_set(e, -EBADMSG, "%s is longer when decoded (internal error)", key);
    *n = (size_t)r;
    return 1;
}

static int
find_template(const char *dir, char **text, size_t *n, struct err *e)
{
    static const char *const names[] = { "tokenizer_config.json", "chat_template.json" };
    int r = read_one(dir, "chat_template.jinja", text, n, e);

    for (size_t i = 0; r == 0 && i < ARRAY_LEN(names); i++) {
        r = read_one(dir, names[i], text, n, e);
        if (r <= 0) continue;
        r = string_of(text, n, "chat_template", e);
        if (r < 0) err_while(e, r, "%s/%s", dir, names[i]);
        if (r == 0) free(TAKE(*text));
    }
    return r;
}

int
chat_file_hash(const char *dir, uint64_t hash[2], struct err *e)
{
    CLEAN(file_free_at) char *text = NULL;
    size_t n = 0;
    int r = find_template(dir, &text, &n, e);

    if (r <= 0) return r;
    while (n && strchr(" \t\r\n", text[n - 1])) n--;
    vocab_cache_hash_of(text, n, hash);
    return 1;
}

/* Accepts the three forms of a token: a string, an object with the key "content", or null. */
int
chat_file_token(const char *dir, const char *key, char *buf, size_t n, struct err *e)
{
    const struct section_field fields[] = { { "content", SECTION_TEXT, 0, n }, { NULL } };
    CLEAN(file_free_at) char *text = NULL;
    struct json j, value;
    size_t len = 0;
    int r = read_one(dir, "tokenizer_config.json", &text, &len, e);

    if (r > 0) r = find_key(&j, text, len, key, e);
    if (r <= 0) return r;
    value = j;
    TRY(json_next(&value, e));
    buf[0] = '\0';
    TRY(value.kind == JSON_OBJECT ? json_section_read(&value, "the token", fields, buf, e)
                                  : json_section_text(&j, "the token", buf, n, e));
    return 1;
}

const char *
chat_file_type(const char *dir, char type[32])
{
    CLEAN(file_free_at) char *text = NULL;
    size_t n = 0;

    if (read_one(dir, "config.json", &text, &n, NULL) <= 0 ||
        string_of(&text, &n, "model_type", NULL) <= 0 || n >= 32)
        n = 0;
    snprintf(type, 32, "%.*s", (int)n, n ? text : "");
    return type;
}

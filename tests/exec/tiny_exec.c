/* tiny_exec.c - see tiny_exec.h. */
#include "tests/exec/tiny_exec.h"

#include "tests/test.h"

#include <stdio.h>
#include <unistd.h>

const char LLAMA[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 300, \"hidden_size\": 32, \"intermediate_size\": "
    "64,"
    " \"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"max_position_embeddings\": 512}";
const char WIDE[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 131072, \"hidden_size\": 8,"
    " \"intermediate_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 1,"
    " \"max_position_embeddings\": 512}";
const char T5[] =
    "{\"model_type\": \"t5\", \"vocab_size\": 200, \"d_model\": 24, \"d_kv\": 8, \"num_heads\": 2,"
    " \"d_ff\": 40, \"num_layers\": 3, \"num_decoder_layers\": 1,"
    " \"feed_forward_proj\": \"gated-gelu\", \"decoder_start_token_id\": 0}";

const token_id SOURCE[12] = { 5, 9, 100, 42, 42, 7, 199, 3, 77, 61, 12, 1 };

struct harness h;
static char dir[64];

void
open_model(const char *config, struct harness_options o)
{
    char path[128];
    FILE *f;

    snprintf(dir, sizeof dir, "/tmp/lagan-exec-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(config, f);
    fclose(f);
    o.dir = dir;
    o.random = 7;
    if (!o.tokens_per_block) o.tokens_per_block = 16;
    if (!o.n_lanes) o.n_lanes = 1;
    if (!o.max_tokens) o.max_tokens = 64;
    harness_open(&h, &o);
    unlink(path);
    rmdir(dir);
}

struct harness_slot *
start_slot(uint32_t i, uint32_t n, uint32_t n_new)
{
    struct harness_slot *s = &h.slot[i];

    memset(s, 0, sizeof *s);
    for (uint32_t k = 0; k < n; k++) s->token[k] = (token_id)((i * 37 + k * k * 11 + 5) % 200);
    s->n_prompt = n;
    s->n_new = n_new;
    s->active = true;
    s->how = (struct sampling){ .top_p = 1,
                                .repetition_penalty = 1,
                                .want_logprobs = true,
                                .forced_bos = -1,
                                .forced_eos = -1 };
    return s;
}

void
take(struct made *m)
{
    memset(m, 0, sizeof *m);
    for (uint32_t i = 0; i < HARNESS_SLOTS; i++) {
        const struct harness_slot *s = &h.slot[i];

        memcpy(m->token[i], s->token, sizeof s->token);
        memcpy(m->logprob[i], s->logprob, sizeof s->logprob);
    }
    harness_close(&h);
}

void
start_mixed(bool encoder)
{
    for (uint32_t i = 0; i < 11; i++) {
        struct harness_slot *s = start_slot(i, 1 + 2 * i % 7, 5 + 4 * i);

        s->late = 3 * (i / 2);
        if (encoder) {
            s->source = SOURCE;
            s->n_source = 1 + i;
        }
        s->how.seed = i;
        s->how.temperature = i % 3 ? 0 : 0.8f;
        s->how.repetition_penalty = i % 4 ? 1 : 1.3f;
        s->how.logprobs = i % 5 ? 0 : 3;
        s->how.first_new = s->n_prompt;
        s->how.min_new = i % 2 ? 6 : 0;
        s->how.n_eos = 2;
        s->how.eos[0] = 3;
        s->how.eos[1] = (int32_t)(i + 50);
    }
}

/* limits.c - worst-case needs of a configuration and of a request, and whether they fit.
 *
 * Functions read limits, a sequence and pool sizes, and change no state. "Fits" means in an empty
 * cache; admit.c decides whether blocks are free now.
 */
#include "worker/sched/sched_internal.h"

uint32_t
tokens_in_flight(const struct seq *q, uint32_t chunk)
{
    return STEPS_OUT * (MAX(chunk, q->n_draft) + 1) + tokens_unreported(q);
}

uint32_t
seq_group_size(const struct seq *q)
{
    return q->first_member ? q->n_members : 1;
}

uint32_t
max_running(const struct scheduler_limits *l)
{
    return MIN(l->max_seqs, l->max_tokens);
}

uint32_t
seq_group_edits(const struct scheduler_limits *l)
{
    return MIN(max_running(l), (uint32_t)MAX_BEAMS);
}

uint32_t
fork_edits(const struct scheduler *s, const struct seq *q)
{
    const struct kv_config *c = kv_config(s->kv);
    uint32_t n = 0;

    if (q->first_member != q || q->has_forked) return 0;
    for (uint32_t g = 0; g < c->n_groups; g++)
        n += c->group[g].kind == KV_STATE
                 ? c->group[g].n_layers
                 : CEIL_DIV(c->group[g].kind == KV_CROSS ? q->n_source : q->n_shared,
                            c->tokens_per_block);
    return n * (q->n_members - 1);
}

int
admission(const struct scheduler *s, const struct seq *q, uint32_t n_prompt, struct admission *ret,
          struct err *e)
{
    uint32_t most = s->l.max_chunk ? MIN(s->l.max_chunk, s->l.max_tokens) : s->l.max_tokens;
    uint32_t len = q->n_prompt + q->max_new, chunk = MIN(most, n_prompt);
    /* Ways to chunk the prompt; the first one needs the most blocks. It keeps window blocks for two
     * steps in flight and for the positions that a replacement worker computes again; the others
     * allow one prefill step in flight. */
    uint32_t unit = MIN(s->unit, chunk), least = q->n_draft ? tokens_in_flight(q, 0) : 0;
    const struct admission way[] = { { chunk, tokens_in_flight(q, chunk) },
                                     { chunk, MAX(chunk, least) },
                                     { unit, MAX(unit, least) } };
    int r = -EMSGSIZE;

    for (size_t i = 0; i < ARRAY_LEN(way) && r < 0; i++) {
        struct kv_need n = kv_need(s->kv, len, q->n_source, way[i].rows);

        if (q->first_member) {
            struct kv_need each = kv_fork_need(s->kv, len, q->n_shared, way[i].rows, q->beam);

            for (uint32_t g = 0; g < kv_config(s->kv)->n_groups; g++)
                n.n_blocks[g] += (q->n_members - 1) * each.n_blocks[g];
        }
        *ret = way[i];
        r = kv_fits_alone(s->kv, &n, len, q->n_source, i + 1 < ARRAY_LEN(way) ? NULL : e);
    }
    return r;
}

uint32_t
admission_len(const struct scheduler *s, const struct seq *q)
{
    return q->n_prompt + (s->l.policy == POLICY_MAX_UTILIZATION ? 0 : q->max_new);
}

static int
check_ascending(const char *name, const uint32_t *list, uint32_t n, struct err *e)
{
    for (uint32_t i = 1; i < n; i++)
        if (list[i] <= list[i - 1])
            return err_set(e, -EINVAL, "%s must be ascending: %u follows %u", name, list[i],
                           list[i - 1]);
    return 0;
}

int
limits_check(const struct scheduler_limits *l, const struct kv_config *kv, struct err *e)
{
    unsigned work = 0, want = WORK_PREFILL | WORK_DECODE;

    if (l->policy > POLICY_MAX_REQUESTS)
        return err_set(e, -EINVAL, "unknown policy %d (internal error)", (int)l->policy);
    if (l->max_seqs == 0 || l->max_tokens == 0 || l->max_len == 0)
        return err_set(e, -EINVAL,
                       "max_num_seqs is %u, max_num_batched_tokens %u, max_model_len %u: all must "
                       "be at least 1",
                       l->max_seqs, l->max_tokens, l->max_len);
    if (l->max_seqs > kv->n_slots)
        return err_set(e, -EINVAL, "max_num_seqs is %u, but the block tables have only %u slots",
                       l->max_seqs, kv->n_slots);
    if (l->chunk_unit > l->max_tokens || (l->max_chunk && l->chunk_unit > l->max_chunk))
        return err_set(e, -EINVAL,
                       "the chunk unit is %u tokens; max_num_batched_tokens, %u, and the tokens of "
                       "a prompt in a step, %u, may not be less",
                       l->chunk_unit, l->max_tokens, l->max_chunk ? l->max_chunk : l->max_tokens);
    if (l->n_enc_layers > 0) want |= WORK_ENCODER;
    if (l->n_enc_layers > 0 && l->max_enc_tokens == 0)
        return err_set(e, -EINVAL, "max_source_tokens is 0; a model with an encoder needs more");
    if (l->n_enc_batches > ARRAY_LEN(l->enc_batch))
        return err_set(e, -EINVAL, "encoder_batch_size has %u values, at most 8", l->n_enc_batches);
    TRY(check_ascending("encoder_batch_size", l->enc_batch, l->n_enc_batches, e));
    if (l->n_draft > MAX_DRAFT)
        return err_set(e, -EINVAL, "a step has %u draft tokens; at most %d are allowed", l->n_draft,
                       MAX_DRAFT);
    for (uint32_t g = 0; g < kv->n_groups; g++)
        if (l->n_draft && kv->group[g].kind == KV_STATE)
            return err_set(e, -EINVAL, "draft tokens need a rollback; recurrent state has none");
    for (uint32_t i = 0; i < l->n_draft; i++)
        if (l->draft_back[i] > i)
            return err_set(e, -EINVAL, "draft token %u has no token %u before it to continue",
                           i + 1, 1u + l->draft_back[i]);
    if (l->n_buckets > ARRAY_LEN(l->bucket))
        return err_set(e, -EINVAL, "%u graph sizes; at most 64 are allowed", l->n_buckets);
    TRY(check_ascending("graph sizes", l->bucket, l->n_buckets, e));
    if (l->n_lanes == 0 || l->n_lanes > kv->n_lanes)
        return err_set(e, -EINVAL, "there are %u lanes; the block tables allow 1 to %u", l->n_lanes,
                       kv->n_lanes);
    for (unsigned i = 0; i < l->n_lanes; i++) {
        if (l->lane_work[i] & work)
            return err_set(e, -EINVAL, "lane %u shares work with another lane (internal error)", i);
        if (l->lane_tokens[i] && l->chunk_unit > l->lane_tokens[i])
            return err_set(e, -EINVAL,
                           "the chunk unit is %u tokens, but lane %u allows only %u in a step",
                           l->chunk_unit, i, l->lane_tokens[i]);
        work |= l->lane_work[i];
    }
    if (want & ~work)
        return err_set(e, -EINVAL, "no lane does work 0x%x (internal error)", want & ~work);
    return 0;
}

int
limits_check_uncounted(const struct scheduler *s, struct err *e)
{
    const struct scheduler_limits *l = &s->l;
    struct kv_need all =
        kv_need(s->kv, l->max_len, l->max_enc_tokens,
                STEPS_OUT * (l->max_tokens + 1) + UNREPORTED_STEPS * (1u + l->n_draft));

    for (uint32_t g = 0; g < kv_config(s->kv)->n_groups; g++)
        all.n_blocks[g] = (uint32_t)MIN((uint64_t)all.n_blocks[g] * s->max_running,
                                        (uint64_t)UINT32_MAX);
    if (kv_fits_alone(s->kv, &all, l->max_len, l->max_enc_tokens, NULL) == 0) return 0;
    return err_set(e, -EINVAL,
                   "policy max_requests: %u requests of %u tokens do not fit the KV cache; use "
                   "another policy, or lower max_num_seqs or max_model_len",
                   s->max_running, l->max_len);
}

/* Checks that the group of first member q can be admitted and forked as a whole. */
static int
check_group(const struct scheduler *s, const struct seq *q, struct err *e)
{
    const struct kv_config *c = kv_config(s->kv);
    uint32_t n = 0, entries = 0;

    for (const struct seq *m = q; m; m = m->next_member, n++) {
        check(m->first_member == q && m->state == SEQ_NEW && m->beam == q->beam);
        check(m->n_prompt > q->n_shared && m->max_new > 0 && m->id == q->id);
        check(m->cap >= (uint64_t)m->n_prompt + m->max_new && (m == q || !m->prompt_logprobs));
    }
    check(n == q->n_members && !q->has_forked && (!q->beam || q->n_prompt == q->n_shared + 1));
    for (uint32_t g = 0; g < c->n_groups; g++) entries += c->group[g].max_entries;
    if (n > s->max_running)
        return err_set(
            e, -EMSGSIZE,
            "%u beams or outputs are too many: max_num_seqs and max_num_batched_tokens allow %u", n,
            s->max_running);
    if (!(q->beam && q->next_member->n_adopted) &&
        fork_edits(s, q) > (seq_group_edits(&s->l) - 1) * entries)
        return err_set(
            e, -EMSGSIZE,
            "a prompt of %u tokens is too long for %u outputs; shorten it or lower their number",
            q->n_shared + 1, n);
    return 0;
}

int
limits_check_seq(const struct scheduler *s, const struct seq *q, struct err *e)
{
    struct admission way;

    check(q->state == SEQ_NEW && q->max_new > 0 && q->n_eos <= q->n_end);
    check(q->n_end <= ARRAY_LEN(q->end_id));
    check(q->cap >= (uint64_t)q->n_prompt + q->max_new);
    if (q->n_prompt == 0) return err_set(e, -EINVAL, "the prompt is empty");
    if (s->l.n_enc_layers == 0 && q->n_source > 0)
        return err_set(e, -EINVAL, "the model has no encoder, the request has an encoder input");
    if (s->l.n_enc_layers > 0 && (q->n_source == 0 || !q->source))
        return err_set(e, -EINVAL, "the model has an encoder, the request has no encoder input");
    if (q->n_source > 0 && q->n_source > s->l.max_enc_tokens)
        return err_set(e, -EMSGSIZE, "the encoder input has %u tokens, max_source_tokens is %u",
                       q->n_source, s->l.max_enc_tokens);
    if (q->lora && q->pages > s->l.pages)
        return err_set(e, -EMSGSIZE, "the LoRA adapter needs %u memory pages, the device has %u",
                       q->pages, s->l.pages);
    if ((uint64_t)q->n_prompt + q->max_new > s->l.max_len)
        return err_set(e, -EMSGSIZE,
                       "a prompt of %u tokens and %u tokens to generate exceed max_model_len %u",
                       q->n_prompt, q->max_new, s->l.max_len);
    if (q->first_member) TRY(check_group(s, q, e));
    /* with max_utilization, all tokens except the last one may be prompt tokens after preemption */
    return admission(
        s, q, s->l.policy == POLICY_MAX_UTILIZATION ? q->n_prompt + q->max_new - 1 : q->n_prompt,
        &way, e);
}

uint32_t
scheduler_most_new(const struct scheduler *s, const struct seq *q)
{
    uint32_t fits = 0, most = q->max_new;
    struct seq other = *q;
    struct admission way;

    if (q->first_member) other.first_member = &other;
    other.n_draft = 0; /* scheduler_add() omits drafts that do not fit */
    while (fits < most) {
        uint32_t n = most - (most - fits) / 2;
        bool preempts = s->l.policy == POLICY_MAX_UTILIZATION;

        other.max_new = n;
        if (admission(s, &other, preempts ? q->n_prompt + n - 1 : q->n_prompt, &way, NULL) < 0)
            most = n - 1;
        else
            fits = n;
    }
    return fits;
}

uint32_t
scheduler_edits(const struct scheduler_limits *l, const struct kv_config *c)
{
    uint64_t chunk = l->max_tokens / c->tokens_per_block + 2, edits = c->n_slots;

    for (uint32_t g = 0; g < c->n_groups; g++) {
        uint64_t rows = c->group[g].kind == KV_CROSS ? l->max_enc_tokens : l->max_tokens;

        edits += rows / c->tokens_per_block + 2 * (uint64_t)max_running(l);
        /* window group: clears entries that left the window, of STEPS_OUT chunks per sequence */
        if (c->group[g].kind == KV_WINDOW) edits += STEPS_OUT * max_running(l) * chunk;
        if (c->group[g].kind == KV_STATE) /* the live state and one snapshot of each layer */
            edits += 2 * (uint64_t)max_running(l) * c->group[g].n_layers;
        /* all entries of seq_group_edits() slots: adopted, with a cache hit, or forking members */
        edits += (uint64_t)seq_group_edits(l) * c->group[g].max_entries;
    }
    return (uint32_t)MIN(edits, UINT32_MAX);
}

/* Counts one partial block per sequence and KV group, the blocks onboarded for starting sequences,
 * and as many offloaded blocks. */
uint32_t
scheduler_copies(const struct scheduler_limits *l, const struct kv_config *c)
{
    uint64_t copies = (uint64_t)max_running(l) * c->n_groups;

    for (uint32_t g = 0; g < c->n_groups; g++) {
        if (c->group[g].kind == KV_STATE) /* a sequence starts from a snapshot and ends with one */
            copies += 2 * (uint64_t)max_running(l) * c->group[g].n_layers;
        /* may_begin() limits the table entries of starting sequences to this number */
        if (c->host_bytes) copies += (uint64_t)seq_group_edits(l) * c->group[g].max_entries;
    }
    return (uint32_t)MIN(c->host_bytes ? 2 * copies : copies, UINT32_MAX);
}

/* layout.h - computes a number from the layout of structs that programs of different builds share.
 *
 * LAYOUT(s, f) depends on the offset, size and name length of field f of struct s. Sums of it over
 * all fields change when a field is added, removed, moved or resized, or when fields with names of
 * different length swap places. A static assertion beside a version number compares the sum with a
 * constant:
 *
 *     SHM_LAYOUT        shared memory of a worker: ipc/shm.h and ipc/records.h   SHM_ABI_MAJOR
 *     LOG_FILE_LAYOUT   ledger log of lagand: daemon/ledger/ledger_save.h        LOG_FILE_MAGIC
 *
 * After an intended change: raise the version, then write the new sum beside it. tools/layout.sh
 * prints both sums. */
#pragma once
#include "base/base.h"
#include "ipc/records.h"
#include "ipc/shm.h"
#include "ipc/stat.h"

#define LAYOUT(s, f) \
    +(uint64_t)(offsetof(struct s, f) + 1) * \
        (sizeof(((struct s *)NULL)->f) * 65537 + sizeof(#f) * 257 + sizeof(#s))

#define LAYOUT2(s, a, b) LAYOUT(s, a) LAYOUT(s, b)
#define LAYOUT4(s, a, b, c, d) LAYOUT2(s, a, b) LAYOUT2(s, c, d)

#define SUBMIT_LAYOUT_LAGAND(name)
#define SUBMIT_LAYOUT_WORKER(name) LAYOUT(rec_submit, name)
#define SUBMIT_LAYOUT_SAMPLER(name) LAYOUT(rec_submit, name)
#define SUBMIT_LAYOUT_X(kind, name, least, most, preset, record, fallback, sentence) \
    SUBMIT_LAYOUT_##record(name)
#define ABSENT_LAYOUT_FIXED(name)
#define ABSENT_LAYOUT_MODEL(name) +(uint64_t)ABSENT_##name * sizeof(#name)
#define ABSENT_LAYOUT_X(kind, name, least, most, preset, record, fallback, sentence) \
    ABSENT_LAYOUT_##fallback(name)

/* clang-format off */
/* The number for struct rec_submit, including the bits of its field absent. */
#define SUBMIT_LAYOUT_SUM (sizeof(struct rec_submit) \
    LAGAN_FIELDS(SUBMIT_LAYOUT_X) LAGAN_FIELDS(ABSENT_LAYOUT_X) \
    LAYOUT4(rec_submit, ledger_index, gen, id, seed) \
    LAYOUT4(rec_submit, deadline_ns, n_prompt, n_decoder, n_done) \
    LAYOUT4(rec_submit, text_bytes, done_text, done_score, n_eos) \
    LAYOUT4(rec_submit, n_stop_ids, n_stop, n_bias, chat) \
    LAYOUT4(rec_submit, flags, salt_bytes, client, lora) LAYOUT(rec_submit, absent))

#define KV_BLOCKS_LAYOUT LAYOUT4(rec_kv_blocks, allocated, allocated_new, reused, missed)

/* The number for all other records. */
#define RECORDS_LAYOUT_SUM (0 \
    LAYOUT2(rec_notice, ledger_index, gen) LAYOUT(rec_notice, flags) \
    LAYOUT4(rec_text, call, gen, op, flags) LAYOUT2(rec_text, n_ids, text_bytes) \
    LAYOUT4(rec_ready, vocab, max_len, max_source, n_slots) \
    LAYOUT4(rec_ready, tokens_per_block, n_groups, name_bytes, has_text) \
    LAYOUT4(rec_ready, kv_bytes, weight_bytes, max_tokens, load_ns) \
    LAYOUT4(rec_ready, adopted, beams, temperature, decoder_start) \
    LAYOUT2(rec_ready, max_request_seqs, device_bytes) LAYOUT(rec_ready, tokenizer_fault) \
    LAYOUT4(rec_ready, unserved, dtype, max_text_bytes, defaults) \
    LAYOUT2(rec_ready, fingerprint, chat_template) \
    LAYOUT2(rec_step, step, lane) LAYOUT(rec_step, n_ent) \
    LAYOUT4(rec_out, ledger_index, gen, output, n_tokens) \
    LAYOUT4(rec_out, has_logprobs, first, text_bytes, text_first) LAYOUT2(rec_out, n_top, score) \
    LAYOUT4(rec_finish, ledger_index, gen, output, reason) \
    LAYOUT4(rec_finish, score, n_tokens, cached, adopted) \
    LAYOUT2(rec_finish, recomputed, n_prompt_tokens) LAYOUT(rec_finish, stop) \
    LAYOUT2(rec_finish, scheduled_ns, kv_blocks) KV_BLOCKS_LAYOUT \
    LAYOUT4(rec_reject, ledger_index, gen, reason, text_bytes) \
    LAYOUT(rec_reject, n_prompt_tokens) LAYOUT2(rec_phase, phase, done) \
    LAYOUT(rec_phase, total) LAYOUT4(rec_prompt, ledger_index, gen, first, n) \
    LAYOUT(rec_prompt, n_top) \
    LAYOUT4(rec_tensor, ledger_index, gen, first, n) LAYOUT2(rec_tensor, cols, kind) \
    LAYOUT4(rec_text_done, call, gen, reason, n_ids) LAYOUT(rec_text_done, text_bytes) \
    LAYOUT2(rec_kv_events, n, flags) LAYOUT(rec_kv_events, lost) \
    LAYOUT4(rec_kv_event, name, parent, op, group) \
    LAYOUT4(rec_kv_event, priority, tier, why, n_tokens))

/* The number for everything that lagand and a worker share: records, statistics (index and name
 * length of each), and the structs that they access in shared memory. */
#define STAT_LAYOUT_X(kind, name, unit, sentence) +(STAT_##name + 1) * sizeof(#name)
#define GROUP_STAT_LAYOUT_X(kind, name, unit, sentence) +(GROUP_STAT_##name + 1) * sizeof(#name) * 3
#define SHM_LAYOUT_SUM (SUBMIT_LAYOUT_SUM + RECORDS_LAYOUT_SUM \
    STATS(STAT_LAYOUT_X) GROUP_STATS(GROUP_STAT_LAYOUT_X) \
    LAYOUT4(shm_hdr, abi_major, epoch, kind, total_size) LAYOUT2(shm_hdr, ring_log2, daemon_id) \
    LAYOUT4(shm_ctl, tail, head, wait_seq, hb_count) \
    LAYOUT4(shm_ctl, hb_mono_ns, state, phase, phase_deadline_ns) \
    LAYOUT2(shm_ctl, stat_seq, stat) LAYOUT(shm_ctl, group_stat) \
    LAYOUT4(panic_message, state, signal, address, step) \
    LAYOUT4(panic_message, n_frames, text_bytes, frame, text) \
    LAYOUT2(panic_message, module, module_name) LAYOUT2(step_trace, n, retired) \
    LAYOUT(step_trace, entry) LAYOUT4(step_entry, seq, step, lane, n_ids) LAYOUT(step_entry, id) \
    LAYOUT2(step_records, n, entry) LAYOUT4(step_record, seq, step, at_ns, plan_ns) \
    LAYOUT4(step_record, queue_ns, device_ns, prefill_tokens, decode_tokens) \
    LAYOUT4(step_record, encoder_tokens, n_segments, cached_tokens, preempted) \
    LAYOUT4(step_record, running, waiting, prefill_units, decode_units) \
    LAYOUT4(step_record, lane, n_pools, used, free))
/* clang-format on */

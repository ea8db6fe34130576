/* layout.h - a number for the layout of structs that programs of different builds share.
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
 * prints both sums.
 */
#pragma once

#include "base/base.h"
#include "ipc/records.h"
#include "ipc/shm.h"
#include "ipc/stat.h"

#define LAYOUT(s, f) \
    +(uint64_t)(offsetof(struct s, f) + 1) * \
        (sizeof(((struct s *)NULL)->f) * 65537 + sizeof(#f) * 257 + sizeof(#s))

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
/* struct rec_submit and the bits of its field absent. */
#define SUBMIT_LAYOUT_SUM (sizeof(struct rec_submit) \
    LAGAN_FIELDS(SUBMIT_LAYOUT_X) LAGAN_FIELDS(ABSENT_LAYOUT_X) \
    LAYOUT(rec_submit, ledger_index) LAYOUT(rec_submit, gen) LAYOUT(rec_submit, id) \
    LAYOUT(rec_submit, seed) LAYOUT(rec_submit, deadline_ns) LAYOUT(rec_submit, n_prompt) \
    LAYOUT(rec_submit, n_decoder) LAYOUT(rec_submit, n_done) LAYOUT(rec_submit, text_bytes) \
    LAYOUT(rec_submit, done_text) LAYOUT(rec_submit, done_score) LAYOUT(rec_submit, n_eos) \
    LAYOUT(rec_submit, n_stop_ids) LAYOUT(rec_submit, n_stop) LAYOUT(rec_submit, n_bias) \
    LAYOUT(rec_submit, chat) LAYOUT(rec_submit, flags) LAYOUT(rec_submit, salt_bytes) \
    LAYOUT(rec_submit, client) LAYOUT(rec_submit, lora) LAYOUT(rec_submit, absent))

/* The other records. */
#define RECORDS_LAYOUT_SUM (0 \
    LAYOUT(rec_notice, ledger_index) LAYOUT(rec_notice, gen) LAYOUT(rec_notice, flags) \
    LAYOUT(rec_text, call) LAYOUT(rec_text, gen) LAYOUT(rec_text, op) LAYOUT(rec_text, flags) \
    LAYOUT(rec_text, n_ids) LAYOUT(rec_text, text_bytes) \
    LAYOUT(rec_ready, vocab) LAYOUT(rec_ready, max_len) LAYOUT(rec_ready, max_source) \
    LAYOUT(rec_ready, n_slots) LAYOUT(rec_ready, tokens_per_block) LAYOUT(rec_ready, n_groups) \
    LAYOUT(rec_ready, name_bytes) LAYOUT(rec_ready, has_text) LAYOUT(rec_ready, kv_bytes) \
    LAYOUT(rec_ready, weight_bytes) LAYOUT(rec_ready, max_tokens) LAYOUT(rec_ready, load_ns) \
    LAYOUT(rec_ready, adopted) LAYOUT(rec_ready, beams) LAYOUT(rec_ready, temperature) \
    LAYOUT(rec_ready, decoder_start) LAYOUT(rec_ready, max_request_seqs) \
    LAYOUT(rec_ready, unserved) \
    LAYOUT(rec_step, step) LAYOUT(rec_step, lane) LAYOUT(rec_step, n_ent) \
    LAYOUT(rec_out, ledger_index) LAYOUT(rec_out, gen) LAYOUT(rec_out, output) LAYOUT(rec_out, n_tokens) \
    LAYOUT(rec_out, has_logprobs) LAYOUT(rec_out, first) LAYOUT(rec_out, text_bytes) \
    LAYOUT(rec_out, text_first) LAYOUT(rec_out, n_top) LAYOUT(rec_out, score) \
    LAYOUT(rec_finish, ledger_index) LAYOUT(rec_finish, gen) LAYOUT(rec_finish, output) \
    LAYOUT(rec_finish, reason) LAYOUT(rec_finish, score) LAYOUT(rec_finish, n_tokens) \
    LAYOUT(rec_finish, cached) LAYOUT(rec_finish, adopted) LAYOUT(rec_finish, recomputed) \
    LAYOUT(rec_finish, n_prompt_tokens) \
    LAYOUT(rec_reject, ledger_index) LAYOUT(rec_reject, gen) LAYOUT(rec_reject, reason) \
    LAYOUT(rec_reject, text_bytes) \
    LAYOUT(rec_phase, phase) LAYOUT(rec_phase, done) LAYOUT(rec_phase, total) \
    LAYOUT(rec_prompt, ledger_index) LAYOUT(rec_prompt, gen) LAYOUT(rec_prompt, first) \
    LAYOUT(rec_prompt, n) LAYOUT(rec_prompt, n_top) \
    LAYOUT(rec_tensor, ledger_index) LAYOUT(rec_tensor, gen) LAYOUT(rec_tensor, first) \
    LAYOUT(rec_tensor, n) LAYOUT(rec_tensor, cols) LAYOUT(rec_tensor, kind) \
    LAYOUT(rec_text_done, call) LAYOUT(rec_text_done, gen) LAYOUT(rec_text_done, reason) \
    LAYOUT(rec_text_done, n_ids) LAYOUT(rec_text_done, text_bytes))

/* Positions and names of the statistics, and the structs that both sides access in place. */
#define STAT_LAYOUT_X(kind, name, unit, sentence) +(STAT_##name + 1) * sizeof(#name)
#define GROUP_STAT_LAYOUT_X(kind, name, unit, sentence) +(GROUP_STAT_##name + 1) * sizeof(#name) * 3
#define SHM_LAYOUT_SUM (SUBMIT_LAYOUT_SUM + RECORDS_LAYOUT_SUM \
    STATS(STAT_LAYOUT_X) GROUP_STATS(GROUP_STAT_LAYOUT_X) \
    LAYOUT(shm_hdr, abi_major) LAYOUT(shm_hdr, epoch) LAYOUT(shm_hdr, kind) \
    LAYOUT(shm_hdr, total_size) LAYOUT(shm_hdr, ring_log2) LAYOUT(shm_hdr, daemon_id) \
    LAYOUT(shm_ctl, tail) LAYOUT(shm_ctl, head) LAYOUT(shm_ctl, wait_seq) \
    LAYOUT(shm_ctl, hb_count) LAYOUT(shm_ctl, hb_mono_ns) LAYOUT(shm_ctl, state) \
    LAYOUT(shm_ctl, phase) LAYOUT(shm_ctl, phase_deadline_ns) LAYOUT(shm_ctl, stat_seq) \
    LAYOUT(shm_ctl, stat) LAYOUT(shm_ctl, group_stat) \
    LAYOUT(panic_message, state) LAYOUT(panic_message, signal) LAYOUT(panic_message, address) \
    LAYOUT(panic_message, step) LAYOUT(panic_message, n_frames) \
    LAYOUT(panic_message, text_bytes) LAYOUT(panic_message, frame) LAYOUT(panic_message, text) \
    LAYOUT(step_trace, n) LAYOUT(step_trace, retired) LAYOUT(step_trace, entry) \
    LAYOUT(step_entry, seq) LAYOUT(step_entry, step) LAYOUT(step_entry, lane) \
    LAYOUT(step_entry, n_ids) LAYOUT(step_entry, id))
/* clang-format on */

/* attend_prefill_sm90_tiles.h - tile and buffer sizes of attend_prefill_sm90.cu, by head dim: ROWS
 * of an item, KEYS of a tile, STAGES (buffers of K, and of V), Q_SLOTS (buffers of Q).
 *
 * head dim   shared memory, KiB             registers of a consumer thread
 * 64         Q 2 x 24, K 4 x 16, V 4 x 16   S 64 + P 32 + O  32
 * 128        Q 2 x 32, K 2 x 32, V 2 x 32   S 64 + P 32 + O  64 + Q 32
 * 256        Q     64, K 2 x 32, V 2 x 32   S 32 + P 16 + O 128
 *
 * A warpgroup has 64 rows. Two warpgroups may have 224 registers per thread, three 160. With heads
 * of 64 three warpgroups cost a few spills, but keep the tensor cores busy where two leave them
 * idle (docs/lab/serving.md). Q_REGS: Q is loaded to registers once per item, so that the tensor
 * cores read a third less shared memory for S.
 */
#pragma once

template <int HEAD_DIM> struct attend_tile;

template <> struct attend_tile<64> {
    enum { ROWS = 192, KEYS = 128, STAGES = 4, Q_SLOTS = 2, Q_REGS = 0 };
};
template <> struct attend_tile<128> {
    enum { ROWS = 128, KEYS = 128, STAGES = 2, Q_SLOTS = 2, Q_REGS = 1 };
};
template <> struct attend_tile<256> {
    enum { ROWS = 128, KEYS = 64, STAGES = 2, Q_SLOTS = 1, Q_REGS = 0 };
};

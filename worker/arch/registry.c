/* registry.c - the list of all model families, which model_open() gets. */
#include "worker/arch/registry.h"

/* clang-format off */
const struct arch *const arch_families[] = {
    &arch_llama,
    &arch_qwen,
    &arch_gemma3,
    &arch_gemma3n,
    &arch_gemma4,
    &arch_gpt_oss,
    &arch_bamba,
    &arch_granite_hybrid,
    &arch_nemotron_h,
    &arch_t5,
    &arch_bart,
    NULL,
};
/* clang-format on */

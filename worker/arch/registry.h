/* registry.h - the list of all model families, which is an argument of model_open(). */
#pragma once
#include "worker/model/arch.h"

extern const struct arch arch_bamba, arch_bart, arch_gemma3, arch_gemma3n, arch_gemma4,
    arch_gpt_oss, arch_granite_hybrid, arch_llama, arch_nemotron_h, arch_qwen, arch_t5;
extern const struct arch *const arch_families[]; /* NULL-ended */

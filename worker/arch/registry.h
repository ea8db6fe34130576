/* registry.h - the model families; an argument of model_open(). */
#ifndef ARCH_REGISTRY_H
#define ARCH_REGISTRY_H

#include "worker/model/arch.h"

extern const struct arch arch_bamba, arch_bart, arch_gemma3, arch_gemma3n, arch_gemma4,
    arch_gpt_oss, arch_granite_hybrid, arch_llama, arch_nemotron_h, arch_qwen, arch_t5;
extern const struct arch *const arch_families[]; /* NULL-ended */

#endif

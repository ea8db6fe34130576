/* cpu_ops.h - the ops of the CPU device, unchecked: gpu.h says what each does. */
#ifndef CPU_CPU_OPS_H
#define CPU_CPU_OPS_H

#include "gpu/cpu/cpu.h"
#include "gpu/cpu/cpu_group.h"
#include "gpu/device.h"

/* The device struct: the instruction set picked at open is every lane's. */
struct cpu {
    struct gpu gpu;
    enum cpu_isa isa;
    struct cpu_group *group; /* NULL: one rank */
};

/* cpu_lane.c */
int cpu_lane_open(struct gpu *g, uint32_t units, struct lane **ret, struct err *e);
void cpu_lane_close(struct lane *l);
int cpu_lane_part(struct lane *l, uint32_t first, uint32_t n);
int cpu_lane_mark(struct lane *l, uint64_t step);
uint64_t cpu_lane_done(const struct lane *l);
int cpu_lane_after(struct lane *l, const struct lane *other, uint64_t step);
int cpu_lane_fd(const struct lane *l);
int cpu_lane_error(const struct lane *l);
int cpu_lane_channel(const struct lane *l); /* of its group */
/* An op found, while it ran, that its input cannot be: lane_error() is -EIO from now on. */
void cpu_lane_fail(struct lane *l);

/* cpu_copy.c */
int cpu_put(struct lane *l, void *dst, const void *host, size_t bytes);
int cpu_get(struct lane *l, void *host, const void *src, size_t bytes);
int cpu_copy(struct lane *l, void *dst, const void *src, size_t bytes);
int cpu_copy_blocks(struct lane *l, const struct block_copy *copy, const struct block_copy *same,
                    uint32_t n, struct block_size size);
int cpu_checksum(struct lane *l, uint64_t *sum, const void *p, size_t bytes);
int cpu_edit(struct lane *l, struct tables t, const struct table_edit *edit, uint32_t n);
int cpu_tokens(struct lane *l, struct rows r, const int32_t *last);
int cpu_see(struct lane *l, uint32_t *seen, uint32_t seen_words, struct rows r,
            const struct run *run, uint32_t n_runs);
int cpu_rows(struct lane *l, struct tensor y, struct tensor x, const uint32_t *which);

/* cpu_fill.c */
int cpu_fill_random(struct lane *l, struct tensor t, uint64_t seed, uint64_t first, uint64_t pitch,
                    float std);

/* cpu_dense.c */
int cpu_embed(struct lane *l, struct tensor x, struct tensor table, const int32_t *token,
              float scale);
int cpu_matmul(struct lane *l, struct tensor y, struct tensor x, struct tensor w,
               struct tensor bias, float beta);

/* cpu_norm.c */
int cpu_rms_norm(struct lane *l, struct tensor y, struct tensor x, struct tensor w, float eps,
                 float plus);
int cpu_residual(struct lane *l, const struct residual *r);

/* cpu_act.c */
int cpu_add(struct lane *l, struct tensor y, struct tensor x);
int cpu_act(struct lane *l, struct tensor y, struct tensor x, enum act a);
int cpu_act_matmul(struct lane *l, struct tensor y, struct tensor x, struct tensor w,
                   struct tensor bias, enum act a);
int cpu_gate_matmul(struct lane *l, struct tensor y, struct tensor both, struct tensor x,
                    struct tensor w, enum act a);
int cpu_gate(struct lane *l, struct tensor y, struct tensor gate_up, enum act a);
int cpu_scale(struct lane *l, struct tensor x, float factor, float softcap);

/* cpu_streams.c */
int cpu_times(struct lane *l, struct tensor y, struct tensor x, struct tensor w);
int cpu_sparsify(struct lane *l, struct tensor x, float factor);
int cpu_level(struct lane *l, struct tensor y, struct tensor like, float least);
int cpu_altup(struct lane *l, const struct altup *a);

/* cpu_moe.c */
int cpu_route(struct lane *l, const struct route *r);
int cpu_expert_matmul(struct lane *l, const struct expert_matmul *m, const struct pairs *p);
int cpu_combine(struct lane *l, struct tensor y, struct tensor x, const struct pairs *p);

/* cpu_state.c */
int cpu_conv(struct lane *l, const struct conv *c, struct rows r);
int cpu_scan(struct lane *l, const struct scan *s, struct rows r);

/* cpu_rope.c, cpu_attn.c, cpu_sample.c */
int cpu_rope_store(struct lane *l, const struct rope_store *s, struct rows r);
int cpu_attend(struct lane *l, const struct attend *a, struct rows r);
int cpu_sample(struct lane *l, const struct sample *s);

#endif

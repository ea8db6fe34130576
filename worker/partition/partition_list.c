/* partition_list.c - makes and changes the list of partitions: see partition_list.h. */
#include "worker/partition/partition_list.h"

/* Rounds to the nearest integer, and from the middle between two to the even one. */
static uint32_t
round_to_even(double x)
{
    uint32_t low = (uint32_t)x;
    double rest = x - low;

    return low + (rest > 0.5 || (rest == 0.5 && low % 2));
}

static uint32_t
distance_to_grain(uint32_t n, uint32_t grain)
{
    return MIN(n % grain, grain - n % grain);
}

struct partition
partition_list_share(const struct partition_list *l, double share)
{
    uint32_t prefill = MIN(round_to_even(l->units * share), l->units), decode = l->units - prefill;
    bool first = distance_to_grain(prefill, l->grain) <= distance_to_grain(decode, l->grain);
    uint32_t part = round_to_even((double)(first ? prefill : decode) / l->grain) * l->grain;

    part = MAX(MIN(part, l->units - l->least), l->least);
    if (first) return (struct partition){ part, l->units - part };
    return (struct partition){ l->units - part, part };
}

static unsigned
find_partition(const struct partition_list *l, struct partition r)
{
    unsigned i = 1;

    while (i < l->n && l->partition[i].prefill_units != r.prefill_units) i++;
    return i;
}

void
partition_list_make(struct partition_list *l, uint32_t units, uint32_t least, uint32_t grain)
{
    static const double share[] = { 1. / 2, 9. / 16, 5. / 8, 7. / 8 };

    *l = (struct partition_list){ .units = units, .least = MAX(least, 1u), .grain = grain, .n = 1 };
    l->partition[0] = (struct partition){ units, units };
    if (grain == 0 || units < 2 * l->least) return;
    for (size_t i = 0; i < ARRAY_LEN(share); i++) {
        double grains = round_to_even(share[i] * units / grain);
        struct partition r = partition_list_share(l, grains * grain / units);

        if (find_partition(l, r) == l->n) l->partition[l->n++] = r;
    }
}

static unsigned
keep_partition(struct partition_list *l, struct partition r)
{
    unsigned at = MIN(find_partition(l, r), (unsigned)MAX_PARTITIONS - 1);

    l->n = MAX(l->n, at + 1);
    l->partition[at] = r;
    return at;
}

int
partition_list_set(struct partition_list *l, uint32_t prefill, uint32_t decode, unsigned *ret,
                   struct err *e)
{
    struct partition near;

    if (l->n == 1) return err_set(e, -EINVAL, "the %u device units cannot be divided", l->units);
    near = partition_list_share(l, MIN((double)prefill / l->units, 1.));
    if (near.prefill_units != prefill || near.decode_units != decode)
        return err_set(e, -EINVAL,
                       "cannot give %u units to prefill and %u to decode: the device has %u, and "
                       "each part at least %u, in steps of %u; the nearest division is %u and %u",
                       prefill, decode, l->units, l->least, l->grain, near.prefill_units,
                       near.decode_units);
    *ret = keep_partition(l, near);
    return 0;
}

int
partition_list_fixed(struct partition_list *l, const char *text, unsigned *ret, struct err *e)
{
    char *end;
    double n = *text ? strtod(text, &end) : 0.5;
    bool share = !*text || strchr(text, '.');

    if ((*text && (end == text || *end)) || !(n > 0) || n > 4096)
        return err_set(
            e, -EINVAL,
            "split.context_sm: \"%s\" is neither a number of units nor a share such as 0.5", text);
    *ret = 0;
    if (share && n >= 1) return 0;
    if (l->n == 1)
        return err_set(e, -EINVAL,
                       "split.mode: the device has only %u units (SMs of a GPU or CPU threads), "
                       "too few to divide; set split.mode to off",
                       l->units);
    if (!share && n >= l->units)
        return err_set(e, -EINVAL,
                       "split.context_sm: %s of %u device units (SMs of a GPU or CPU threads) "
                       "leaves none for decode",
                       text, l->units);
    *ret = keep_partition(l, partition_list_share(l, share ? n : n / l->units));
    return 0;
}

/* running_request.c - see running_request.h. */
#include "ctl/running_request.h"

#include <inttypes.h>
#include <stdio.h>

enum { MAX_OUTPUTS = 64 };

struct running_request *
running_request_new(size_t request)
{
    struct running_request *j = calloc(1, sizeof *j);

    check(j);
    j->request = request;
    j->start = clock_now();
    return j;
}

static void
output_done(struct running_output *o)
{
    free(o->ids);
    free(o->logprob);
    free(o->top);
    free(o->text);
}

void
running_request_free(struct running_request *j)
{
    for (uint32_t i = 0; i < j->n_outputs; i++) output_done(&j->output[i]);
    output_done(&j->prompt);
    for (uint32_t i = 0; i < LAGAN_N_TENSORS; i++) free(j->tensor[i].value);
    free(j->output);
    free(j->tag);
    free(j);
}

/* Resizes an array to n elements. */
static void *
resize(void *array, size_t n, size_t bytes)
{
    void *p = realloc(array, n * bytes);

    check(p);
    return p;
}

struct running_output *
running_request_output(struct running_request *j, uint32_t output)
{
    if (output >= MAX_OUTPUTS) return NULL;
    if (output >= j->n_outputs) {
        j->output = resize(j->output, output + 1, sizeof *j->output);
        memset(j->output + j->n_outputs, 0, (output + 1 - j->n_outputs) * sizeof *j->output);
        j->n_outputs = output + 1;
    }
    return &j->output[output];
}

static void
more_ids(struct running_output *o, size_t n)
{
    if (n <= o->max_ids) return;
    o->max_ids = MAX(2 * o->max_ids, n);
    o->ids = resize(o->ids, o->max_ids, sizeof *o->ids);
}

static int
take_logprobs(struct running_output *o, const struct lagan_event *ev)
{
    size_t n = o->n_logprob + ev->n_ids;

    if (!ev->logprob || !ev->n_ids) return 0;
    if (o->n_logprob && ev->n_top != o->n_top) return -EBADMSG;
    o->n_top = ev->n_top;
    o->logprob = resize(o->logprob, n, sizeof *o->logprob);
    memcpy(o->logprob + o->n_logprob, ev->logprob, ev->n_ids * sizeof *o->logprob);
    if (ev->n_top) {
        o->top = resize(o->top, n * ev->n_top, sizeof *o->top);
        memcpy(o->top + o->n_logprob * ev->n_top, ev->top,
               (size_t)ev->n_ids * ev->n_top * sizeof *o->top);
    }
    o->n_logprob = n;
    return 0;
}

static const char *const tensor_name[] = {
#define X(number, name, word, sentence) word,
    LAGAN_TENSORS(X)
#undef X
};

static int
take_tensor(struct running_request *j, const struct lagan_event *ev)
{
    struct running_tensor *t = j->tensor;

    while (strcmp(tensor_name[t - j->tensor], ev->tensor_name))
        t++; /* no other tensors are defined */
    if (t->n && ev->first_value != t->n) return -EPROTO;
    t->value = resize(t->value, t->n + ev->n_values, sizeof *t->value);
    memcpy(t->value + t->n, ev->values, ev->n_values * sizeof *t->value);
    t->n += ev->n_values;
    t->cols = ev->cols;
    return 0;
}

int
running_request_take(struct running_request *j, const struct lagan_event *ev)
{
    bool prompt = ev->kind == LAGAN_EVENT_PROMPT, tensor = ev->kind == LAGAN_EVENT_TENSOR;
    struct running_output *o = prompt || tensor ? &j->prompt
                                                : running_request_output(j, ev->output);

    if (!o) return -EBADMSG;
    if (tensor) return take_tensor(j, ev);
    if (!prompt && !o->n_ids) o->base = ev->first;
    if (ev->first != (prompt ? o->n_logprob : o->base + o->n_ids)) return -EPROTO;
    /* PROMPT events have no ids; the ids are those of the request */
    if (prompt && !ev->ids) return take_logprobs(o, ev);
    if (prompt && !ev->first) o->n_ids = 0;
    more_ids(o, o->n_ids + ev->n_ids);
    if (ev->n_ids) memcpy(o->ids + o->n_ids, ev->ids, ev->n_ids * sizeof *o->ids);
    o->n_ids += ev->n_ids;
    if (prompt) return take_logprobs(o, ev);
    if (o->n_text + ev->text_len > o->max_text) {
        o->max_text = 2 * (o->n_text + ev->text_len) + 64;
        o->text = resize(o->text, o->max_text, 1);
    }
    if (ev->text_len) memcpy(o->text + o->n_text, ev->text, ev->text_len);
    o->n_text += ev->text_len;
    j->n_tokens += ev->n_ids;
    if (j->first) j->max_gap = MAX(j->max_gap, clock_now() - j->last);
    j->last = clock_now();
    if (!j->first) j->first = j->last;
    return take_logprobs(o, ev);
}

static void
print_ids(FILE *out, const int32_t *ids, size_t n)
{
    putc('[', out);
    for (size_t i = 0; i < n; i++) fprintf(out, "%s%d", i ? "," : "", ids[i]);
    putc(']', out);
}

/* Prints ,"name":[{"id","logprob","top"}, ...] or ,"name":null. The first prompt token has no
 * prediction, so its logprob is null. */
static void
print_logprobs(FILE *out, const char *name, bool wanted, const struct running_output *o,
               bool prompt)
{
    size_t i, k;

    fprintf(out, ",\"%s\":%s", name, wanted ? "[" : "null");
    if (!wanted) return;
    for (i = 0; i < o->n_logprob; i++) {
        if (i) putc(',', out);
        if (prompt && !i) {
            fputs("null", out);
            continue;
        }
        fputs("{\"id\":", out);
        if (i < o->n_ids)
            fprintf(out, "%d", o->ids[i]);
        else
            fputs("null", out);
        fputs(",\"logprob\":", out);
        print_float(out, o->logprob[i]);
        fputs(",\"top\":[", out);
        for (k = 0; k < o->n_top; k++) {
            const struct lagan_top_logprob *t = &o->top[i * o->n_top + k];

            fprintf(out, "%s[%d,", k ? "," : "", t->id);
            print_float(out, t->logprob);
            putc(']', out);
        }
        fputs("]}", out);
    }
    putc(']', out);
}

/* Prints ,"name":[[row], [row], ...], the values [at, end) of the tensor. */
static void
print_values(FILE *out, const char *name, const struct running_tensor *t, uint64_t at, uint64_t end)
{
    fprintf(out, ",\"%s\":[", name);
    for (uint64_t i = at; i < end; i++) {
        fputs(i % t->cols ? "," : i > at ? "],[" : "[", out);
        print_float(out, t->value[i]);
    }
    fputs(end > at ? "]]" : "]", out);
}

/* Prints the tensors of an output. The logits have the rows of output 0 first, then of output 1. */
static void
print_tensors(FILE *out, const struct running_request *j, uint32_t output)
{
    const struct running_tensor *t = j->tensor, *logits = t + LAGAN_TENSOR_LOGITS - 1;
    uint64_t at = 0, end = output < j->n_outputs ? j->output[output].n_ids : 0;

    for (uint32_t i = 0; i < output && i < j->n_outputs; i++) at += j->output[i].n_ids;
    end = MIN((at + end) * logits->cols, logits->n);
    for (uint32_t i = 0; i < LAGAN_N_TENSORS; i++)
        if (t[i].n && &t[i] != logits) print_values(out, tensor_name[i], &t[i], 0, t[i].n);
    if (logits->n)
        print_values(out, tensor_name[LAGAN_TENSOR_LOGITS - 1], logits, MIN(at * logits->cols, end),
                     end);
}

static void
print_error(FILE *out, const struct lagan_event *ev)
{
    fprintf(out, ",\"error\":%s", ev->kind == LAGAN_EVENT_ERROR ? "{\"code\":" : "null");
    if (ev->kind != LAGAN_EVENT_ERROR) return;
    print_json_string(out, ev->reason_name, strlen(ev->reason_name));
    fputs(",\"message\":", out);
    print_json_string(out, ev->message, strlen(ev->message));
    fprintf(out, ",\"retryable\":%s}", ev->retryable ? "true" : "false");
}

static void
print_head(const struct running_request *j, uint32_t output, FILE *out)
{
    fprintf(out, "{\"request\":%zu,\"output\":%u", j->request, output);
    if (j->tag) fprintf(out, ",\"tag\":%s", j->tag);
}

void
running_request_print_chunk(const struct running_request *j, const struct lagan_event *ev,
                            FILE *out)
{
    print_head(j, ev->output, out);
    fprintf(out, ",\"first\":%u,\"ids\":", ev->first);
    print_ids(out, ev->ids, ev->n_ids);
    fputs("}\n", out);
    fflush(out);
}

void
running_request_print_final(const struct running_request *j, const struct lagan_event *ev,
                            FILE *out)
{
    static const struct running_output nothing;
    const struct running_output *o = ev->output < j->n_outputs ? &j->output[ev->output] : &nothing;
    const char *finish = ev->kind != LAGAN_EVENT_ERROR     ? ev->reason_name
                         : ev->reason == LAGAN_E_CANCELLED ? "cancelled"
                                                           : "error";

    print_head(j, ev->output, out);
    fputs(",\"ids\":", out);
    print_ids(out, o->ids, o->n_ids);
    fputs(",\"text\":", out);
    print_json_string(out, o->text ? o->text : "", o->n_text);
    fprintf(out, ",\"finish\":\"%s\",\"score\":", finish);
    print_float(out, ev->score);
    fprintf(out, ",\"cached\":%u", ev->cached);
    print_logprobs(out, "logprobs", j->want_logprobs, o, /* prompt= */ false);
    print_logprobs(out, "prompt_logprobs", j->want_prompt_logprobs, &j->prompt, /* prompt= */ true);
    print_tensors(out, j, ev->output);
    print_error(out, ev);
    fprintf(out, ",\"seed\":%" PRIu64 ",\"resumed\":%u,\"adopted\":%u,\"recomputed\":%u", ev->seed,
            ev->resumed, ev->adopted, ev->recomputed);
    fprintf(out,
            ",\"kv_blocks\":{\"allocated\":%u,\"allocated_new\":%u,\"reused\":%u,\"missed\":%u}}\n",
            ev->blocks_allocated, ev->blocks_allocated_new, ev->blocks_reused, ev->blocks_missed);
    fflush(out);
}

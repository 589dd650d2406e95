/* Candidate scores in one pass. The reference implementation is `Tables.score` in scoring/tables.py.
 *
 * For every (session, candidate): gates from tables, one GRU step, a head of two layers. The work is done in tiles that fit
 * the first-level cache, so only item rows are read from memory and only outputs are written.
 *
 * No Python.h: called through ctypes, which releases the GIL. There is one copy of the kernel per instruction set, chosen at
 * run time. It is written with the vector extensions of GCC and clang; with another compiler nothing is built, and the
 * reference implementation is used.
 */
#if !defined(__GNUC__)
#error "needs the vector extensions of GCC or clang"
#endif

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What to score. Mirrored by `Task` in __init__.py. When this struct changes, the number at the end of every exported
 * function that takes it is counted up, so that an old build is not called with it. Arrays are dense and row-major. */
struct task {
    const float *items;      /* (n_rows, 3H) */
    const float *behaviours; /* (n_behaviours, 3H), the start symbol included */
    const float *weight;     /* (3H, H) */
    const float *bias;       /* (3H,) */
    const float *first;      /* (M, H), with its bias (M,); NULL for no head: then K is H, and outputs are hidden states */
    const float *first_bias;
    const float *second; /* (K, M), with its bias (K,) */
    const float *second_bias;
    const float *rewards;    /* (K,) for expected rewards of K behaviours as outputs; or NULL */
    const float *hidden;     /* (B, H) */
    const int64_t *previous; /* (B,) previous behaviours */
    const void *candidates;  /* (B, C) rows, int64_t if wide_rows, else int32_t */
    float *outputs;          /* (B, C, K); (B, C) with rewards */
    int64_t n_rows, n_behaviours;
    int64_t size, inner;      /* H, M */
    int64_t n_outputs, width; /* K, C */
    int64_t wide_rows;
};

/* Work space of a tile of TILE candidates, or of TILE sessions in hidden_gates. */
struct scratch {
    float *by_row;  /* (TILE, H padded): the units of a candidate side by side */
    float *by_unit; /* (H padded, TILE): the candidates of a unit side by side */
    float *gates;   /* (TILE, 3H padded): W_h h + bias of a tile of sessions */
    float *inner;   /* (M, TILE): the head's first layer */
    float *layer;   /* (3H padded or K, TILE): outputs of another layer */
};

enum { PREFETCH_DISTANCE = 8 }; /* candidates between prefetching an item's row and using it */
enum { DONE = 0, OUT_OF_RANGE = 1, OUT_OF_MEMORY = 2 };

#define INLINE static inline __attribute__((always_inline))

/* tanh as x P(x^2) / Q(x^2), fitted for the least absolute error up to 9, from where on tanh is 1 in float32; within 4e-7
 * after rounding. Loops over it are vectorised, unlike calls of libm. The comparisons let NaN through. */
INLINE float fast_tanh(float x) {
    x = 9.0f < x ? 9.0f : x;
    x = -9.0f > x ? -9.0f : x;
    float s = x * x;
    float p = 1.31842040e-8f * s + 2.04718144e-5f;
    p = p * s + 3.48658091e-3f;
    p = p * s + 1.33731961e-1f;
    p = p * s + 0.99999988f;
    float q = 7.70265501e-7f * s + 3.27138376e-4f;
    q = q * s + 2.58419756e-2f;
    q = q * s + 4.67064947e-1f;
    q = q * s + 1.0f;
    return x * p / q;
}

INLINE float fast_sigmoid(float x) { return 0.5f * fast_tanh(0.5f * x) + 0.5f; }

/* e^x for x <= 0, within 2e-7: 2^n e^r with |r| <= 0.35 and the polynomial of Cephes. Below -87 the value at -87; NaN stays
 * NaN. */
INLINE float fast_exp(float x) {
    x = x < -87.0f ? -87.0f : x;
    float shifted = x * 1.44269504f + 12582912.0f; /* its last bits are the integer part n */
    float whole = shifted - 12582912.0f;
    float r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    float p = 1.98756915e-4f * r + 1.39819995e-3f;
    p = p * r + 8.33345191e-3f;
    p = p * r + 4.16657959e-2f;
    p = p * r + 1.66666655e-1f;
    p = p * r + 5.00000012e-1f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000u;
    float power;
    memcpy(&power, &bits, sizeof power);
    return power * (p * r * r + r + 1.0f);
}

/* An index as in Python, where -1 is the last; -1 if out of range. */
INLINE int64_t resolve_index(int64_t index, int64_t size) {
    index += index < 0 ? size : 0;
    return index >= 0 && index < size ? index : -1;
}

/* The row of the n-th of all B * C candidates; -1 if out of range. */
INLINE int64_t candidate_row(const struct task *t, int64_t n) {
    return resolve_index(t->wide_rows ? ((const int64_t *)t->candidates)[n] : ((const int32_t *)t->candidates)[n],
                         t->n_rows);
}

/* Prefetch a row of the item table: candidates are anywhere in it, which the hardware cannot predict. */
INLINE void prefetch_row(const struct task *t, int64_t row) {
    if (row < 0) return;
    const char *from = (const char *)(t->items + row * 3 * t->size), *to = from + 3 * t->size * sizeof(float);
    for (; from < to; from += 64) __builtin_prefetch(from);
}

INLINE int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

static float *zeros(int64_t count) {
    size_t bytes = round_up(count * sizeof(float), 64);
    float *memory = aligned_alloc(64, bytes);
    return memory ? memset(memory, 0, bytes) : NULL;
}

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(name) JOIN(name, SUFFIX)

#define SUFFIX _plain
#define TARGET
#define LANES 4
#define LOW 0, 4, 1, 5
#define HIGH 2, 6, 3, 7
#include "kernel.h"

#if defined(__x86_64__)
#define SUFFIX _avx2
#define TARGET __attribute__((target("avx2,fma")))
#define LANES 8
#define LOW 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH 4, 12, 5, 13, 6, 14, 7, 15
#include "kernel.h"

#define SUFFIX _avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#define LANES 16
#define LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#include "kernel.h"
#endif

typedef int kernel(const struct task *task, int64_t begin, int64_t end);

/* The fastest kernel this machine can run, up to `level`: 0 plain, 1 AVX2, 2 AVX-512. Tests reach all of them by it. */
static kernel *kernel_for(int level) {
#if defined(__x86_64__)
    if (level >= 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return score_avx512;
    if (level >= 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return score_avx2;
#endif
    (void)level;
    return score_plain;
}

#define EXPORT __attribute__((visibility("default")))

/* Score the sessions begin <= b < end of a task. Ranges that do not overlap may run at the same time. */
EXPORT int mbcal_score_2(const struct task *task, int64_t begin, int64_t end, int level) {
    return kernel_for(level)(task, begin, end);
}

/* Run a cell over steps (B, steps), of which the first `lengths` (B,) count. The task has no head. Its candidates (int32)
 * and previous are the steps' items and behaviours, and `outputs` holds the hidden states (B, H) before and after. */
EXPORT int mbcal_read_1(const struct task *task, const int32_t *lengths, int64_t sessions, int64_t steps, int level) {
    struct task one = *task;
    for (int64_t n = 0; n < sessions * steps; n++) {
        if (n % steps >= lengths[n / steps]) continue;
        one.hidden = one.outputs = task->outputs + n / steps * task->size;
        one.previous = task->previous + n;
        one.candidates = (const int32_t *)task->candidates + n;
        int status = kernel_for(level)(&one, 0, 1);
        if (status != DONE) return status;
    }
    return DONE;
}

/* Mirrored by `_Choice` in session.py. */
struct choice {
    float *scores;         /* (C,) out: the sum of the terms */
    uint8_t *available;    /* (C,) 1 where a candidate may be chosen; set to 0 where it was */
    const double *uniform; /* (k, 2) */
    int32_t *chosen;       /* (k,) out: indices of the chosen candidates */
    double *propensities;  /* (k,) out: of each choice, given those before it */
    float *parts;          /* (k, terms) out: the chosen candidates' scores by term */
    double epsilon;
    int64_t k;
};

/* The index of the best available candidate: the first among equals, NaN only if there is nothing else. */
static int64_t best_available(const float *scores, const uint8_t *available, int64_t width) {
    int64_t best = -1;
    for (int64_t n = 0; n < width; n++)
        if (available[n] &&
            (best < 0 || scores[n] > scores[best] || (scores[best] != scores[best] && scores[n] == scores[n])))
            best = n;
    return best;
}

/* The index of the n-th available candidate, from 0; there must be one. */
static int64_t nth_available(const uint8_t *available, int64_t nth) {
    int64_t index = 0;
    while (!available[index] || nth--) index++;
    return index;
}

/* Epsilon-greedy k times without replacement. The reference implementation is `choose` in serving/ranker.py. */
static int choose(struct choice *c, int64_t width) {
    int64_t count = 0;
    for (int64_t n = 0; n < width; n++) count += c->available[n];
    if (c->k > count) return OUT_OF_RANGE;
    for (int64_t i = 0; i < c->k; i++, count--) {
        int64_t best = best_available(c->scores, c->available, width), nth = (int64_t)(c->uniform[2 * i + 1] * count);
        int64_t index = c->uniform[2 * i] < c->epsilon ? nth_available(c->available, nth < count ? nth : count - 1) : best;
        c->chosen[i] = (int32_t)index;
        c->propensities[i] = c->epsilon / count + (1 - c->epsilon) * (index == best);
        c->available[index] = 0;
    }
    return DONE;
}

/* Rank one session: every term's outputs (1, C), their sum, and k of the available candidates. */
EXPORT int mbcal_rank_1(const struct task *terms, int64_t count, struct choice *choice, int level) {
    int64_t width = terms[0].width;
    memset(choice->scores, 0, width * sizeof(float));
    for (int64_t term = 0; term < count; term++) {
        int status = kernel_for(level)(terms + term, 0, 1);
        if (status != DONE) return status;
        for (int64_t n = 0; n < width; n++) choice->scores[n] += terms[term].outputs[n];
    }
    int status = choose(choice, width);
    for (int64_t i = 0; status == DONE && i < choice->k; i++)
        for (int64_t term = 0; term < count; term++)
            choice->parts[i * count + term] = terms[term].outputs[choice->chosen[i]];
    return status;
}

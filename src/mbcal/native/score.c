/* Candidate scoring, fused: the twin of `Tables.score` in scoring.py, which says what is computed.
 *
 * For every (session, candidate): gates from tables, one GRU step, a head of two layers. Work is done in tiles small enough
 * for the first level of cache, so nothing but the item rows comes in from memory and nothing but the outputs goes out.
 *
 * No Python.h: called by ctypes, which lets go of the GIL. One copy of the kernel per instruction set, chosen when called;
 * vectors are those of GCC and clang, and where neither compiles, nothing is built and the twin does the work.
 */
#if !defined(__GNUC__)
#error "needs the vector extensions of GCC or clang"
#endif

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Mirrored by `_Task` in __init__.py; whoever changes it counts up the function's name, so that no old build is called with
 * it. All arrays are dense and row-major. */
struct task {
    const float *items;      /* (rows, 3H) */
    const float *behaviours; /* (kinds, 3H) */
    const float *weight;     /* (3H, H) */
    const float *bias;       /* (3H,) */
    const float *first;      /* (M, H), with its bias (M,); NULL for no head: K is H, outputs are hidden states */
    const float *first_bias;
    const float *second; /* (K, M), with its bias (K,) */
    const float *second_bias;
    const float *hidden;     /* (B, H) */
    const int64_t *previous; /* (B,) */
    const void *candidates;  /* (B, C), int64_t if wide, else int32_t */
    float *outputs;          /* (B, C, K) */
    int64_t rows, kinds, size, inner, count, width, wide; /* width is C, count is K */
};

/* What a tile is worked on in. Lying: a candidate's units side by side; standing: a unit's candidates side by side. */
struct scratch {
    float *lying, *standing; /* (TILE, H padded), (H padded, TILE) */
    float *gates;            /* (TILE, 3H padded): W_h h + bias of a tile of sessions */
    float *inner, *made;     /* (M, TILE), (3H padded or K, TILE) */
};

enum { AHEAD = 8 }; /* candidates between asking for an item's row and using it */
enum { DONE = 0, OUT_OF_RANGE = 1, OUT_OF_MEMORY = 2 };

#define INLINE static inline __attribute__((always_inline))

/* x P(x^2) / Q(x^2), fitted to tanh for the least absolute error up to 9, where float32 cannot tell it from 1; within 4e-7
 * after rounding. A loop over it becomes vectors, which a call of libm would not. The comparisons let NaN through. */
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

/* Python's indices: -1 is the last. Returns -1 for one that is none. */
INLINE int64_t place(int64_t index, int64_t size) {
    index += index < 0 ? size : 0;
    return index >= 0 && index < size ? index : -1;
}

/* The row of the n-th of all B C candidates, or -1. */
INLINE int64_t candidate(const struct task *t, int64_t n) {
    return place(t->wide ? ((const int64_t *)t->candidates)[n] : ((const int32_t *)t->candidates)[n], t->rows);
}

/* Ask for a row of the item table that is needed soon: rows lie anywhere, so no hardware guesses them. */
INLINE void prefetch(const struct task *t, int64_t row) {
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

/* Sessions begin <= b < end of a task; ranges that do not overlap may run at the same time. Of the kernels this machine can
 * run, the fastest up to `level` (0 plain, 1 AVX2, 2 AVX-512), so that tests reach them all. */
__attribute__((visibility("default"))) int mbcal_score_1(const struct task *task, int64_t begin, int64_t end, int level) {
#if defined(__x86_64__)
    if (level >= 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return score_avx512(task, begin, end);
    if (level >= 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return score_avx2(task, begin, end);
#endif
    (void)level;
    return score_plain(task, begin, end);
}

/* The kernel for one instruction set; score.c includes it once for each, with SUFFIX, TARGET, LANES, LOW and HIGH set.
 *
 * Two layouts take turns. Non-linearities run along the hidden units of one candidate, as the tables lie; products with
 * weights run along TILE candidates at once, so that any size of layer fills whole vectors and no sum crosses lanes.
 */
#define TILE (2 * LANES)
#define vec NAME(vec)
#define mask NAME(mask)

typedef float vec __attribute__((vector_size(4 * LANES), may_alias));
typedef int32_t mask __attribute__((vector_size(4 * LANES)));

#if defined(__clang__)
#define INTERLEAVE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define INTERLEAVE(a, b, ...) __builtin_shuffle(a, b, (mask){__VA_ARGS__})
#endif

/* to[c][r] = from[r][c]; rows and columns are multiples of LANES. */
TARGET static void NAME(transpose)(const float *from, int64_t from_stride, float *to, int64_t to_stride, int64_t rows,
                                   int64_t columns) {
    for (int64_t r = 0; r < rows; r += LANES)
        for (int64_t c = 0; c < columns; c += LANES) {
            vec a[LANES], b[LANES];
            for (int i = 0; i < LANES; i++) memcpy(&a[i], from + (r + i) * from_stride + c, sizeof(vec));
            /* each pass of perfect shuffles turns the address of an element by one bit */
            for (int turns = 1; turns < LANES; turns *= 2) {
                for (int i = 0; i < LANES / 2; i++) {
                    b[2 * i] = INTERLEAVE(a[i], a[i + LANES / 2], LOW);
                    b[2 * i + 1] = INTERLEAVE(a[i], a[i + LANES / 2], HIGH);
                }
                memcpy(a, b, sizeof a);
            }
            for (int i = 0; i < LANES; i++) memcpy(to + (c + i) * to_stride + r, &a[i], sizeof(vec));
        }
}

/* `count` outputs (known when compiled, so the sums stay in registers) of a layer with `inputs` inputs. */
TARGET INLINE void NAME(dense_part)(const int count, const float *weight, const float *bias, const float *x, float *y,
                                    int64_t inputs, int relu) {
    vec sum[4][2];
    for (int i = 0; i < count; i++) sum[i][0] = sum[i][1] = bias[i] - (vec){0};
    for (int64_t k = 0; k < inputs; k++) {
        vec x0 = *(const vec *)(x + k * TILE), x1 = *(const vec *)(x + k * TILE + LANES);
        for (int i = 0; i < count; i++) {
            float w = weight[i * inputs + k];
            sum[i][0] += w * x0;
            sum[i][1] += w * x1;
        }
    }
    for (int i = 0; i < count; i++)
        for (int j = 0; j < 2; j++) {
            vec v = sum[i][j];
            if (relu) v = (vec)((mask)v & ~(v < 0.0f)); /* NaN stays */
            *(vec *)(y + i * TILE + j * LANES) = v;
        }
}

/* y (outputs, TILE) = weight (outputs, inputs) x (inputs, TILE) + bias. */
TARGET static void NAME(dense)(const float *weight, const float *bias, const float *x, float *y, int64_t outputs,
                               int64_t inputs, int relu) {
    int64_t i = 0;
    for (; i + 4 <= outputs; i += 4) NAME(dense_part)(4, weight + i * inputs, bias + i, x, y + i * TILE, inputs, relu);
    for (; i < outputs; i++) NAME(dense_part)(1, weight + i * inputs, bias + i, x, y + i * TILE, inputs, relu);
}

/* One GRU step: gates are what the item adds (3H), what the session adds to reset and update (2H), what its last behaviour
 * (H) and its hidden state (H) add to the new gate. */
TARGET INLINE void NAME(step)(const float *restrict item, const float *restrict session, const float *restrict behaviour,
                              const float *restrict inside, const float *restrict before, float *restrict after,
                              int64_t size) {
    for (int64_t j = 0; j < size; j++) {
        float reset = fast_sigmoid(item[j] + session[j]);
        float update = fast_sigmoid(item[size + j] + session[size + j]);
        float new = fast_tanh(item[2 * size + j] + behaviour[j] + reset * inside[j]);
        after[j] = new + update * (before[j] - new);
    }
}

/* W_h h + bias of `many` sessions from `begin`: gates (TILE, 3H padded). */
TARGET static void NAME(hidden_gates)(const struct task *t, const struct scratch *s, int64_t begin, int64_t many) {
    int64_t size = t->size, padded = round_up(size, LANES), stride = round_up(3 * size, LANES);
    for (int64_t b = 0; b < many; b++) memcpy(s->lying + b * padded, t->hidden + (begin + b) * size, size * sizeof(float));
    NAME(transpose)(s->lying, padded, s->standing, TILE, TILE, padded);
    NAME(dense)(t->weight, t->bias, s->standing, s->made, 3 * size, size, 0);
    NAME(transpose)(s->made, TILE, s->gates, stride, stride, TILE);
}

/* The reward a candidate of the tile may expect: logits (K, TILE) -> softmax, weighted with the rewards (K,) -> (many,). */
TARGET static void NAME(expect)(const struct task *t, const float *logits, float *expected, int64_t many) {
    float top[TILE], total[TILE] = {0}, sum[TILE] = {0};
    memcpy(top, logits, sizeof top);
    for (int64_t k = 1; k < t->count; k++)
        for (int n = 0; n < TILE; n++) top[n] = logits[k * TILE + n] > top[n] ? logits[k * TILE + n] : top[n];
    for (int64_t k = 0; k < t->count; k++)
        for (int n = 0; n < TILE; n++) {
            float weight = fast_exp(logits[k * TILE + n] - top[n]);
            total[n] += weight;
            sum[n] += t->rewards[k] * weight;
        }
    for (int64_t n = 0; n < many; n++) expected[n] = sum[n] / total[n];
}

/* The head for the `many` candidates whose hidden states lie in the tile; outputs (many, K), or (many,) with rewards.
 * Without a head, the states. */
TARGET static void NAME(head)(const struct task *t, const struct scratch *s, float *outputs, int64_t many) {
    int64_t size = t->size, padded = round_up(size, LANES);
    if (!t->first) {
        for (int64_t n = 0; n < many; n++) memcpy(outputs + n * size, s->lying + n * padded, size * sizeof(float));
        return;
    }
    NAME(transpose)(s->lying, padded, s->standing, TILE, TILE, padded);
    NAME(dense)(t->first, t->first_bias, s->standing, s->inner, t->inner, size, 1);
    NAME(dense)(t->second, t->second_bias, s->inner, s->made, t->count, t->inner, 0);
    if (t->rewards) {
        NAME(expect)(t, s->made, outputs, many);
        return;
    }
    for (int64_t n = 0; n < many; n++)
        for (int64_t k = 0; k < t->count; k++) outputs[n * t->count + k] = s->made[k * TILE + n];
}

/* Up to TILE sessions from `begin`. */
TARGET static int NAME(score_tile)(const struct task *t, const struct scratch *s, int64_t begin, int64_t many) {
    int64_t size = t->size, padded = round_up(size, LANES), stride = round_up(3 * size, LANES);
    int64_t total = many * t->width, filled = 0, first = begin * t->width, each = t->rewards ? 1 : t->count;
    NAME(hidden_gates)(t, s, begin, many);
    for (int64_t b = 0; b < many; b++) {
        int64_t kind = place(t->previous[begin + b], t->kinds);
        if (kind < 0) return OUT_OF_RANGE;
        const float *behaviour = t->behaviours + kind * 3 * size, *before = t->hidden + (begin + b) * size;
        float *session = s->gates + b * stride;
        for (int64_t j = 0; j < 2 * size; j++) session[j] += behaviour[j];
        for (int64_t n = b * t->width; n < (b + 1) * t->width; n++) {
            int64_t row = candidate(t, first + n);
            if (row < 0) return OUT_OF_RANGE;
            if (n + AHEAD < total) prefetch(t, candidate(t, first + n + AHEAD));
            NAME(step)(t->items + row * 3 * size, session, behaviour + 2 * size, session + 2 * size, before,
                       s->lying + filled * padded, size);
            if (++filled == TILE || n + 1 == total) {
                NAME(head)(t, s, t->outputs + (first + n + 1 - filled) * each, filled);
                filled = 0;
            }
        }
    }
    return DONE;
}

TARGET static int NAME(score)(const struct task *t, int64_t begin, int64_t end) {
    int64_t padded = round_up(t->size, LANES), stride = round_up(3 * t->size, LANES);
    int64_t made = stride > t->count ? stride : t->count;
    /* zeros once: what pads a tile is computed with, though never read */
    float *memory = zeros(TILE * (2 * padded + made + stride + t->inner));
    if (!memory) return OUT_OF_MEMORY;
    struct scratch s = {.lying = memory};
    s.standing = s.lying + TILE * padded;
    s.made = s.standing + TILE * padded;
    s.gates = s.made + TILE * made;
    s.inner = s.gates + TILE * stride;
    int status = DONE;
    for (int64_t b = begin; b < end && status == DONE; b += TILE)
        status = NAME(score_tile)(t, &s, b, end - b < TILE ? end - b : TILE);
    free(memory);
    return status;
}

#undef TILE
#undef vec
#undef mask
#undef INTERLEAVE
#undef SUFFIX
#undef TARGET
#undef LANES
#undef LOW
#undef HIGH

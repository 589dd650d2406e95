/* The scoring kernel for one instruction set. score.c includes this file once per set, with SUFFIX, TARGET, LANES, LOW and
 * HIGH defined.
 *
 * Two layouts alternate. Non-linearities run along the hidden units of one candidate, the layout of the tables. Products
 * with weights run along TILE candidates at once, so that layers of any size fill whole vectors and no sum crosses lanes.
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
            /* each pass of perfect shuffles rotates an element's (row, column) address by one bit */
            for (int rotated = 1; rotated < LANES; rotated *= 2) {
                for (int i = 0; i < LANES / 2; i++) {
                    b[2 * i] = INTERLEAVE(a[i], a[i + LANES / 2], LOW);
                    b[2 * i + 1] = INTERLEAVE(a[i], a[i + LANES / 2], HIGH);
                }
                memcpy(a, b, sizeof a);
            }
            for (int i = 0; i < LANES; i++) memcpy(to + (c + i) * to_stride + r, &a[i], sizeof(vec));
        }
}

/* `count` outputs of a dense layer. `count` is known at compile time, so that the sums stay in registers. */
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
            if (relu) v = (vec)((mask)v & ~(v < 0.0f)); /* NaN stays NaN */
            *(vec *)(y + i * TILE + j * LANES) = v;
        }
}

/* A dense layer: y (outputs, TILE) = weight (outputs, inputs) x (inputs, TILE) + bias. */
TARGET static void NAME(dense)(const float *weight, const float *bias, const float *x, float *y, int64_t outputs,
                               int64_t inputs, int relu) {
    int64_t i = 0;
    for (; i + 4 <= outputs; i += 4) NAME(dense_part)(4, weight + i * inputs, bias + i, x, y + i * TILE, inputs, relu);
    for (; i < outputs; i++) NAME(dense_part)(1, weight + i * inputs, bias + i, x, y + i * TILE, inputs, relu);
}

/* One GRU step of one candidate: h_t (H,) `after` from h_{t-1} (H,) `before`. Parts of the gates: the item's (3H), the
 * session's reset and update (2H), and the new gate's behaviour part (H) and hidden part (H). */
TARGET INLINE void NAME(gru_step)(const float *restrict item, const float *restrict session,
                                  const float *restrict behaviour_new, const float *restrict hidden_new,
                                  const float *restrict before, float *restrict after, int64_t size) {
    for (int64_t j = 0; j < size; j++) {
        float reset = fast_sigmoid(item[j] + session[j]);
        float update = fast_sigmoid(item[size + j] + session[size + j]);
        float new = fast_tanh(item[2 * size + j] + behaviour_new[j] + reset * hidden_new[j]);
        after[j] = new + update * (before[j] - new);
    }
}

/* gates (TILE, 3H padded) = W_h h + bias of `count` sessions from `begin` on. */
TARGET static void NAME(hidden_gates)(const struct task *t, const struct scratch *s, int64_t begin, int64_t count) {
    int64_t size = t->size, padded = round_up(size, LANES), stride = round_up(3 * size, LANES);
    for (int64_t b = 0; b < count; b++) memcpy(s->by_row + b * padded, t->hidden + (begin + b) * size, size * sizeof(float));
    NAME(transpose)(s->by_row, padded, s->by_unit, TILE, TILE, padded);
    NAME(dense)(t->weight, t->bias, s->by_unit, s->layer, 3 * size, size, 0);
    NAME(transpose)(s->layer, TILE, s->gates, stride, stride, TILE);
}

/* Expected rewards (count,) of candidates: softmax of logits (K, TILE), weighted with the rewards (K,). */
TARGET static void NAME(expected_rewards)(const struct task *t, const float *logits, float *expected, int64_t count) {
    float top[TILE], total[TILE] = {0}, sum[TILE] = {0};
    memcpy(top, logits, sizeof top);
    for (int64_t k = 1; k < t->n_outputs; k++)
        for (int n = 0; n < TILE; n++) top[n] = logits[k * TILE + n] > top[n] ? logits[k * TILE + n] : top[n];
    for (int64_t k = 0; k < t->n_outputs; k++)
        for (int n = 0; n < TILE; n++) {
            float weight = fast_exp(logits[k * TILE + n] - top[n]);
            total[n] += weight;
            sum[n] += t->rewards[k] * weight;
        }
    for (int64_t n = 0; n < count; n++) expected[n] = sum[n] / total[n];
}

/* The head on the `count` hidden states in `by_row`: outputs (count, K), or expected rewards (count,) if the task has
 * rewards. Without a head, outputs are the hidden states (count, H). */
TARGET static void NAME(head)(const struct task *t, const struct scratch *s, float *outputs, int64_t count) {
    int64_t size = t->size, padded = round_up(size, LANES);
    if (!t->first) {
        for (int64_t n = 0; n < count; n++) memcpy(outputs + n * size, s->by_row + n * padded, size * sizeof(float));
        return;
    }
    NAME(transpose)(s->by_row, padded, s->by_unit, TILE, TILE, padded);
    NAME(dense)(t->first, t->first_bias, s->by_unit, s->inner, t->inner, size, 1);
    NAME(dense)(t->second, t->second_bias, s->inner, s->layer, t->n_outputs, t->inner, 0);
    if (t->rewards) {
        NAME(expected_rewards)(t, s->layer, outputs, count);
        return;
    }
    for (int64_t n = 0; n < count; n++)
        for (int64_t k = 0; k < t->n_outputs; k++) outputs[n * t->n_outputs + k] = s->layer[k * TILE + n];
}

/* Scores of all candidates of `count` sessions, up to TILE, from `begin` on. */
TARGET static int NAME(score_tile)(const struct task *t, const struct scratch *s, int64_t begin, int64_t count) {
    int64_t size = t->size, padded = round_up(size, LANES), stride = round_up(3 * size, LANES);
    int64_t total = count * t->width, filled = 0, first = begin * t->width, per_candidate = t->rewards ? 1 : t->n_outputs;
    NAME(hidden_gates)(t, s, begin, count);
    for (int64_t b = 0; b < count; b++) {
        int64_t previous = resolve_index(t->previous[begin + b], t->n_behaviours);
        if (previous < 0) return OUT_OF_RANGE;
        const float *behaviour = t->behaviours + previous * 3 * size, *before = t->hidden + (begin + b) * size;
        float *session = s->gates + b * stride;
        for (int64_t j = 0; j < 2 * size; j++) session[j] += behaviour[j];
        for (int64_t n = b * t->width; n < (b + 1) * t->width; n++) {
            int64_t row = candidate_row(t, first + n);
            if (row < 0) return OUT_OF_RANGE;
            if (n + PREFETCH_DISTANCE < total) prefetch_row(t, candidate_row(t, first + n + PREFETCH_DISTANCE));
            NAME(gru_step)(t->items + row * 3 * size, session, behaviour + 2 * size, session + 2 * size, before,
                           s->by_row + filled * padded, size);
            if (++filled == TILE || n + 1 == total) {
                NAME(head)(t, s, t->outputs + (first + n + 1 - filled) * per_candidate, filled);
                filled = 0;
            }
        }
    }
    return DONE;
}

/* Scores of the sessions begin <= b < end. */
TARGET static int NAME(score)(const struct task *t, int64_t begin, int64_t end) {
    int64_t padded = round_up(t->size, LANES), stride = round_up(3 * t->size, LANES);
    int64_t widest_layer = stride > t->n_outputs ? stride : t->n_outputs;
    /* zeroed once: the padding of a tile takes part in the arithmetic, though its results are never read */
    float *memory = zeros(TILE * (2 * padded + widest_layer + stride + t->inner));
    if (!memory) return OUT_OF_MEMORY;
    struct scratch s = {.by_row = memory};
    s.by_unit = s.by_row + TILE * padded;
    s.layer = s.by_unit + TILE * padded;
    s.gates = s.layer + TILE * widest_layer;
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

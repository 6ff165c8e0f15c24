/* Steps of networks of dense layers: one call is an epoch of a client.

   Products are taken in tiles whose sums stay in registers, straight from the rows of the data set,
   and a tile of gradients moves its weights at once: neither rows nor gradients are ever copied. */

#include "steps.h"
#ifdef __AVX512F__
enum { MOST_PARTS = 4 };
#else
enum { MOST_PARTS = 2 };
#endif
enum { MOST_LAYERS = 64, MOST_ROWS = 8, PANEL = MOST_PARTS * LANES };

/* Sums of tiles stay in registers: of 6 rows and a whole panel, of 8 and a narrower one, and of
   fewer rows for what is left over. */
#define OF_PARTS(rows, rows_of_panel, parts, call) \
    if (parts == MOST_PARTS) { call(rows_of_panel, MOST_PARTS); } \
    else if (parts == 1) { call(rows, 1); } \
    else if (parts == 2) { call(rows, 2); } \
    else { call(rows, (MOST_PARTS > 3 ? 3 : 1)); }
#define OF_TILE(rows, parts, call) \
    switch (rows) { \
    case 1: OF_PARTS(1, 1, parts, call) break; \
    case 4: OF_PARTS(4, 4, parts, call) break; \
    default: OF_PARTS(MOST_ROWS, 6, parts, call) \
    }

static int rows_of_tile(int64_t left, int parts) {
    int most = parts < MOST_PARTS ? MOST_ROWS : 6;
    return left >= most ? most : left >= 4 ? 4 : 1;
}

static int64_t padded(int64_t width) { return (width + LANES - 1) / LANES * LANES; }

/* Vectors in the panel that begins at an output. */
static int parts_at(int64_t output, int64_t outputs) {
    int64_t left = padded(outputs) - output;
    return (int)(left < PANEL ? left : PANEL) / LANES;
}

/* Row i of a matrix is at first + index[i] * apart. */
typedef struct {
    const float *first;
    const int64_t *index;
    int64_t apart;
} matrix;

/* How SGD moves: `strength` times the way from the anchor and `push` times the anchor are added to
   each gradient, and the anchor moves the share `follow` of its way to the new values. */
typedef struct {
    float learning_rate, momentum, decay, strength, push, follow;
    adaptive adam;
    int64_t squares; /* vectors from a momentum to Adam's second one */
} rule;

/* A layer's weights are panels of PANEL outputs, the last of fewer, and in a panel [in][output];
   then come the biases. Outputs fill whole vectors, with 0 for those there are not. */
typedef struct {
    int64_t in, out;
    vec *weights, *momenta, *anchor;
    float *outputs; /* [row][output] */
    float *deltas;  /* the loss's derivatives by them, before ReLU */
} layer;

/* Moves `count` vectors by their gradients. */
static void move(const rule *by, int count, const vec *gradients, vec *values, vec *momenta,
                 vec *anchor) {
    if (by->adam.kind) {
        vec pulled[MOST_ROWS * MOST_PARTS];
        for (int i = 0; i < count; i++) {
            pulled[i] = gradients[i];
            if (by->strength > 0) pulled[i] += by->strength * (values[i] - anchor[i]);
            if (by->push != 0) pulled[i] += by->push * anchor[i];
        }
        adapt(&by->adam, count * LANES, (float *)pulled, (float *)values, (float *)momenta,
              (float *)(momenta + by->squares));
        for (int i = 0; i < count && by->follow > 0; i++)
            anchor[i] += by->follow * (values[i] - anchor[i]);
        return;
    }
    for (int i = 0; i < count; i++) {
        vec gradient = gradients[i] + by->decay * values[i];
        if (by->strength > 0) gradient += by->strength * (values[i] - anchor[i]);
        if (by->push != 0) gradient += by->push * anchor[i];
        if (by->momentum > 0) momenta[i] = gradient += by->momentum * momenta[i];
        values[i] -= by->learning_rate * gradient;
        if (by->follow > 0) anchor[i] += by->follow * (values[i] - anchor[i]);
    }
}

/* out = start + in * weights for the rows of a tile from `row` on, and the outputs of a panel. */
INLINE void multiply_tile(const int ROWS, const int PARTS, const matrix *in, int64_t inner,
                          int64_t row, const vec *start, const vec *weights, float *out,
                          int64_t apart) {
    const float *from[MOST_ROWS];
    vec sums[MOST_ROWS * MOST_PARTS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        from[r] = in->first + in->index[row + r] * in->apart;
        UNROLL for (int p = 0; p < PARTS; p++) sums[r * PARTS + p] = start[p];
    }
    for (int64_t k = 0; k < inner; k++, weights += PARTS)
        UNROLL for (int r = 0; r < ROWS; r++) {
            float value = from[r][k];
            UNROLL for (int p = 0; p < PARTS; p++) sums[r * PARTS + p] += value * weights[p];
        }
    UNROLL for (int r = 0; r < ROWS; r++)
        memcpy(out + (row + r) * apart, sums + r * PARTS, sizeof(vec) * PARTS);
}

/* out = start + in * weights, of `rows` rows of `inner` numbers; start is the same for all rows. */
static void multiply(const matrix *in, int rows, int64_t inner, const vec *start,
                     const vec *weights, int64_t outputs, float *out) {
    int64_t apart = padded(outputs);
    for (int64_t output = 0; output < outputs; output += PANEL) {
        int parts = parts_at(output, outputs), tall;
        for (int64_t row = 0; row < rows; row += tall) {
            tall = rows_of_tile(rows - row, parts);
#define CALL(ROWS, PARTS) \
    multiply_tile(ROWS, PARTS, in, inner, row, start, weights, out + output, apart)
            OF_TILE(tall, parts, CALL)
#undef CALL
        }
        weights += inner * parts;
        start += parts;
    }
}

/* Moves the weights from some inputs to the outputs of a panel by their gradients. */
INLINE void learn_tile(const int TAPS, const int PARTS, const rule *by, const matrix *in, int rows,
                       const float *delta, int64_t apart, int64_t tap, vec *weights, vec *momenta,
                       vec *anchor) {
    vec sums[MOST_ROWS * MOST_PARTS];
    UNROLL for (int i = 0; i < TAPS * PARTS; i++) sums[i] = (vec){};
    for (int64_t row = 0; row < rows; row++, delta += apart) {
        const float *value = in->first + in->index[row] * in->apart + tap;
        UNROLL for (int t = 0; t < TAPS; t++) {
            UNROLL for (int p = 0; p < PARTS; p++)
                sums[t * PARTS + p] += value[t] * ((const vec *)delta)[p];
        }
    }
    vec gradients[MOST_ROWS * MOST_PARTS];
    UNROLL for (int i = 0; i < TAPS * PARTS; i++) gradients[i] = sums[i];
    move(by, TAPS * PARTS, gradients, weights, momenta, anchor);
}

/* Moves a layer by its gradients; its weights or its biases stand still where they are frozen. */
static void learn(const layer *l, const rule *by, const matrix *in, int rows,
                  const int32_t *frozen) {
    int64_t apart = padded(l->out), at = l->in * apart / LANES;
    for (int64_t p = 0; p < apart / LANES && !frozen[1]; p++) {
        vec sum = {};
        for (int row = 0; row < rows; row++) sum += ((const vec *)(l->deltas + row * apart))[p];
        move(by, 1, &sum, l->weights + at + p, l->momenta + at + p, l->anchor + at + p);
    }
    if (frozen[0]) return;
    at = 0;
    for (int64_t output = 0; output < l->out; output += PANEL) {
        int parts = parts_at(output, l->out), tall;
        for (int64_t tap = 0; tap < l->in; tap += tall, at += tall * parts) {
            tall = rows_of_tile(l->in - tap, parts);
#define CALL(TAPS, PARTS) \
    learn_tile(TAPS, PARTS, by, in, rows, l->deltas + output, apart, tap, l->weights + at, \
               l->momenta + at, l->anchor + at)
            OF_TILE(tall, parts, CALL)
#undef CALL
        }
    }
}

/* The weights with inputs and outputs changing places: inputs fill whole vectors, and those there
   are not hold anything, since pass_back lets nothing through to them. */
static void turn(const layer *l, float *restrict to) {
    for (int64_t first = 0; first < l->in; first += PANEL) {
        int64_t wide = parts_at(first, l->in) * LANES;
        int64_t tall = l->in - first < wide ? l->in - first : wide;
        const float *restrict from = (const float *)l->weights;
        for (int64_t output = 0; output < l->out; output += PANEL) {
            int64_t across = parts_at(output, l->out) * LANES;
            int64_t count = l->out - output < across ? l->out - output : across;
            for (int64_t i = 0; i < tall; i++)
                for (int64_t o = 0; o < count; o++)
                    to[o * wide + i] = from[(first + i) * across + o];
            to += count * wide;
            from += l->in * across;
        }
    }
}

/* ReLU, then dropout if the scale of what is kept is not 1. */
static const int16_t *rectify(const layer *l, int rows, float scale, int16_t threshold,
                              const int16_t *bits) {
    for (int64_t row = 0; row < rows; row++) {
        float *value = l->outputs + row * padded(l->out);
        /* so written that NaN stays NaN, and the guard sees it */
        for (int64_t j = 0; j < l->out; j++) value[j] = value[j] < 0 ? 0 : value[j];
        if (scale == 1) continue;
        for (int64_t j = 0; j < l->out; j++)
            value[j] *= bits[row * l->out + j] >= threshold ? scale : 0;
    }
    return scale == 1 ? bits : bits + (rows * l->out + 3) / 4 * 4; /* a word holds four units */
}

/* Back through dropout and ReLU: what either made 0 passes nothing. */
static void pass_back(const layer *l, int rows, float scale) {
    const vec *output = (const vec *)l->outputs;
    vec *delta = (vec *)l->deltas;
    for (int64_t i = 0; i < rows * padded(l->out) / LANES; i++)
        delta[i] = (vec)((output[i] > 0) & (ivec)delta[i]) * scale;
}

/* What lies in the space, zeros at first. */
typedef struct {
    layer layers[MOST_LAYERS];
    float *momenta, *values, *anchor; /* of all layers, one after the other; momenta twice */
    float *turned;                    /* a layer's weights */
    float *zeros;
    int64_t *places; /* 0, 1, ..., most - 1 */
    int64_t parameters;
} room;

static char *take(char *at, int64_t bytes, void *pointer) {
    memcpy(pointer, &at, sizeof at);
    return at + (bytes + sizeof(vec) - 1) / sizeof(vec) * sizeof(vec);
}

/* Lays the room out in `space`; returns its end. */
static char *furnish(int layers, const int *widths, int64_t most, char *space, room *r) {
    int64_t turned = 0, widest = 0, at = 0, bytes = sizeof(float);
    r->parameters = 0;
    for (int l = 0; l < layers; l++) r->parameters += (widths[l] + 1) * padded(widths[l + 1]);
    space = take(space, 2 * bytes * r->parameters, &r->momenta);
    space = take(space, bytes * r->parameters, &r->values);
    space = take(space, bytes * r->parameters, &r->anchor);
    for (int i = 0; i < layers; i++) {
        layer *l = r->layers + i;
        l->in = widths[i];
        l->out = widths[i + 1];
        l->weights = (vec *)(r->values + at);
        l->momenta = (vec *)(r->momenta + at);
        l->anchor = (vec *)(r->anchor + at);
        at += (l->in + 1) * padded(l->out);
        space = take(space, bytes * most * padded(l->out), &l->outputs);
        space = take(space, bytes * most * padded(l->out), &l->deltas);
        if (i == 0) continue;
        turned = padded(l->in) * l->out > turned ? padded(l->in) * l->out : turned;
        widest = padded(l->in) > widest ? padded(l->in) : widest;
    }
    space = take(space, bytes * turned, &r->turned);
    space = take(space, bytes * widest, &r->zeros);
    return take(space, sizeof(int64_t) * most, &r->places);
}

/* Bytes of the space, which is 0 at first and begins at a multiple of a vector's size. */
int64_t coterie_space(int layers, const int *widths, int most) {
    room r;
    return furnish(layers, widths, most, 0, &r) - (char *)0;
}

int coterie_lanes(void) { return LANES; }

/* Copies all parameters between a flat vector, per layer the weights (out, in) and the biases, and
   the layers' own order: into that, or out of it. */
static void exchange(int layers, const layer *l, float *flat, float *own, int into) {
    for (; layers > 0; layers--, l++) {
        for (int64_t output = 0; output < l->out; output += PANEL) {
            int64_t across = parts_at(output, l->out) * LANES;
            int64_t count = l->out - output < across ? l->out - output : across;
            for (int64_t i = 0; i < l->in; i++, own += across)
                for (int64_t o = 0; o < count; o++) {
                    float *outside = flat + (output + o) * l->in + i;
                    if (into) own[o] = *outside;
                    else *outside = own[o];
                }
        }
        flat += l->in * l->out;
        if (into) memcpy(own, flat, sizeof(float) * l->out);
        else memcpy(flat, own, sizeof(float) * l->out);
        flat += l->out;
        own += padded(l->out);
    }
}

/* Takes a client's parameters, and its anchor if something pulls, and forgets the momenta; or gives
   them back. */
void coterie_exchange(int layers, const int *widths, int most, char *space, float *values,
                      float *anchor, int pulled, int into) {
    room r;
    furnish(layers, widths, most, space, &r);
    exchange(layers, r.layers, values, r.values, into);
    if (pulled) exchange(layers, r.layers, anchor, r.anchor, into);
    if (into) memset(r.momenta, 0, 2 * sizeof(float) * r.parameters);
}

/* Passes once over `rows` rows in the order given; returns their summed loss. `bits` are the
   dropout draws of all steps end to end, 15 per unit; a unit is kept where they are at least its
   layer's threshold. After `repeats` steps on a batch, of which the first gives the loss, the
   anchor moves. `frozen` says of each layer's weights and biases whether they stand still. With
   `adam`, 1 or 2 for AdamW, the steps are its, after `taken` of them. */
double coterie_train(int layers, const int *widths, int most, char *space, const float *inputs,
                     const int64_t *labels, const int64_t *order, int64_t rows,
                     const int16_t *bits, const float *scales, const int16_t *thresholds,
                     float learning_rate, float momentum, float decay, float strength, int repeats,
                     float follow, float push, const int32_t *frozen, int adam,
                     int64_t taken) {
    room r;
    double total = 0;
    unsigned before = flush_to_zero();
    furnish(layers, widths, most, space, &r);
    for (int64_t i = 0; i < most; i++) r.places[i] = i;
    for (int64_t step = 0, at = 0; at < rows; at = ++step / repeats * most) {
        int size = rows - at < most ? (int)(rows - at) : most;
        float moved = step % repeats == repeats - 1 ? follow : 0;
        rule by = {learning_rate, momentum, decay, strength, push, moved,
                   in_step(adam, taken + step + 1, learning_rate, decay), r.parameters / LANES};
        matrix in[MOST_LAYERS + 1] = {{inputs, order + at, widths[0]}};
        for (int i = 0; i < layers; i++) {
            layer *l = r.layers + i;
            const vec *biases = l->weights + l->in * padded(l->out) / LANES;
            multiply(in + i, size, l->in, biases, l->weights, l->out, l->outputs);
            in[i + 1] = (matrix){l->outputs, r.places, padded(l->out)};
            if (i < layers - 1) bits = rectify(l, size, scales[i], thresholds[i], bits);
        }
        layer *last = r.layers + layers - 1;
        int64_t apart = padded(last->out);
        double loss = 0;
        for (int64_t i = 0; i < size; i++)
            loss += row_loss((int)last->out, 1, last->outputs + i * apart, labels[order[at + i]],
                             1.0f / size, last->deltas + i * apart);
        if (step % repeats == 0) total += loss;
        for (int i = layers - 1; i >= 0; i--) {
            layer *l = r.layers + i, *below = l - 1;
            if (i > 0) { /* before the weights move */
                matrix deltas = {l->deltas, r.places, padded(l->out)};
                turn(l, r.turned);
                multiply(&deltas, size, l->out, (vec *)r.zeros, (vec *)r.turned, l->in,
                         below->deltas);
                pass_back(below, size, scales[i - 1]);
            }
            learn(l, &by, in + i, size, frozen + 2 * i);
        }
    }
    restore(before);
    return total;
}

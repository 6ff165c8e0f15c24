/* Steps of any network that is a list of known operations: one call is an epoch of a client.

   A vector holds one number of each of 16 samples (8 where the processor's vectors are short), so
   that an operation on vectors is the one on rows, lane by lane, and equal patches give equal
   numbers. A value is [group of samples][number of a row], in torch's order of numbers, so that a
   change of shape moves nothing. Convolutions and dense layers are one operation: sums over the
   same pattern of inputs, seen from many places. */

#include "steps.h"

enum { PRODUCT, RELU, LEAKY_RELU, TANH, GELU, GELU_TANH, MAX_POOL, AVERAGE, DROP, NORM, BATCH_NORM,
       ADD };
enum { MOST_OUTS = 8, CHUNK = 48 };
#ifdef __AVX512F__
enum { SUMS = 24 };
#else
enum { SUMS = 12 };
#endif
enum { MOST_PLACES = SUMS / 4 };
/* Arrays have sizes that the compiler knows before it puts a function into another: then, and where
   every index is known, they are registers. */
#define PLACES_OF(OUT) (SUMS / (OUT))

/* One of the steps. Where something lies is counted in vectors of one group, in tables in words, in
   values (parameters and buffers) in floats; -1: there is none. */
typedef struct {
    int64_t kind;
    int64_t in, other, out;      /* values that come and go */
    int64_t in_size, out_size;   /* numbers of a row */
    int64_t passes;              /* whether anybody needs the deltas of what comes */
    int64_t weight, bias;
    int64_t depth, outs, block;  /* of products: inputs of a sum, sums of a place, sums at a time */
    int64_t places, offsets;     /* how many; tables: where a place begins, and its inputs from there */
    int64_t out_apart, place_apart;         /* in what goes */
    int64_t padded, padded_size;            /* the inputs with zeros around them */
    int64_t planes, height, width, tall, wide; /* of padding: channels, their size, zeros */
    int64_t taps;                /* of pooling: numbers of a window, in a table, -1: outside */
    int64_t kept;                /* what the way back needs: winners, means */
    int64_t run, chunk;          /* of norms: numbers that share a weight, that are normed together */
    int64_t mean, variance;      /* running ones */
    double number, more;         /* a slope, a scale; eps and momentum */
} step;

/* Where the numbers of a batch lie. */
typedef struct {
    const step *steps;
    int count;
    const int64_t *tables;
    float *values, *gradients;
    vec *numbers, *deltas, *padded, *kept;
    vec *sums; /* of gradients by weights, before lanes are added */
    int64_t most, groups; /* of groups: at most, and in this batch */
    int64_t rows;
} batch;

static vec *at(const batch *b, vec *from, int64_t place, int64_t size, int64_t group) {
    return from + place * b->most + group * size;
}

INLINE vec either(ivec mask, vec yes, vec no) {
    return (vec)((mask & (ivec)yes) | (~mask & (ivec)no));
}

static float total(vec v) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += v[i];
    return sum;
}

/* The totals of `count` vectors, which are lost. */
INLINE void totals(const int COUNT, vec *v, float *to) {
    typedef float quad __attribute__((vector_size(16)));
    UNROLL for (int i = 0; i < COUNT; i++) {
        quad parts[LANES / 4], sum;
        memcpy(parts, v + i, sizeof(vec));
        sum = parts[0];
        UNROLL for (int k = 1; k < LANES / 4; k++) sum += parts[k];
        to[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
}

/* Lanes of the samples that there are. */
static vec present(const batch *b, int64_t group) {
    vec mask;
    for (int i = 0; i < LANES; i++) mask[i] = group * LANES + i < b->rows;
    return mask;
}

/* Products -------------------------------------------------------------------------------------- */

/* sums[place][out] += inputs of the place times weights, over the depth */
INLINE void gather(const int OUT, const int PLACES, const char *const *in, const int64_t *offsets,
                   int64_t depth, const float *restrict weights, vec *kept) {
    vec sums[SUMS];
    UNROLL for (int i = 0; i < PLACES * OUT; i++) sums[i] = (vec){};
    for (int64_t i = 0; i < depth; i++, weights += OUT) {
        vec seen[MOST_PLACES];
        UNROLL for (int p = 0; p < PLACES; p++) seen[p] = *(const vec *)(in[p] + offsets[i]);
        UNROLL for (int o = 0; o < OUT; o++) {
            float weight = weights[o];
            UNROLL for (int p = 0; p < PLACES; p++) sums[p * OUT + o] += seen[p] * weight;
        }
    }
    UNROLL for (int i = 0; i < PLACES * OUT; i++) kept[i] = sums[i];
}

/* inputs of the place += deltas times weights: the same backwards */
INLINE void scatter(const int OUT, const int PLACES, char *const *below, const int64_t *offsets,
                    int64_t depth, const float *restrict weights, const vec *deltas) {
    vec delta[SUMS];
    UNROLL for (int i = 0; i < PLACES * OUT; i++) delta[i] = deltas[i];
    for (int64_t i = 0; i < depth; i++, weights += OUT) {
        vec sums[MOST_PLACES];
        UNROLL for (int p = 0; p < PLACES; p++) sums[p] = *(const vec *)(below[p] + offsets[i]);
        UNROLL for (int o = 0; o < OUT; o++) {
            float weight = weights[o];
            UNROLL for (int p = 0; p < PLACES; p++) sums[p] += delta[p * OUT + o] * weight;
        }
        UNROLL for (int p = 0; p < PLACES; p++) *(vec *)(below[p] + offsets[i]) = sums[p];
    }
}

/* sums[tap][out] += inputs at the taps times deltas, over places */
INLINE void correlate(const int OUT, const int TAPS, const char *const *in, const int64_t *offsets,
                      int places, const vec *deltas, vec *kept, int begins) {
    vec sums[SUMS];
    UNROLL for (int i = 0; i < TAPS * OUT; i++) sums[i] = begins ? (vec){} : kept[i];
    int64_t taps[MOST_PLACES];
    UNROLL for (int t = 0; t < TAPS; t++) taps[t] = offsets[t];
    for (int q = 0; q < places; q++, deltas += OUT) {
        const char *from = in[q];
        vec seen[MOST_PLACES];
        UNROLL for (int t = 0; t < TAPS; t++) seen[t] = *(const vec *)(from + taps[t]);
        UNROLL for (int o = 0; o < OUT; o++) {
            vec delta = deltas[o];
            UNROLL for (int t = 0; t < TAPS; t++) sums[t * OUT + o] += seen[t] * delta;
        }
    }
    UNROLL for (int i = 0; i < TAPS * OUT; i++) kept[i] = sums[i];
}

/* A call for each number of outs, and of places or taps: as many as registers hold, two, or one. */
#define OF_COUNT(OUT, count, CALL) \
    if (count >= PLACES_OF(OUT)) { CALL(OUT, PLACES_OF(OUT)); done = PLACES_OF(OUT); } \
    else if (count >= 2 && PLACES_OF(OUT) > 2) { CALL(OUT, 2); done = 2; } \
    else { CALL(OUT, 1); done = 1; }
#define OF_BLOCK(block, count, CALL) \
    switch (block) { \
    case 4: OF_COUNT(4, count, CALL) break; \
    case 6: OF_COUNT(6, count, CALL) break; \
    default: OF_COUNT(8, count, CALL) \
    }

/* The place of number q, over all groups. */
static char *place_of(const batch *b, const step *s, vec *first, int64_t size, int64_t q) {
    int64_t group = q / s->places, place = q % s->places;
    return (char *)(first + group * size) + b->tables[s->offsets + place];
}

static vec *inputs_of(const batch *b, const step *s) {
    return s->padded < 0 ? b->numbers + s->in * b->most : b->padded + s->padded * b->most;
}

static int64_t inputs_size(const step *s) { return s->padded < 0 ? s->in_size : s->padded_size; }

/* Copies a group's inputs into zeros, or adds what lies between the zeros to deltas. */
static void pad(const step *s, vec *plain, vec *padded, int back) {
    int64_t wide = s->width + 2 * s->wide;
    if (!back) memset(padded, 0, sizeof(vec) * s->padded_size);
    for (int64_t c = 0; c < s->planes; c++)
        for (int64_t y = 0; y < s->height; y++, plain += s->width) {
            vec *line = padded + (c * (s->height + 2 * s->tall) + y + s->tall) * wide + s->wide;
            if (!back) memcpy(line, plain, sizeof(vec) * s->width);
            else for (int64_t x = 0; x < s->width; x++) plain[x] += line[x];
        }
}

static void multiply(const batch *b, const step *s) {
    for (int64_t g = 0; g < b->groups && s->padded >= 0; g++)
        pad(s, at(b, b->numbers, s->in, s->in_size, g), at(b, b->padded, s->padded, s->padded_size, g),
            0);
    vec *first = inputs_of(b, s);
    const int64_t *offsets = b->tables + s->offsets + s->places;
    int64_t size = inputs_size(s), in_all = b->groups * s->places, done;
    for (int64_t q = 0; q < in_all; q += done) {
        const char *in[SUMS];
        vec *out[SUMS];
        int64_t most = in_all - q < MOST_PLACES ? in_all - q : MOST_PLACES;
        for (int64_t p = 0; p < most; p++) {
            in[p] = place_of(b, s, first, size, q + p);
            out[p] = at(b, b->numbers, s->out, s->out_size, (q + p) / s->places) +
                     (q + p) % s->places * s->place_apart;
        }
        for (int64_t from = 0; from < s->outs; from += s->block) {
            const float *weights = b->values + s->weight + from * s->depth;
            const float *bias = b->values + s->bias + from;
            int64_t there = s->outs - from < s->block ? s->outs - from : s->block;
            vec sums[SUMS];
#define CALL(OUT, PLACES) \
    do { \
        gather(OUT, PLACES, in, offsets, s->depth, weights, sums); \
        UNROLL for (int p = 0; p < (PLACES); p++) \
            for (int64_t o = 0; o < there; o++) \
                out[p][(from + o) * s->out_apart] = \
                    s->bias < 0 ? sums[p * (OUT) + o] : sums[p * (OUT) + o] + bias[o]; \
    } while (0)
            OF_BLOCK(s->block, in_all - q, CALL)
#undef CALL
        }
    }
}

/* Gradients by weights and biases, and deltas of the inputs where somebody needs them. */
static void multiply_back(const batch *b, const step *s) {
    vec *first = inputs_of(b, s), *below = b->deltas + s->in * b->most;
    const int64_t *offsets = b->tables + s->offsets + s->places;
    int64_t size = inputs_size(s), in_all = b->groups * s->places, done;
    if (s->padded >= 0) { /* the last place of the padded ones is for their deltas */
        below = b->padded + (s->padded + s->padded_size) * b->most;
        if (s->passes) memset(below, 0, sizeof(vec) * b->groups * size);
    }
    for (int64_t from = 0; from < s->outs; from += s->block) {
        const float *weights = b->values + s->weight + from * s->depth;
        float *by_weights = b->gradients + s->weight + from * s->depth;
        int64_t there = s->outs - from < s->block ? s->outs - from : s->block;
        vec by_bias[MOST_OUTS] = {};
        for (int64_t q = 0; q < in_all; q += CHUNK) {
            const char *in[CHUNK];
            char *to[CHUNK];
            vec deltas[CHUNK * MOST_OUTS];
            int places = in_all - q < CHUNK ? (int)(in_all - q) : CHUNK;
            for (int p = 0; p < places; p++) {
                int64_t group = (q + p) / s->places, place = (q + p) % s->places;
                const vec *delta = at(b, b->deltas, s->out, s->out_size, group) +
                                   place * s->place_apart + from * s->out_apart;
                for (int64_t o = 0; o < s->block; o++) {
                    deltas[p * s->block + o] = o < there ? delta[o * s->out_apart] : (vec){};
                    by_bias[o] += deltas[p * s->block + o];
                }
                in[p] = place_of(b, s, first, size, q + p);
                to[p] = place_of(b, s, below, size, q + p);
            }
            for (int p = 0; p < places && s->passes; p += done) {
#define CALL(OUT, PLACES) \
    scatter(OUT, PLACES, to + p, offsets, s->depth, weights, deltas + p * (OUT))
                OF_BLOCK(s->block, places - p, CALL)
#undef CALL
            }
            for (int64_t tap = 0; tap < s->depth; tap += done) {
#define CALL(OUT, TAPS) \
    do { \
        vec *kept = b->sums + tap * (OUT); \
        correlate(OUT, TAPS, in, offsets + tap, places, deltas, kept, q == 0); \
        if (q + CHUNK >= in_all) totals((OUT) * (TAPS), kept, by_weights + tap * (OUT)); \
    } while (0)
                OF_BLOCK(s->block, s->depth - tap, CALL)
#undef CALL
            }
        }
        for (int64_t o = 0; o < there && s->bias >= 0; o++)
            b->gradients[s->bias + from + o] = total(by_bias[o]);
    }
    for (int64_t g = 0; g < b->groups && s->padded >= 0 && s->passes; g++)
        pad(s, at(b, b->deltas, s->in, s->in_size, g), below + g * size, 1);
}

/* Number by number ------------------------------------------------------------------------------- */

static const float ROOT = 0.70710678f, DENSITY = 0.39894228f; /* of 1/2, of 1 / (2 pi) */
static const float INNER = 0.79788456f, CUBE = 0.044715f;      /* of GELU by tanh */

/* Where the C library has functions of vectors, GCC takes them. */
#if defined(__x86_64__) && defined(__GLIBC__)
#if __GLIBC_PREREQ(2, 35)
__attribute__((simd("notinbranch"))) extern float tanhf(float);
__attribute__((simd("notinbranch"))) extern float erff(float);
#endif
#if __GLIBC_PREREQ(2, 22)
__attribute__((simd("notinbranch"))) extern float expf(float);
#endif
#endif

static void activate(const step *s, int64_t count, const float *restrict x, float *restrict y) {
    float slope = (float)s->number;
    switch (s->kind) {
    case RELU: /* so written that NaN stays NaN, and the guard sees it */
        for (int64_t i = 0; i < count; i++) y[i] = x[i] < 0 ? 0 : x[i];
        return;
    case LEAKY_RELU:
        for (int64_t i = 0; i < count; i++) y[i] = x[i] < 0 ? x[i] * slope : x[i];
        return;
    case TANH:
        for (int64_t i = 0; i < count; i++) y[i] = tanhf(x[i]);
        return;
    case GELU:
        for (int64_t i = 0; i < count; i++) y[i] = 0.5f * x[i] * (1 + erff(x[i] * ROOT));
        return;
    default:
        for (int64_t i = 0; i < count; i++) {
            float inner = INNER * (x[i] + CUBE * x[i] * x[i] * x[i]);
            y[i] = 0.5f * x[i] * (1 + tanhf(inner));
        }
    }
}

static void activate_back(const step *s, int64_t count, const float *restrict x,
                          const float *restrict y, const float *restrict delta,
                          float *restrict below) {
    float slope = (float)s->number;
    switch (s->kind) {
    case RELU:
        for (int64_t i = 0; i < count; i++) below[i] += x[i] > 0 ? delta[i] : 0;
        return;
    case LEAKY_RELU:
        for (int64_t i = 0; i < count; i++) below[i] += x[i] > 0 ? delta[i] : delta[i] * slope;
        return;
    case TANH:
        for (int64_t i = 0; i < count; i++) below[i] += delta[i] * (1 - y[i] * y[i]);
        return;
    case GELU:
        for (int64_t i = 0; i < count; i++) {
            float share = 0.5f * (1 + erff(x[i] * ROOT));
            below[i] += delta[i] * (share + x[i] * DENSITY * expf(-0.5f * x[i] * x[i]));
        }
        return;
    default:
        for (int64_t i = 0; i < count; i++) {
            float t = tanhf(INNER * (x[i] + CUBE * x[i] * x[i] * x[i]));
            float inner = INNER * (1 + 3 * CUBE * x[i] * x[i]);
            below[i] += delta[i] * (0.5f * (1 + t) + 0.5f * x[i] * (1 - t * t) * inner);
        }
    }
}

/* Units that are kept, of which `bytes` (rows, numbers) tells, grow; the others become 0. */
static void drop(const batch *b, const step *s, int64_t group, const uint8_t *bytes, const vec *from,
                 vec *to, int back) {
    float scale = (float)s->number;
    int64_t left = b->rows - group * LANES;
    int there = left < LANES ? (int)left : LANES;
    bytes += group * LANES * s->in_size;
    for (int64_t j = 0; j < s->in_size; j++) {
        vec factor = {};
        for (int lane = 0; lane < there; lane++)
            factor[lane] = bytes[lane * s->in_size + j] ? scale : 0;
        to[j] = back ? to[j] + from[j] * factor : from[j] * factor;
    }
}

/* Windows ---------------------------------------------------------------------------------------- */

static void largest(const batch *b, const step *s, const vec *x, vec *y, ivec *winners) {
    for (int64_t c = 0; c < s->planes; c++, x += s->height)
        for (int64_t p = 0; p < s->places; p++, y++, winners++) {
            const int64_t *taps = b->tables + s->offsets + p * s->taps;
            vec best = {};
            ivec won = {};
            int any = 0;
            for (int64_t t = 0; t < s->taps; t++) {
                if (taps[t] < 0) continue;
                vec seen = x[taps[t]];
                ivec more = any ? (seen > best) | (seen != seen) : ~(ivec){};
                best = either(more, seen, best);
                won = (more & (int32_t)t) | (~more & won);
                any = 1;
            }
            *y = best;
            *winners = won;
        }
}

static void largest_back(const batch *b, const step *s, const vec *delta, const ivec *winners,
                         vec *below) {
    for (int64_t c = 0; c < s->planes; c++, below += s->height)
        for (int64_t p = 0; p < s->places; p++, delta++, winners++) {
            const int64_t *taps = b->tables + s->offsets + p * s->taps;
            for (int64_t t = 0; t < s->taps; t++)
                if (taps[t] >= 0) below[taps[t]] += either(*winners == (int32_t)t, *delta, (vec){});
        }
}

/* Behind the windows' taps lies by how much each one is divided. */
static void mean_of(const batch *b, const step *s, const vec *x, vec *y, vec *below, int back) {
    const int64_t *parts = b->tables + s->offsets + s->places * s->taps;
    for (int64_t c = 0; c < s->planes; c++, x += s->height, below += s->height)
        for (int64_t p = 0; p < s->places; p++, y++) {
            const int64_t *taps = b->tables + s->offsets + p * s->taps;
            float share = 1.0f / parts[p];
            vec sum = {}, delta = *y * share;
            for (int64_t t = 0; t < s->taps; t++) {
                if (taps[t] < 0) continue;
                if (back) below[taps[t]] += delta;
                else sum += x[taps[t]];
            }
            if (!back) *y = sum * share;
        }
}

/* Norms ------------------------------------------------------------------------------------------ */

/* Of each row by itself: chunks of its numbers. Kept are mean and 1 / deviation of each chunk. */
static void norm(const batch *b, const step *s, const vec *x, vec *y, vec *kept) {
    for (int64_t from = 0; from < s->in_size; from += s->chunk, kept += 2) {
        vec sum = {}, squares = {};
        for (int64_t i = 0; i < s->chunk; i++) sum += x[from + i];
        vec mean = sum / (float)s->chunk;
        for (int64_t i = 0; i < s->chunk; i++) {
            vec apart = x[from + i] - mean;
            squares += apart * apart;
        }
        vec scale = squares / (float)s->chunk + (float)s->number;
        for (int i = 0; i < LANES; i++) scale[i] = 1 / sqrtf(scale[i]);
        kept[0] = mean, kept[1] = scale;
        for (int64_t i = 0; i < s->chunk; i++) {
            int64_t w = (from + i) / s->run % s->depth;
            vec seen = (x[from + i] - mean) * scale;
            if (s->weight >= 0) seen *= b->values[s->weight + w];
            if (s->bias >= 0) seen += b->values[s->bias + w];
            y[from + i] = seen;
        }
    }
}

static void norm_back(const batch *b, const step *s, const vec *x, const vec *delta, vec *below,
                      const vec *kept) {
    for (int64_t from = 0; from < s->in_size; from += s->chunk, kept += 2) {
        vec sum = {}, along = {}, mean = kept[0], scale = kept[1];
        for (int64_t at_ = from; at_ < from + s->chunk; at_ += s->run) {
            int64_t w = at_ / s->run % s->depth;
            float weight = s->weight < 0 ? 1 : b->values[s->weight + w];
            vec by_weight = {}, by_bias = {};
            for (int64_t i = at_; i < at_ + s->run; i++) {
                by_bias += delta[i];
                by_weight += delta[i] * ((x[i] - mean) * scale);
            }
            sum += by_bias * weight;
            along += by_weight * weight;
            if (s->weight >= 0) b->gradients[s->weight + w] += total(by_weight);
            if (s->bias >= 0) b->gradients[s->bias + w] += total(by_bias);
        }
        sum /= (float)s->chunk, along /= (float)s->chunk;
        for (int64_t i = from; i < from + s->chunk; i++) {
            float weight = s->weight < 0 ? 1 : b->values[s->weight + i / s->run % s->depth];
            below[i] += scale * (delta[i] * weight - sum - (x[i] - mean) * scale * along);
        }
    }
}

/* Of each channel over all rows; kept, in the first lanes, are mean and 1 / deviation. */
static void batch_norm(const batch *b, const step *s) {
    float count = (float)(b->rows * s->run);
    float *kept = (float *)(b->kept + s->kept * b->most);
    for (int64_t c = 0; c < s->depth; c++, kept += 2) {
        vec sum = {}, squares = {};
        for (int64_t g = 0; g < b->groups; g++) {
            const vec *x = at(b, b->numbers, s->in, s->in_size, g) + c * s->run;
            vec here = {};
            for (int64_t i = 0; i < s->run; i++) here += x[i];
            sum += here * present(b, g);
        }
        float mean = total(sum) / count;
        for (int64_t g = 0; g < b->groups; g++) {
            const vec *x = at(b, b->numbers, s->in, s->in_size, g) + c * s->run;
            vec here = {};
            for (int64_t i = 0; i < s->run; i++) here += (x[i] - mean) * (x[i] - mean);
            squares += here * present(b, g);
        }
        float variance = total(squares) / count, momentum = (float)s->more;
        float scale = 1 / sqrtf(variance + (float)s->number);
        float *running = b->values + s->mean + c, *spread = b->values + s->variance + c;
        *running += momentum * (mean - *running);
        *spread += momentum * (variance * count / (count - 1) - *spread);
        kept[0] = mean, kept[1] = scale;
        float weight = s->weight < 0 ? 1 : b->values[s->weight + c];
        float bias = s->bias < 0 ? 0 : b->values[s->bias + c];
        for (int64_t g = 0; g < b->groups; g++) {
            const vec *x = at(b, b->numbers, s->in, s->in_size, g) + c * s->run;
            vec *y = at(b, b->numbers, s->out, s->out_size, g) + c * s->run;
            for (int64_t i = 0; i < s->run; i++) y[i] = (x[i] - mean) * scale * weight + bias;
        }
    }
}

static void batch_norm_back(const batch *b, const step *s) {
    float count = (float)(b->rows * s->run);
    const float *kept = (const float *)(b->kept + s->kept * b->most);
    for (int64_t c = 0; c < s->depth; c++, kept += 2) {
        float mean = kept[0], scale = kept[1];
        vec sum = {}, along = {};
        for (int64_t g = 0; g < b->groups; g++) {
            const vec *x = at(b, b->numbers, s->in, s->in_size, g) + c * s->run;
            const vec *delta = at(b, b->deltas, s->out, s->out_size, g) + c * s->run;
            for (int64_t i = 0; i < s->run; i++) {
                sum += delta[i];
                along += delta[i] * ((x[i] - mean) * scale);
            }
        }
        float by_bias = total(sum), by_weight = total(along);
        float weight = s->weight < 0 ? 1 : b->values[s->weight + c];
        if (s->weight >= 0) b->gradients[s->weight + c] = by_weight;
        if (s->bias >= 0) b->gradients[s->bias + c] = by_bias;
        for (int64_t g = 0; g < b->groups && s->passes; g++) {
            vec mask = present(b, g) * (scale * weight);
            const vec *x = at(b, b->numbers, s->in, s->in_size, g) + c * s->run;
            const vec *delta = at(b, b->deltas, s->out, s->out_size, g) + c * s->run;
            vec *below = at(b, b->deltas, s->in, s->in_size, g) + c * s->run;
            for (int64_t i = 0; i < s->run; i++)
                below[i] += mask * (delta[i] - by_bias / count -
                                    (x[i] - mean) * scale * (by_weight / count));
        }
    }
}

/* Steps ------------------------------------------------------------------------------------------ */

static void forward(const batch *b, const step *s, const uint8_t *bytes) {
    if (s->kind == PRODUCT) {
        multiply(b, s);
        return;
    }
    if (s->kind == BATCH_NORM) {
        batch_norm(b, s);
        return;
    }
    for (int64_t g = 0; g < b->groups; g++) {
        const vec *x = at(b, b->numbers, s->in, s->in_size, g);
        vec *y = at(b, b->numbers, s->out, s->out_size, g);
        vec *kept = b->kept + s->kept * b->most;
        switch (s->kind) {
        case MAX_POOL: largest(b, s, x, y, (ivec *)kept + g * s->out_size); break;
        case AVERAGE: mean_of(b, s, x, y, y, 0); break;
        case DROP: drop(b, s, g, bytes, x, y, 0); break;
        case NORM: norm(b, s, x, y, kept + g * 2 * (s->in_size / s->chunk)); break;
        case ADD: {
            const vec *z = at(b, b->numbers, s->other, s->in_size, g);
            for (int64_t i = 0; i < s->in_size; i++) y[i] = x[i] + z[i];
            break;
        }
        default: activate(s, s->in_size * LANES, (const float *)x, (float *)y);
        }
    }
}

static void backward(const batch *b, const step *s, const uint8_t *bytes) {
    if (s->kind == PRODUCT) {
        multiply_back(b, s);
        return;
    }
    if (s->kind == BATCH_NORM) {
        batch_norm_back(b, s);
        return;
    }
    for (int64_t w = 0; w < s->depth && s->kind == NORM; w++) {
        if (s->weight >= 0) b->gradients[s->weight + w] = 0;
        if (s->bias >= 0) b->gradients[s->bias + w] = 0;
    }
    for (int64_t g = 0; g < b->groups; g++) {
        const vec *x = at(b, b->numbers, s->in, s->in_size, g);
        vec *y = at(b, b->numbers, s->out, s->out_size, g);
        vec *delta = at(b, b->deltas, s->out, s->out_size, g);
        vec *below = at(b, b->deltas, s->in, s->in_size, g);
        const vec *kept = b->kept + s->kept * b->most;
        switch (s->kind) {
        case MAX_POOL:
            largest_back(b, s, delta, (const ivec *)kept + g * s->out_size, below);
            break;
        case AVERAGE: mean_of(b, s, x, delta, below, 1); break;
        case DROP: drop(b, s, g, bytes, delta, below, 1); break;
        case NORM:
            norm_back(b, s, x, delta, below, kept + g * 2 * (s->in_size / s->chunk));
            break;
        case ADD: {
            vec *also = at(b, b->deltas, s->other, s->in_size, g);
            for (int64_t i = 0; i < s->in_size; i++) below[i] += delta[i];
            for (int64_t i = 0; i < s->in_size; i++) also[i] += delta[i];
            break;
        }
        default:
            activate_back(s, s->in_size * LANES, (const float *)x, (const float *)y,
                          (const float *)delta, (float *)below);
        }
    }
}

/* Rows to one lane each; lanes without a row hold 0. */
static void load(const batch *b, const float *inputs, const int64_t *positions, int64_t size) {
    memset(b->numbers, 0, sizeof(vec) * b->groups * size);
    for (int64_t i = 0; i < b->rows; i++) {
        const float *from = inputs + positions[i] * size;
        float *to = (float *)(b->numbers + i / LANES * size) + i % LANES;
        for (int64_t j = 0; j < size; j++) to[j * LANES] = from[j];
    }
}

static double loss_of(const batch *b, const step *last, const int64_t *labels,
                      const int64_t *positions) {
    double loss = 0;
    for (int64_t i = 0; i < b->rows; i++) {
        int64_t group = i / LANES;
        const vec *logits = at(b, b->numbers, last->out, last->out_size, group);
        vec *delta = at(b, b->deltas, last->out, last->out_size, group);
        loss += row_loss((int)last->out_size, LANES, (const float *)logits + i % LANES,
                         labels[positions[i]], 1.0f / b->rows, (float *)delta + i % LANES);
    }
    return loss;
}

/* How a step moves: `strength` times the way from the anchor and `push` times the anchor are added
   to each gradient, and the anchor moves the share `follow` of its way to the new values. */
typedef struct {
    float learning_rate, momentum, decay, strength, push, follow;
    adaptive adam;
} rule;

static void move(const rule *by, int64_t count, float *values, float *gradients, float *momenta,
                 float *squares, float *anchor) {
    if (by->strength > 0)
        for (int64_t i = 0; i < count; i++) gradients[i] += by->strength * (values[i] - anchor[i]);
    if (by->push != 0)
        for (int64_t i = 0; i < count; i++) gradients[i] += by->push * anchor[i];
    if (by->adam.kind) {
        adapt(&by->adam, count, gradients, values, momenta, squares);
    } else {
        for (int64_t i = 0; i < count; i++) {
            momenta[i] = by->momentum * momenta[i] + gradients[i] + by->decay * values[i];
            values[i] -= by->learning_rate * momenta[i];
        }
    }
    for (int64_t i = 0; i < count && by->follow > 0; i++)
        anchor[i] += by->follow * (values[i] - anchor[i]);
}

int coterie_lanes(void) { return LANES; }

int coterie_words(void) { return sizeof(step) / sizeof(int64_t); }

/* Passes once over the rows of batches of these sizes, in the order given; returns their summed
   loss. `sizes` are those of the values, deltas and so on, in vectors of one group, of `most` groups;
   they follow each other in `space`, which begins at a multiple of a vector's size. `bytes` say of
   the units of all dropout layers, batch by batch, whether they are kept. After `repeats` steps on a
   batch, of which the first gives the loss, the anchor moves. `arrays` are beginning and count of
   each array that is trained, and whether it stands still. With `adam`, 1 or 2 for AdamW, the steps
   are its, after `taken` of them; behind the momenta lie as many second ones. */
double coterie_play(int count, const step *steps, const int64_t *tables, const int64_t *sizes,
                    int64_t most, char *space, const float *inputs, const int64_t *labels,
                    const int64_t *order, int batches, const int64_t *batch_sizes,
                    const uint8_t *bytes, int64_t floats, float *values, float *gradients,
                    float *momenta, float *anchor, int arrays, const int64_t *array,
                    float learning_rate, float momentum, float decay, float strength, int repeats,
                    float follow, float push, int adam, int64_t taken) {
    unsigned before = flush_to_zero();
    double all = 0;
    batch b = {steps, count, tables, values, gradients, .most = most};
    b.numbers = (vec *)space;
    b.deltas = b.numbers + sizes[0] * most;
    b.padded = b.deltas + sizes[0] * most;
    b.kept = b.padded + sizes[1] * most;
    b.sums = b.kept + sizes[2] * most;
    for (int64_t taken_here = 0, at_ = 0; at_ < batches; at_ = taken_here / repeats) {
        b.rows = batch_sizes[at_];
        b.groups = (b.rows + LANES - 1) / LANES;
        load(&b, inputs, order, steps->in_size);
        for (int i = 0; i < count; i++) {
            forward(&b, steps + i, bytes);
            if (steps[i].kind == DROP) bytes += b.rows * steps[i].in_size;
        }
        memset(b.deltas, 0, sizeof(vec) * sizes[0] * most);
        double loss = loss_of(&b, steps + count - 1, labels, order);
        if (taken_here % repeats == 0) all += loss;
        const uint8_t *back = bytes;
        for (int i = count - 1; i >= 0; i--) {
            if (steps[i].kind == DROP) back -= b.rows * steps[i].in_size;
            backward(&b, steps + i, back);
        }
        int is_last = taken_here % repeats == repeats - 1;
        rule by = {learning_rate, momentum, decay, strength, push, is_last ? follow : 0,
                   in_step(adam, taken + taken_here + 1, learning_rate, decay)};
        for (int i = 0; i < arrays; i++) {
            int64_t from = array[3 * i];
            if (!array[3 * i + 2])
                move(&by, array[3 * i + 1], values + from, gradients + from, momenta + from,
                     momenta + floats + from, anchor + from);
        }
        taken_here++;
        if (is_last) order += b.rows;
    }
    restore(before);
    return all;
}

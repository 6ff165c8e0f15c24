/* Steps of networks of convolutions, 2x2 max-pooling and dense layers: one call is an epoch of a
   client.

   A vector holds one number of each of 16 samples (8 where the processor's vectors are short), or of
   16 tiles of their images where a batch has too few samples, so that every sum is taken lane by
   lane in one order, wherever in an image it is: equal patches give equal numbers, and of equal
   numbers max-pooling takes the first, as torch does. Dense layers are convolutions as large as what
   goes into them. */

#include "steps.h"
#ifdef __SSE3__
#include <pmmintrin.h>
#endif
#ifdef __AVX512F__
#include <immintrin.h>
enum { MOST_CHANNELS = 16, MOST_TAPS = 5 };
#else
enum { MOST_CHANNELS = 12, MOST_TAPS = 2 };
#endif
enum { MOST_LAYERS = 64 };

#define FOR_SIZE(size, call) \
    switch (size) { \
    case 4: call(4); break; \
    case 8: call(8); break; \
    case 10: call(10); break; \
    case 12: call(12); break; \
    default: call(MOST_CHANNELS); \
    }

/* A lane has a tile of a sample's image, or all of it: what makes some rows and columns of the
   layer's outputs. Channels come in blocks: a tile is [block][row][column][channel of the block],
   each a vec. */
typedef struct {
    int32_t in_blocks, in_block, height, width; /* of what goes into a tile, with the padding */
    int32_t pad, tall, wide, pool;              /* the filters' size; pool is 1 or 2 */
    int32_t down, across;                       /* an image's tiles; those of several: pad is 0 */
    int32_t image_height, image_width, margin;  /* with the padding, and that */
    int32_t out_blocks, out_block, outputs;     /* outputs: without what fills the last block */
} layer;

/* A layer's numbers. Tiles of all groups of LANES follow each other; the weights are
   [out block][in block][row][column][in channel][out channel]. */
typedef struct {
    float *images, *image_deltas; /* of what goes in, with the padding, where it comes or goes by
                                     tiles: [sample][block][row][column][channel] */
    vec *in, *in_delta;  /* the second without padding */
    vec *out, *picked;   /* where tiles come next; the second are deltas of one group */
    vec *out_delta;      /* before pooling */
    vec *tile_delta;     /* of some channels */
    ivec *winner;        /* which of the four places in a window was the largest */
    float *weights, *biases, *by_weights, *by_biases;
    float *turned;       /* [in block][out block][row][column, backwards][out][in channel] */
} room;

static int64_t rows_of(const layer *l) { return (l->height - l->tall + 1) / l->pool; }
static int64_t columns_of(const layer *l) { return (l->width - l->wide + 1) / l->pool; }
static int64_t in_size(const layer *l) {
    return (int64_t)l->in_blocks * l->in_block * l->height * l->width;
}
static int64_t inner_block(const layer *l) {
    return (int64_t)(l->height - 2 * l->pad) * (l->width - 2 * l->pad) * l->in_block;
}
static int64_t out_size(const layer *l) {
    return l->out_blocks * l->out_block * rows_of(l) * columns_of(l);
}
static int64_t delta_size(const layer *l) { return out_size(l) * l->pool * l->pool; }
static int64_t weights_of(const layer *l) {
    return (int64_t)l->in_blocks * l->in_block * l->out_blocks * l->out_block * l->tall * l->wide;
}

static int64_t tiles_of(const layer *l) { return (int64_t)l->down * l->across; }
static int groups_of(const layer *l, int samples) {
    return (int)((samples * tiles_of(l) + LANES - 1) / LANES);
}
static int64_t image_size(const layer *l) {
    return (int64_t)l->in_blocks * l->in_block * l->image_height * l->image_width;
}

/* Whether what one layer makes goes lane by lane into the next. */
static int is_direct(const layer *l, const layer *next) {
    return tiles_of(l) == 1 && tiles_of(next) == 1;
}

/* Blocks of channels in images, and a tile's part of them: from `inset` on, `scale` pixels for each
   of the layer's outputs above it and before it. */
typedef struct {
    float *images;
    int64_t blocks, channels, height, width; /* the last two of an image */
    int64_t tile_height, tile_width, inset, scale;
} patches;

enum { TAKE, PUT, ADD };

#ifdef __AVX512F__
INLINE vec any_place(const float *from) {
    vec found;
    memcpy(&found, from, sizeof found);
    return found;
}

/* Sixteen vectors of sixteen numbers, rows to columns. */
INLINE void transpose(vec *v) {
    __m512 a[16], b[16];
    UNROLL for (int i = 0; i < 16; i += 2) { /* pairs of numbers */
        a[i] = _mm512_unpacklo_ps((__m512)v[i], (__m512)v[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps((__m512)v[i], (__m512)v[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4) /* fours */
        UNROLL for (int j = 0; j < 2; j++) {
            __m512d one = (__m512d)a[i + j], two = (__m512d)a[i + j + 2];
            b[i + 2 * j] = (__m512)_mm512_unpacklo_pd(one, two);
            b[i + 2 * j + 1] = (__m512)_mm512_unpackhi_pd(one, two);
        }
    UNROLL for (int i = 0; i < 16; i += 8) /* eights */
        UNROLL for (int j = 0; j < 4; j++) {
            a[i + j] = _mm512_shuffle_f32x4(b[i + j], b[i + j + 4], 0x88);
            a[i + j + 4] = _mm512_shuffle_f32x4(b[i + j], b[i + j + 4], 0xdd);
        }
    UNROLL for (int j = 0; j < 8; j++) {
        v[j] = (vec)_mm512_shuffle_f32x4(a[j], a[j + 8], 0x88);
        v[j + 8] = (vec)_mm512_shuffle_f32x4(a[j], a[j + 8], 0xdd);
    }
}
#endif

/* Tiles of a group of lanes from images, into them, or onto what is there. */
INLINE void carry(const int HOW, const layer *l, int samples, int group, vec *lanes, patches p) {
    int64_t run = p.tile_width * p.channels, row = p.width * p.channels;
    int64_t left = samples * tiles_of(l) - (int64_t)group * LANES;
    int there = left < LANES ? (int)left : LANES;
    float *images[LANES];
    for (int lane = 0; lane < there; lane++) {
        int64_t tile = (int64_t)group * LANES + lane, place = tile % tiles_of(l);
        int64_t top = place / l->across * rows_of(l) * p.scale + p.inset;
        int64_t from = place % l->across * columns_of(l) * p.scale + p.inset;
        images[lane] = p.images + (tile / tiles_of(l) * p.blocks * p.height + top) * row +
                       from * p.channels;
    }
    for (int64_t b = 0; b < p.blocks; b++)
        for (int64_t y = 0; y < p.tile_height; y++, lanes += run) {
            int64_t from = (b * p.height + y) * row, done = 0;
            if (HOW == TAKE && there < LANES) memset(lanes, 0, sizeof(vec) * run);
#ifdef __AVX512F__
            for (; there == LANES && done + LANES <= run; done += LANES) {
                vec part[LANES], other;
                UNROLL for (int k = 0; k < LANES; k++)
                    part[k] = HOW == TAKE ? any_place(images[k] + from + done) : lanes[done + k];
                transpose(part);
                UNROLL for (int k = 0; k < LANES; k++) {
                    float *line = images[k] + from + done;
                    if (HOW == TAKE) {
                        lanes[done + k] = part[k];
                        continue;
                    }
                    other = HOW == ADD ? any_place(line) + part[k] : part[k];
                    memcpy(line, &other, sizeof other);
                }
            }
#endif
            for (int lane = 0; lane < there; lane++) {
                float *line = images[lane] + from, *to = (float *)lanes + lane;
                for (int64_t i = done; i < run; i++) {
                    if (HOW == TAKE) to[i * LANES] = line[i];
                    else if (HOW == PUT) line[i] = to[i * LANES];
                    else line[i] += to[i * LANES];
                }
            }
        }
}

/* What goes into a layer, as images and within the padding of each tile. */
static patches inputs_of(const layer *l, float *images, int pad) {
    return (patches){images, l->in_blocks, l->in_block, l->image_height, l->image_width,
                     l->height - 2 * pad, l->width - 2 * pad, pad, l->pool};
}

/* What a layer makes, where the next one has it as images. */
static patches outputs_of(const layer *l, const layer *next, float *images) {
    return (patches){images, next->in_blocks, next->in_block, next->image_height,
                     next->image_width, rows_of(l), columns_of(l), next->margin, 1};
}

INLINE vec either(ivec mask, vec yes, vec no) {
    return (vec)((mask & (ivec)yes) | (~mask & (ivec)no));
}

/* sums[o] += in[i] * weights[i][o], over all i; for two places at once if PLACES is 2 */
INLINE void gather(const int OUT, const int PLACES, vec *sums, const vec *in, int64_t apart,
                   const float *weights, int64_t count) {
    for (int64_t i = 0; i < count; i++, weights += OUT) {
        vec one = in[i], two = PLACES == 2 ? in[i + apart] : one;
        UNROLL for (int o = 0; o < OUT; o++) {
            sums[o] += one * weights[o];
            if (PLACES == 2) sums[OUT + o] += two * weights[o];
        }
    }
}

/* One block of output channels of a group: convolution, pooling, ReLU. */
INLINE void forward_block(const int OUT, const int POOL, const layer *l, const room *r, int block,
                          const vec *in, ivec *winner, vec *out, int64_t out_width, int rectify) {
    int64_t run = (int64_t)l->wide * l->in_block, rows = rows_of(l), columns = columns_of(l);
    const float *biases = r->biases + block * OUT;
    for (int64_t y = 0; y < rows; y++)
        for (int64_t x = 0; x < columns; x++) {
            vec best[MOST_CHANNELS];
            ivec won[MOST_CHANNELS];
            for (int down = 0; down < POOL; down++) {
                const float *weights = r->weights + block * (weights_of(l) / l->out_blocks);
                vec sums[2 * MOST_CHANNELS];
                UNROLL for (int o = 0; o < 2 * OUT; o++) sums[o] = (vec){};
                for (int b = 0; b < l->in_blocks; b++)
                    for (int k = 0; k < l->tall; k++, weights += run * OUT) {
                        int64_t row = (int64_t)b * l->height + y * POOL + down + k;
                        gather(OUT, POOL, sums, in + (row * l->width + x * POOL) * l->in_block,
                               l->in_block, weights, run);
                    }
                UNROLL for (int o = 0; o < OUT; o++) {
                    /* last, as torch does: equal sums stay equal */
                    sums[o] += biases[o];
                    sums[OUT + o] += biases[o];
                    if (down == 0) {
                        best[o] = sums[o];
                        won[o] = (ivec){};
                    } else {
                        ivec more = sums[o] > best[o];
                        won[o] = (more & 2) | (~more & won[o]);
                        best[o] = either(more, sums[o], best[o]);
                    }
                    if (POOL == 1) continue;
                    ivec more = sums[OUT + o] > best[o];
                    won[o] = (more & (2 * down + 1)) | (~more & won[o]);
                    best[o] = either(more, sums[OUT + o], best[o]);
                }
            }
            UNROLL for (int o = 0; o < OUT; o++) {
                /* so written that NaN stays NaN, and the guard sees it */
                out[(y * out_width + x) * OUT + o] =
                    rectify ? either(best[o] < 0, (vec){}, best[o]) : best[o];
                if (POOL == 2) winner[(y * columns + x) * OUT + o] = won[o];
            }
        }
}

/* Fills what goes into the next layer, within its padding, or its images; of the last layer, the
   logits. */
static void forward(const layer *l, const room *r, const layer *next, vec *above, int group) {
    int64_t columns = columns_of(l), plane = rows_of(l) * columns * l->out_block;
    int64_t out_width = columns, out_plane = plane, inset = 0;
    vec *out = above + group * out_size(l);
    if (next && !is_direct(l, next)) {
        out = r->out + group * out_size(l);
    } else if (next) {
        out = above + group * in_size(next);
        out_width = next->width;
        out_plane = (int64_t)next->height * next->width * l->out_block;
        inset = ((int64_t)next->pad * next->width + next->pad) * l->out_block;
    }
    for (int block = 0; block < l->out_blocks; block++) {
        const vec *in = r->in + group * in_size(l);
        ivec *winner = r->winner + group * out_size(l) + block * plane;
        vec *to = out + block * out_plane + inset;
#define CALL(OUT) \
    if (l->pool == 2) forward_block(OUT, 2, l, r, block, in, winner, to, out_width, next != 0); \
    else forward_block(OUT, 1, l, r, block, in, winner, to, out_width, next != 0)
        FOR_SIZE(l->out_block, CALL)
#undef CALL
    }
}

/* out_delta of a layer from in_delta of the next: back through ReLU and pooling. */
static void spread(const layer *l, const room *r, const layer *next, const room *above, int samples,
                   int group) {
    int64_t rows = rows_of(l), columns = columns_of(l), wide = columns * l->pool;
    const vec *delta = above->in_delta + group * out_size(l);
    const vec *value = above->in + group * in_size(next);
    int64_t pad = next->pad, value_height = next->height, value_width = next->width;
    if (!is_direct(l, next)) {
        carry(TAKE, l, samples, group, r->picked, outputs_of(l, next, above->image_deltas));
        delta = r->picked;
        value = r->out + group * out_size(l);
        pad = 0, value_height = rows, value_width = columns;
    }
    const ivec *winner = r->winner + group * out_size(l);
    vec *to = r->out_delta + group * delta_size(l);
    for (int64_t b = 0; b < l->out_blocks; b++)
        for (int64_t y = 0; y < rows; y++)
            for (int64_t x = 0; x < columns; x++) {
                int64_t at = ((b * rows + y) * columns + x) * l->out_block;
                int64_t row = b * value_height + pad + y;
                const vec *seen = value + (row * value_width + pad + x) * l->out_block;
                for (int w = 0; w < l->pool * l->pool; w++) {
                    int64_t line = (b * rows + y) * l->pool + w / 2;
                    vec *place = to + (line * wide + x * l->pool + w % 2) * l->out_block;
                    for (int o = 0; o < l->out_block; o++) {
                        vec slope = either(seen[o] > 0, delta[at + o], (vec){});
                        place[o] = l->pool == 1 ? slope
                                                : either(winner[at + o] == w, slope, (vec){});
                    }
                }
            }
}

static void turn(const layer *l, const room *r) {
    const float *from = r->weights;
    for (int ob = 0; ob < l->out_blocks; ob++)
        for (int ib = 0; ib < l->in_blocks; ib++)
            for (int k = 0; k < l->tall; k++)
                for (int j = l->wide - 1; j >= 0; j--) {
                    int64_t line = (int64_t)(ib * l->out_blocks + ob) * l->tall + k;
                    float *to = r->turned + (line * l->wide + j) * l->out_block * l->in_block;
                    for (int i = 0; i < l->in_block; i++, from += l->out_block)
                        for (int o = 0; o < l->out_block; o++) to[o * l->in_block + i] = from[o];
                }
}

/* in_delta of one block of input channels from out_delta, of one group or two. */
INLINE void backward_block(const int IN, const int GROUPS, const layer *l, const float *turned,
                           const vec *delta, int64_t delta_apart, vec *below,
                           int64_t below_apart) {
    int64_t rows = rows_of(l) * l->pool, columns = columns_of(l) * l->pool;
    int height = l->height - 2 * l->pad, width = l->width - 2 * l->pad;
    int64_t run = (int64_t)l->wide * l->out_block;
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++, below += IN) {
            int64_t first = x + l->pad - l->wide + 1, last = x + l->pad;
            int64_t skipped = first < 0 ? -first : 0;
            first += skipped;
            if (last >= columns) last = columns - 1;
            int64_t count = (last - first + 1) * l->out_block;
            vec sums[2 * MOST_CHANNELS];
            UNROLL for (int c = 0; c < 2 * IN; c++) sums[c] = (vec){};
            for (int b = 0; b < l->out_blocks; b++)
                for (int k = 0; k < l->tall; k++) {
                    int64_t row = y + l->pad - k;
                    if (row < 0 || row >= rows) continue;
                    const vec *from = delta + ((b * rows + row) * columns + first) * l->out_block;
                    const float *weights =
                        turned + ((b * l->tall + k) * run + skipped * l->out_block) * IN;
                    gather(IN, GROUPS, sums, from, delta_apart, weights, count);
                }
            UNROLL for (int c = 0; c < IN; c++) {
                below[c] = sums[c];
                if (GROUPS == 2) below[below_apart + c] = sums[IN + c];
            }
        }
}

static void backward(const layer *l, const room *r, int groups) {
    int64_t delta_apart = delta_size(l), below_apart = inner_block(l) * l->in_blocks;
    for (int g = 0; g < groups; g += 2)
        for (int block = 0; block < l->in_blocks; block++) {
            const float *turned = r->turned + block * (weights_of(l) / l->in_blocks);
            const vec *delta = r->out_delta + g * delta_apart;
            vec *below = r->in_delta + g * below_apart + block * inner_block(l);
#define CALL(IN) \
    if (g + 1 < groups) backward_block(IN, 2, l, turned, delta, delta_apart, below, below_apart); \
    else backward_block(IN, 1, l, turned, delta, 0, below, 0)
            FOR_SIZE(l->in_block, CALL)
#undef CALL
        }
}

typedef float quad __attribute__((vector_size(16)));

INLINE quad folded(vec v) {
    quad parts[LANES / 4], sum;
    memcpy(parts, &v, sizeof v);
    sum = parts[0];
    for (int i = 1; i < LANES / 4; i++) sum += parts[i];
    return sum;
}

INLINE float total(vec v) {
    quad sum = folded(v);
    return sum[0] + sum[1] + sum[2] + sum[3];
}

/* The totals of four vectors. */
INLINE quad totals(const vec *v) {
    quad a = folded(v[0]), b = folded(v[1]), c = folded(v[2]), d = folded(v[3]);
#ifdef __SSE3__
    return (quad)_mm_hadd_ps(_mm_hadd_ps((__m128)a, (__m128)b),
                             _mm_hadd_ps((__m128)c, (__m128)d));
#else
    quad first = {a[0], b[0], c[0], d[0]}, second = {a[1], b[1], c[1], d[1]};
    quad third = {a[2], b[2], c[2], d[2]}, fourth = {a[3], b[3], c[3], d[3]};
    return first + second + third + fourth;
#endif
}

/* Gradients by weights of TAPS inputs, `step` from each other, and OUT outputs, whose deltas are
   [group][place][out]: over all places. */
INLINE void tile(const int OUT, const int TAPS, const layer *l, int64_t step, const vec *in,
                 const vec *delta, int groups, float *by_weights) {
    int64_t rows = rows_of(l) * l->pool, columns = columns_of(l) * l->pool;
    vec sums[25];
    UNROLL for (int i = 0; i < TAPS * OUT; i++) sums[i] = (vec){};
    for (int g = 0; g < groups; g++)
        for (int64_t y = 0; y < rows; y++) {
            const vec *value = in + g * in_size(l) + y * l->width * l->in_block;
            for (int64_t x = 0; x < columns; x++, value += l->in_block, delta += OUT)
                UNROLL for (int o = 0; o < OUT; o++) {
                    UNROLL for (int t = 0; t < TAPS; t++)
                        sums[t * OUT + o] += value[t * step] * delta[o];
                }
        }
    UNROLL for (int t = 0; t < TAPS; t++) {
        quad four = totals(sums + t * OUT);
        float *to = by_weights + t * step * l->out_block;
        memcpy(to, &four, sizeof four);
        if (OUT == 5) to[4] = total(sums[t * OUT + 4]);
    }
}

static void any_tile(int out, int taps, const layer *l, int64_t step, const vec *in,
                     const vec *delta, int groups, float *by_weights) {
#define CALL(OUT, TAPS) tile(OUT, TAPS, l, step, in, delta, groups, by_weights)
#define OF_TAPS(OUT) \
    switch (taps) { \
    case 1: CALL(OUT, 1); break; \
    case 2: CALL(OUT, 2); break; \
    case 3: CALL(OUT, (MOST_TAPS < 3 ? 1 : 3)); break; \
    case 4: CALL(OUT, (MOST_TAPS < 4 ? 1 : 4)); break; \
    default: CALL(OUT, (MOST_TAPS < 5 ? 1 : 5)); \
    }
    if (out == 4) {
        OF_TAPS(4)
    } else {
        OF_TAPS(5)
    }
#undef OF_TAPS
#undef CALL
}

/* by_weights of TAPS inputs from `in` on, where there is one place: a product over samples.
   A sample's deltas of the block's channels are PARTS vectors. */
INLINE void dense_tile(const int TAPS, const int PARTS, const layer *l, const vec *in,
                       const vec *deltas, int samples, float *by_weights) {
    vec sums[16];
    UNROLL for (int i = 0; i < TAPS * PARTS; i++) sums[i] = (vec){};
    for (int i = 0; i < samples; i++, deltas += PARTS) {
        const float *value = (const float *)(in + i / LANES * in_size(l)) + i % LANES;
        UNROLL for (int t = 0; t < TAPS; t++) {
            UNROLL for (int p = 0; p < PARTS; p++)
                sums[t * PARTS + p] += value[t * LANES] * deltas[p];
        }
    }
    for (int t = 0; t < TAPS; t++, by_weights += l->out_block)
        memcpy(by_weights, sums + t * PARTS, sizeof(float) * l->out_block);
}

static void by_parameters_of_dense(const layer *l, const room *r, int groups) {
    int64_t taps = in_size(l);
    int samples = groups * LANES, parts = (l->out_block + LANES - 1) / LANES;
    for (int block = 0; block < l->out_blocks; block++) {
        float *deltas = (float *)r->tile_delta;
        float *by_biases = r->by_biases + block * l->out_block;
        memset(by_biases, 0, sizeof(float) * l->out_block);
        memset(deltas, 0, sizeof(vec) * samples * parts);
        for (int i = 0; i < samples; i++, deltas += parts * LANES) {
            const vec *from = r->out_delta + i / LANES * delta_size(l) + block * l->out_block;
            for (int o = 0; o < l->out_block; o++) {
                deltas[o] = ((const float *)(from + o))[i % LANES];
                by_biases[o] += deltas[o];
            }
        }
        float *to = r->by_weights + block * taps * l->out_block;
        for (int64_t tap = 0; tap < taps;) {
            int count = taps - tap >= 8 ? 8 : 1;
#define CALL(TAPS, PARTS) \
    dense_tile(TAPS, PARTS, l, r->in + tap, r->tile_delta, samples, to + tap * l->out_block)
            if (parts == 1 && count == 8) CALL(8, 1);
            else if (parts == 1) CALL(1, 1);
            else if (count == 8) CALL(8, 2);
            else CALL(1, 2);
#undef CALL
            tap += count;
        }
    }
}

static void by_parameters(const layer *l, const room *r, int groups) {
    if (delta_size(l) == l->out_blocks * l->out_block) {
        by_parameters_of_dense(l, r, groups);
        return;
    }
    int64_t rows = rows_of(l) * l->pool, columns = columns_of(l) * l->pool;
    int64_t run = (int64_t)l->wide * l->in_block, plane = rows * columns * l->out_block;
    /* Taps are neighbours in a row, whose inputs overlap from place to place; else channels. */
    int64_t step = l->wide > 1 ? l->in_block : 1;
    int count = l->wide > 1 ? l->wide : l->in_block;
    int parts = (count + MOST_TAPS - 1) / MOST_TAPS;
    int outs = l->out_block % 4 ? 5 : 4; /* blocks are multiples of one of the two */
    for (int o = 0; o < l->out_blocks * l->out_block; o += outs) {
        int block = o / l->out_block, within = o % l->out_block;
        /* side by side: a block's width apart they would share a few sets of the first cache */
        vec *delta = r->tile_delta;
        for (int g = 0; g < groups; g++)
            for (int64_t place = 0; place < rows * columns; place++, delta += outs)
                memcpy(delta,
                       r->out_delta + g * delta_size(l) + block * plane + place * l->out_block +
                           within,
                       sizeof(vec) * outs);
        for (int b = 0; b < l->in_blocks; b++)
            for (int k = 0; k < l->tall; k++)
                for (int c = 0; c < step; c++)
                    for (int p = 0; p < parts; p++) {
                        int from = count * p / parts, taps = count * (p + 1) / parts - from;
                        int64_t row = (int64_t)b * l->height + k, tap = from * step + c;
                        int64_t line = (int64_t)(block * l->in_blocks + b) * l->tall + k;
                        any_tile(outs, taps, l, step, r->in + row * l->width * l->in_block + tap,
                                 r->tile_delta, groups,
                                 r->by_weights + (line * run + tap) * l->out_block + within);
                    }
        for (int i = 0; i < outs; i++) {
            vec sum = {};
            for (int64_t place = 0; place < groups * rows * columns; place++)
                sum += r->tile_delta[place * outs + i];
            r->by_biases[o + i] = total(sum);
        }
    }
}

/* A group's samples, channel by channel, to one lane each; lanes without a sample hold 0. */
static void load(const layer *l, const float *inputs, const int64_t *batch, int size, vec *to) {
    int channels = l->in_block, height = l->height - 2 * l->pad, width = l->width - 2 * l->pad;
    float *flat = (float *)to;
    for (int i = 0; i < LANES; i++) {
        const float *from = i < size ? inputs + batch[i] * channels * height * width : 0;
        for (int c = 0; c < channels; c++)
            for (int y = 0; y < height; y++)
                for (int x = 0; x < width; x++) {
                    int64_t place = (int64_t)(y + l->pad) * l->width + l->pad + x;
                    flat[(place * channels + c) * LANES + i] = from ? *from++ : 0;
                }
    }
}

/* Samples as images, within the padding. */
static void load_images(const layer *l, const float *inputs, const int64_t *batch, int samples,
                        float *to) {
    int64_t channels = l->in_block, width = l->image_width;
    int64_t inner_height = l->image_height - 2 * l->margin, inner_width = width - 2 * l->margin;
    for (int i = 0; i < samples; i++, to += image_size(l)) {
        const float *from = inputs + batch[i] * channels * inner_height * inner_width;
        for (int64_t c = 0; c < channels; c++)
            for (int64_t y = 0; y < inner_height; y++)
                for (int64_t x = 0; x < inner_width; x++)
                    to[((y + l->margin) * width + l->margin + x) * channels + c] = *from++;
    }
}

/* One layer of a batch, for a group of its tiles. */
static void pass(int layers, const layer *l, const room *r, int i, const float *inputs,
                 const int64_t *batch, int samples, int g) {
    const layer *own = l + i, *next = i + 1 < layers ? own + 1 : 0;
    if (i == 0 && tiles_of(own) == 1)
        load(own, inputs, batch + g * LANES, samples - g * LANES, r->in + g * in_size(own));
    if (i == 0 && tiles_of(own) > 1 && g == 0) load_images(own, inputs, batch, samples, r->images);
    if (i == 0 ? tiles_of(own) > 1 : !is_direct(own - 1, own))
        carry(TAKE, own, samples, g, r[i].in + g * in_size(own), inputs_of(own, r[i].images, 0));
    forward(own, r + i, next, r[i + 1].in, g);
    if (next && !is_direct(own, next))
        carry(PUT, own, samples, g, r[i].out + g * out_size(own),
              outputs_of(own, next, r[i + 1].images));
}

static double loss_of(const layer *l, const vec *logits, const int64_t *labels,
                      const int64_t *batch, int size, float share, vec *delta) {
    double loss = 0;
    memset(delta, 0, sizeof(vec) * out_size(l));
    for (int i = 0; i < (size < LANES ? size : LANES); i++)
        loss += row_loss(l->outputs, LANES, (const float *)logits + i, labels[batch[i]], share,
                         (float *)delta + i);
    return loss;
}

static char *take(char *at, int64_t vectors, void *pointer) {
    memcpy(pointer, &at, sizeof at);
    return at + sizeof(vec) * vectors;
}

/* Lays the rooms for so many samples out in `space`, the logits last; returns the end. */
static char *furnish(int layers, const layer *l, int samples, char *space, float *values,
                     float *gradients, room *r) {
    for (int i = 0; i < layers; i++, l++, r++) {
        int64_t weights = weights_of(l), biases = l->out_blocks * l->out_block;
        int64_t groups = groups_of(l, samples), numbers = samples * image_size(l);
        int comes = i ? !is_direct(l - 1, l) : tiles_of(l) > 1;
        int goes = i + 1 < layers && !is_direct(l, l + 1);
        int64_t images = comes ? (numbers + LANES - 1) / LANES : 0;
        space = take(space, images, &r->images);
        space = take(space, i ? images : 0, &r->image_deltas);
        space = take(space, goes ? groups * out_size(l) : 0, &r->out);
        space = take(space, goes ? out_size(l) : 0, &r->picked);
        space = take(space, groups * in_size(l), &r->in);
        space = take(space, groups * in_size(l), &r->in_delta);
        space = take(space, groups * delta_size(l), &r->out_delta);
        space = take(space, groups * (delta_size(l) / l->out_blocks + 2 * LANES), &r->tile_delta);
        space = take(space, groups * out_size(l), &r->winner);
        space = take(space, (weights + LANES - 1) / LANES, &r->turned);
        r->weights = values;
        r->by_weights = gradients;
        r->biases = values + weights;
        r->by_biases = gradients + weights;
        values += weights + biases;
        gradients += weights + biases;
    }
    return take(space, groups_of(l - 1, samples) * out_size(l - 1), &r->in);
}

/* A step: `strength` times the way from the anchor and `push` times the anchor are added to each
   gradient, and the anchor moves the share `follow` of its way to the new values. */
static void move(int64_t parameters, float *values, float *gradients, float *momenta,
                 float learning_rate, float momentum, float decay, float *anchor, float strength,
                 float push, float follow, const adaptive *adam, float *squares) {
    if (strength > 0)
        for (int64_t i = 0; i < parameters; i++)
            gradients[i] += strength * (values[i] - anchor[i]);
    if (push != 0)
        for (int64_t i = 0; i < parameters; i++) gradients[i] += push * anchor[i];
    if (adam->kind) {
        adapt(adam, parameters, gradients, values, momenta, squares);
    } else {
        for (int64_t i = 0; i < parameters; i++) {
            momenta[i] = momentum * momenta[i] + gradients[i] + decay * values[i];
            values[i] -= learning_rate * momenta[i];
        }
    }
    if (follow > 0)
        for (int64_t i = 0; i < parameters; i++) anchor[i] += follow * (values[i] - anchor[i]);
}

int coterie_lanes(void) { return LANES; }

int coterie_most_channels(void) { return MOST_CHANNELS; }

/* Bytes of the space below. */
int64_t coterie_space(int layers, const layer *l, int most) {
    room rooms[MOST_LAYERS + 1];
    return furnish(layers, l, most, 0, 0, 0, rooms) - (char *)0;
}

/* The logits (rows, outputs) of the rows whose positions are given; of layers without tiles. */
void coterie_logits(int layers, const layer *l, const float *inputs, const int64_t *positions,
                    int64_t rows, float *values, char *space, float *logits) {
    room r[MOST_LAYERS + 1];
    const layer *last = l + layers - 1;
    furnish(layers, l, LANES, space, values, values, r);
    for (int64_t at = 0; at < rows; at += LANES) {
        int size = rows - at < LANES ? (int)(rows - at) : LANES;
        for (int i = 0; i < layers; i++) pass(layers, l, r, i, inputs, positions + at, size, 0);
        const float *found = (const float *)r[layers].in;
        for (int i = 0; i < size; i++)
            for (int j = 0; j < last->outputs; j++) *logits++ = found[j * LANES + i];
    }
}

/* Passes once over `rows` rows in the order given; returns their summed loss. `space` is 0 at first
   and begins at a multiple of a vector's size. After `repeats` steps on a batch, of which the first
   gives the loss, the anchor moves. `frozen` says of each layer's weights and biases whether they
   stand still. With `adam`, 1 or 2 for AdamW, the steps are its, after `taken` of them; behind the
   momenta lie as many second ones. */
double coterie_convolve(int layers, const layer *l, const float *inputs, const int64_t *labels,
                        const int64_t *order, int64_t rows, int most, int64_t parameters,
                        float *values, float *gradients, float *momenta, char *space,
                        float learning_rate, float momentum, float decay, float *anchor,
                        float strength, int repeats, float follow, float push,
                        const int32_t *frozen, int adam, int64_t taken) {
    room r[MOST_LAYERS + 1];
    double total_loss = 0;
    unsigned before = flush_to_zero();
    const layer *last = l + layers - 1;
    int tiled = 0;
    for (int i = 0; i < layers; i++) tiled |= tiles_of(l + i) > 1;
    furnish(layers, l, most, space, values, gradients, r);
    for (int64_t step = 0, at = 0; at < rows; at = ++step / repeats * most) {
        int size = rows - at < most ? (int)(rows - at) : most, groups = groups_of(last, size);
        const int64_t *batch = order + at;
        double loss = 0;
        for (int i = 0; tiled && i < layers; i++)
            for (int g = 0; g < groups_of(l + i, size); g++)
                pass(layers, l, r, i, inputs, batch, size, g);
        for (int g = 0; g < groups; g++) {
            /* a group after the other: its images stay near */
            for (int i = 0; !tiled && i < layers; i++)
                pass(layers, l, r, i, inputs, batch, size, g);
            loss += loss_of(last, r[layers].in + g * out_size(last), labels, batch + g * LANES,
                            size - g * LANES, 1.0f / size,
                            r[layers - 1].out_delta + g * out_size(last));
        }
        if (step % repeats == 0) total_loss += loss;
        for (int i = layers - 1; i >= 0; i--) {
            const layer *own = l + i;
            int mine = groups_of(own, size);
            for (int g = 0; g < mine && i + 1 < layers; g++)
                spread(own, r + i, own + 1, r + i + 1, size, g);
            by_parameters(own, r + i, mine);
            if (i == 0) break;
            turn(own, r + i);
            backward(own, r + i, mine);
            if (is_direct(own - 1, own)) continue;
            memset(r[i].image_deltas, 0, sizeof(float) * size * image_size(own));
            for (int g = 0; g < mine; g++)
                carry(ADD, own, size, g, r[i].in_delta + g * inner_block(own) * own->in_blocks,
                      inputs_of(own, r[i].image_deltas, own->pad));
        }
        adaptive by = in_step(adam, taken + step + 1, learning_rate, decay);
        for (int64_t i = 0, from = 0; from < parameters; i++) {
            const layer *own = l + i / 2; /* its weights, then its biases */
            int64_t size = i % 2 ? own->out_blocks * own->out_block : weights_of(own);
            if (!frozen[i])
                move(size, values + from, gradients + from, momenta + from, learning_rate, momentum,
                     decay, anchor + from, strength, push,
                     step % repeats == repeats - 1 ? follow : 0, &by,
                     momenta + parameters + from);
            from += size;
        }
    }
    restore(before);
    return total_loss;
}

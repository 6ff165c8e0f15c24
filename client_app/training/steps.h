/* What the steps of all networks have in common: vectors, the loss of a row, Adam. */

#ifndef COTERIE_STEPS_H
#define COTERIE_STEPS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Numbers below the smallest normal one count as 0: they cost a hundred times as much, and momenta
   end there. Only in here: whoever called gets the processor as it was. */
#ifdef __SSE__
#include <xmmintrin.h>
static unsigned flush_to_zero(void) {
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    return before;
}
static void restore(unsigned before) { _mm_setcsr(before); }
#else
static unsigned flush_to_zero(void) { return 0; }
static void restore(unsigned before) { (void)before; }
#endif

#ifdef __AVX512F__
enum { LANES = 16 };
#else
enum { LANES = 8 };
#endif
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

/* What is written once for any size and compiled for each: only then do sums stay in registers. */
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

/* Cross-entropy of a row, whose logits lie `apart` from each other, as do the derivatives by them:
   delta becomes (softmax - one-hot) * share. */
static inline double row_loss(int classes, int apart, const float *logits, int64_t label,
                              float share, float *delta) {
    float largest = logits[0], sum = 0;
    for (int j = 1; j < classes; j++)
        largest = logits[j * apart] > largest ? logits[j * apart] : largest;
    for (int j = 0; j < classes; j++)
        sum += delta[j * apart] = expf(logits[j * apart] - largest);
    for (int j = 0; j < classes; j++) delta[j * apart] = delta[j * apart] / sum * share;
    delta[label * apart] -= share;
    return logf(sum) - (logits[label * apart] - largest);
}

/* How Adam moves in one step, with torch's constants: Kingma & Ba 2015, Algorithm 1. With kind 2,
   AdamW's, the decay is beside the gradient: Loshchilov & Hutter 2019, Algorithm 2. */
typedef struct {
    int kind; /* 0: SGD instead */
    float learning_rate, decay;
    float size; /* of a step: the learning rate over 1 - 0.9^t */
    float root; /* of 1 - 0.999^t */
} adaptive;

static adaptive in_step(int kind, int64_t t, float learning_rate, float decay) {
    double first = 1 - pow(0.9, (double)t), second = 1 - pow(0.999, (double)t);
    return (adaptive){kind, learning_rate, decay, (float)(learning_rate / first),
                      (float)sqrt(second)};
}

static inline void adapt(const adaptive *by, int64_t count, const float *restrict gradients,
                         float *restrict values, float *restrict momenta,
                         float *restrict squares) {
    float kept = by->kind == 2 ? 1 - by->learning_rate * by->decay : 1;
    float decay = by->kind == 2 ? 0 : by->decay, size = by->size, root = by->root;
    for (int64_t i = 0; i < count; i++) {
        float gradient = gradients[i] + decay * values[i];
        momenta[i] += 0.1f * (gradient - momenta[i]);
        squares[i] = 0.999f * squares[i] + 0.001f * gradient * gradient;
        values[i] = kept * values[i] - size * momenta[i] / (sqrtf(squares[i]) / root + 1e-8f);
    }
}

#endif

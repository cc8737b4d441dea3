// Causal convolutions of single channels along a row's path, and LFM2's layers made of them.
#pragma once

#include <algorithm>

#include "paths.h"
#include "team.h"

extern "C" struct Convolution {
    int64_t seen;          // tokens K, the row itself the last
    int64_t channels;      // C
    const float* weights;  // [K, C]
    const float* bias;     // [C], or null
};

// to [count]: channels ``first`` … of row n, whose x lies in the state as those of its path do
template <class T>
void convolve(const Convolution& by, const Kept& kept, const Paths& paths, int64_t n, int64_t first, int64_t count,
              float* to) {
    if (by.bias)
        std::copy_n(by.bias + first, count, to);
    else
        std::fill_n(to, count, 0.0f);
    for (int64_t k = 0; k < by.seen; k++) {
        int64_t from = kept.index(paths.column(n, by.seen - 1 - k));
        const T* x = (const T*)kept.x + from * by.channels + first;
        const float* weights = by.weights + k * by.channels + first;
        for (int64_t c = 0; c < count; c++) to[c] += weights[c] * to_float(x[c]);
    }
}

constexpr int64_t CHANNELS = 64;  // that a thread takes at a time

// this thread's part of given [N, M] = c · conv(b · x) of rows [N, 3 M] of b, c and x; b · x is written to the state
template <class T>
void short_convolution(const Convolution& by, const Kept& kept, const Paths& paths, const T* projected, int64_t stride,
                       T* given, int64_t given_stride) {
    int64_t M = by.channels;
    Team::Part part = Team::part_of((M + CHANNELS - 1) / CHANNELS);
    for (int64_t first = part.first * CHANNELS; first < part.end * CHANNELS; first += CHANNELS) {
        int64_t count = std::min(CHANNELS, M - first);
        for (int64_t n = 0; n < paths.rows.count; n++) {
            const T *b = projected + n * stride + first, *x = b + 2 * M;
            T* to = (T*)kept.x + kept.index(paths.rows.first + n) * M + first;
            for (int64_t c = 0; c < count; c++) to[c] = rounded<T>(to_float(b[c]) * to_float(x[c]));
        }
        for (int64_t n = 0; n < paths.rows.count; n++) {
            float sums[CHANNELS];
            convolve<T>(by, kept, paths, n, first, count, sums);
            const T* gate = projected + n * stride + M + first;
            T* to = given + n * given_stride + first;
            for (int64_t c = 0; c < count; c++) to[c] = rounded<T>(to_float(gate[c]) * to_float(rounded<T>(sums[c])));
        }
    }
}

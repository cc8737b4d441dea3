// Vectors of float32 lanes, and sums of products of rows.
//
// Every sum of products adds up in one order, whatever the tile it is computed in: lane l takes the products of inputs
// l, l + width, ...; then lanes are added in halves. So a row's result does not depend on the rows beside it.
#pragma once

#include <cmath>

#include "scalars.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define WITH_AVX512 1
#include <immintrin.h>
#endif

#define UNROLLED _Pragma("GCC unroll 16")

constexpr int TILE_OUTPUTS = 4;

#if WITH_AVX512

using Lanes = __m512;
constexpr int LANES = 16;
constexpr int TILE_ROWS = 4;
constexpr int PANEL_ROWS = 12;
constexpr int FEW_ROWS = 6;

inline __mmask16 first_lanes(int count) { return __mmask16((1u << count) - 1); }
inline Lanes zeros() { return _mm512_setzero_ps(); }
inline Lanes all(float x) { return _mm512_set1_ps(x); }
inline Lanes load(const float* p) { return _mm512_loadu_ps(p); }
inline Lanes load(const float* p, int count) { return _mm512_maskz_loadu_ps(first_lanes(count), p); }
inline Lanes widened(__m256i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline Lanes load(const bf16* p) { return widened(_mm256_loadu_si256((const __m256i*)p)); }
inline Lanes load(const bf16* p, int count) { return widened(_mm256_maskz_loadu_epi16(first_lanes(count), p)); }
inline void store(float* p, Lanes x) { _mm512_storeu_ps(p, x); }
inline Lanes fused(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
// of each lane the larger one, b's where a's is not a number
inline Lanes larger(Lanes a, Lanes b) { return _mm512_max_ps(a, b); }

// y[r * stride + c] = the sum of the lanes of x[c][r], for four rows from FROM on
template <int R, int FROM> inline void sum_four(const Lanes (&x)[TILE_OUTPUTS][R], float* y, int64_t stride) {
    // vector number r + 4c ends up in lane 4r + c
    Lanes eighths[8], quarters[4], halves[2];
    for (int i = 0; i < 8; i++) {
        int c = i / 2, r = FROM + i % 2 * 2;
        Lanes a = r < R ? x[c][r < R ? r : 0] : zeros(), b = r + 1 < R ? x[c][r + 1 < R ? r + 1 : 0] : zeros();
        eighths[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    }
    for (int i = 0; i < 4; i++) {
        Lanes a = eighths[2 * i], b = eighths[2 * i + 1];
        quarters[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
    }
    for (int i = 0; i < 2; i++) {
        Lanes a = quarters[2 * i], b = quarters[2 * i + 1];
        halves[i] = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE));
    }
    Lanes sums = _mm512_add_ps(_mm512_shuffle_ps(halves[0], halves[1], 0x88),
                               _mm512_shuffle_ps(halves[0], halves[1], 0xDD));
    y += FROM * stride;
    _mm_storeu_ps(y, _mm512_castps512_ps128(sums));
    if (R > FROM + 1) _mm_storeu_ps(y + stride, _mm512_extractf32x4_ps(sums, 1));
    if (R > FROM + 2) _mm_storeu_ps(y + 2 * stride, _mm512_extractf32x4_ps(sums, 2));
    if (R > FROM + 3) _mm_storeu_ps(y + 3 * stride, _mm512_extractf32x4_ps(sums, 3));
}

template <int R> inline void sum_lanes(const Lanes (&x)[TILE_OUTPUTS][R], float* y, int64_t stride) {
    sum_four<R, 0>(x, y, stride);
    if constexpr (R > 4) sum_four<R, 4>(x, y, stride);
}

#else

typedef float Lanes __attribute__((vector_size(32)));
constexpr int LANES = 8;
constexpr int TILE_ROWS = 2;
constexpr int PANEL_ROWS = 4;
constexpr int FEW_ROWS = 1;

inline Lanes zeros() { return Lanes{}; }
inline Lanes all(float x) { return Lanes{} + x; }
inline Lanes load(const float* p) {
    Lanes x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
inline Lanes load(const bf16* p) {
    typedef uint16_t Narrow __attribute__((vector_size(16)));
    typedef uint32_t Wide __attribute__((vector_size(32)));
    Narrow narrow;
    std::memcpy(&narrow, p, sizeof narrow);
    return (Lanes)(__builtin_convertvector(narrow, Wide) << 16);
}
template <class T> Lanes load(const T* p, int count) {
    T padded[LANES] = {};
    std::memcpy(padded, p, count * sizeof(T));
    return load(padded);
}
inline void store(float* p, Lanes x) { std::memcpy(p, &x, sizeof x); }
inline Lanes fused(Lanes a, Lanes b, Lanes c) { return a * b + c; }
inline Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }

template <int R> void sum_lanes(const Lanes (&x)[TILE_OUTPUTS][R], float* y, int64_t stride) {
    for (int r = 0; r < R; r++)
        for (int c = 0; c < TILE_OUTPUTS; c++) {
            Lanes v = x[c][r];
            float half[4] = {v[0] + v[4], v[1] + v[5], v[2] + v[6], v[3] + v[7]};
            y[r * stride + c] = (half[0] + half[2]) + (half[1] + half[3]);
        }
}

#endif

inline float sum_of(Lanes x) {
    float lanes[LANES];
    store(lanes, x);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++) lanes[l] += lanes[l + width];
    return lanes[0];
}

// how one vector of weights is multiplied with one of a row, and added
template <class T> struct Products {
    static constexpr int WIDTH = LANES;
    using Part = Lanes;
    static Part part(const T* p) { return load(p); }
    static Part part(const T* p, int count) { return load(p, count); }
    static Lanes add(Lanes sum, Part a, Part b) { return fused(a, b, sum); }
};

#if WITH_AVX512 && defined(__AVX512BF16__)
template <> struct Products<bf16> {
    static constexpr int WIDTH = 32;
    using Part = __m512i;
    static Part part(const bf16* p) { return _mm512_loadu_si512(p); }
    static Part part(const bf16* p, int count) {
        return _mm512_maskz_loadu_epi16(__mmask32((1ull << count) - 1), p);
    }
    static Lanes add(Lanes sum, Part a, Part b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
};
#endif

// y[r * y_stride + c] = w[c] · x[r], R rows and 4 outputs
template <class T, int R>
inline void tile(const T* const (&w)[TILE_OUTPUTS], const T* x, int64_t x_stride, int64_t inputs, float* y,
                 int64_t y_stride) {
    using P = Products<T>;
    Lanes sum[TILE_OUTPUTS][R];
    for (int c = 0; c < TILE_OUTPUTS; c++)
        for (int r = 0; r < R; r++) sum[c][r] = zeros();
    int64_t i = 0;
    for (; i + P::WIDTH <= inputs; i += P::WIDTH) {
        typename P::Part weights[TILE_OUTPUTS];
        for (int c = 0; c < TILE_OUTPUTS; c++) weights[c] = P::part(w[c] + i);
        for (int r = 0; r < R; r++) {
            typename P::Part row = P::part(x + r * x_stride + i);
            for (int c = 0; c < TILE_OUTPUTS; c++) sum[c][r] = P::add(sum[c][r], weights[c], row);
        }
    }
    if (int count = int(inputs - i)) {
        for (int r = 0; r < R; r++) {
            typename P::Part row = P::part(x + r * x_stride + i, count);
            for (int c = 0; c < TILE_OUTPUTS; c++) sum[c][r] = P::add(sum[c][r], P::part(w[c] + i, count), row);
        }
    }
    sum_lanes<R>(sum, y, y_stride);
}

// f(the number of rows as a type), for 1 to MOST rows
template <int R> struct Count {
    static constexpr int value = R;
};
template <int MOST = TILE_ROWS, class F> inline void with_count(int64_t rows, const F& f) {
    if (rows == MOST)
        f(Count<MOST>());
    else if constexpr (MOST > 1)
        with_count<MOST - 1>(rows, f);
}

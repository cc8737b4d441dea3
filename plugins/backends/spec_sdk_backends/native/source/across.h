// Rows of numbers turned so that a vector has one number of every row.
#pragma once

#include "lanes.h"

#if WITH_AVX512

// numbers 0 … 3 of 16 rows, 4 vectors
inline void four_across(const float* const (&row)[LANES], int64_t at, Lanes (&to)[4]) {
    Lanes x[4];
    for (int k = 0; k < 4; k++) {
        x[k] = _mm512_castps128_ps512(_mm_loadu_ps(row[k] + at));
        x[k] = _mm512_mask_broadcast_f32x4(x[k], 0x00F0, _mm_loadu_ps(row[k + 4] + at));
        x[k] = _mm512_mask_broadcast_f32x4(x[k], 0x0F00, _mm_loadu_ps(row[k + 8] + at));
        x[k] = _mm512_mask_broadcast_f32x4(x[k], 0xF000, _mm_loadu_ps(row[k + 12] + at));
    }
    Lanes low01 = _mm512_unpacklo_ps(x[0], x[1]), high01 = _mm512_unpackhi_ps(x[0], x[1]);
    Lanes low23 = _mm512_unpacklo_ps(x[2], x[3]), high23 = _mm512_unpackhi_ps(x[2], x[3]);
    to[0] = _mm512_shuffle_ps(low01, low23, 0x44);
    to[1] = _mm512_shuffle_ps(low01, low23, 0xEE);
    to[2] = _mm512_shuffle_ps(high01, high23, 0x44);
    to[3] = _mm512_shuffle_ps(high01, high23, 0xEE);
}

// the first and the second number of pairs of bfloat16
inline Lanes first_of(Lanes pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16)); }
inline Lanes second_of(Lanes pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32(0xFFFF0000)));
}

#else

typedef uint32_t LaneBits __attribute__((vector_size(sizeof(Lanes))));

// lanes of a and b in an order of a half's four, the same in both halves; from 4 on b's
template <int A, int B, int C, int D> inline Lanes mixed(Lanes a, Lanes b) {
    constexpr int HALF = LANES / 2, FROM_B = LANES - HALF;
    constexpr int i[4] = {A < HALF ? A : A + FROM_B, B < HALF ? B : B + FROM_B, C < HALF ? C : C + FROM_B,
                          D < HALF ? D : D + FROM_B};
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define WITH_SHUFFLEVECTOR 1
#endif
#endif
#if WITH_SHUFFLEVECTOR
    return __builtin_shufflevector(a, b, i[0], i[1], i[2], i[3], i[0] + HALF, i[1] + HALF, i[2] + HALF, i[3] + HALF);
#else
    return __builtin_shuffle(a, b, LaneBits{i[0], i[1], i[2], i[3], i[0] + HALF, i[1] + HALF, i[2] + HALF, i[3] + HALF});
#endif
}

// numbers 0 … 3 of 8 rows, 4 vectors
inline void four_across(const float* const (&row)[LANES], int64_t at, Lanes (&to)[4]) {
    Lanes x[4];
    for (int k = 0; k < 4; k++) {
        std::memcpy(&x[k], row[k] + at, 16);
        std::memcpy((char*)&x[k] + 16, row[k + 4] + at, 16);
    }
    Lanes low01 = mixed<0, 4, 1, 5>(x[0], x[1]), high01 = mixed<2, 6, 3, 7>(x[0], x[1]);
    Lanes low23 = mixed<0, 4, 1, 5>(x[2], x[3]), high23 = mixed<2, 6, 3, 7>(x[2], x[3]);
    to[0] = mixed<0, 1, 4, 5>(low01, low23);
    to[1] = mixed<2, 3, 6, 7>(low01, low23);
    to[2] = mixed<0, 1, 4, 5>(high01, high23);
    to[3] = mixed<2, 3, 6, 7>(high01, high23);
}

inline Lanes first_of(Lanes pairs) { return (Lanes)((LaneBits)pairs << 16); }
inline Lanes second_of(Lanes pairs) { return (Lanes)((LaneBits)pairs & 0xFFFF0000u); }

#endif

// to [dim][LANES], rows of it ``stride`` apart: number d of LANES keys side by side. ``meanwhile(d)`` is called now and
// then
template <class F>
inline void turn(const float* const (&key)[LANES], int64_t dim, float* to, int64_t stride, F meanwhile) {
    for (int64_t d = 0; d < dim; d += 4) {
        Lanes x[4];
        meanwhile(d);
        four_across(key, d, x);
        for (int i = 0; i < 4; i++) store(to + (d + i) * stride, x[i]);
    }
}

template <class F>
inline void turn(const bf16* const (&key)[LANES], int64_t dim, float* to, int64_t stride, F meanwhile) {
    const float* pairs[LANES];
    for (int k = 0; k < LANES; k++) pairs[k] = (const float*)key[k];
    for (int64_t d = 0; d < dim; d += 8) {
        Lanes x[4];
        meanwhile(d);
        four_across(pairs, d / 2, x);
        for (int i = 0; i < 4; i++) {
            store(to + (d + 2 * i) * stride, first_of(x[i]));
            store(to + (d + 2 * i + 1) * stride, second_of(x[i]));
        }
    }
}

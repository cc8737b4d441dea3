// Rows rounded to 8 bits for products with quantised weights: a row's 32 inputs of a group are scale · code, codes in
// -127 … 127, scale the largest of them / 127. Not finite inputs give a scale that is not, so that they are not hidden.
#pragma once

#include <cmath>

#include "amx.h"
#include "quantized.h"

// rows that AMX multiplies faster with weights in so many bits than other instructions; it is not used for 5 and 6
inline int64_t fewest_by_amx(int64_t bits) { return bits == 4 ? 11 : bits == 8 ? 9 : INT64_MAX; }

struct RoundedRows {
    int64_t count;               // N
    bool by_amx;                 // whether AMX multiplies them
    std::vector<int8_t> codes;   // [G, N, 32], the inputs of a group in the order of a record's bytes
    std::vector<float> scales;   // [G, N]
    std::vector<float> sums;     // [S, N]: scale · Σ code of the inputs of each of the weights' scales
    std::vector<int32_t> wholes; // [S, N]: Σ code
};

#if WITH_AVX512 && defined(__AVX512VBMI__) && defined(__AVX512VNNI__)
#define WITH_ROUNDED_AVX512 1

// a group's codes in the order of the bytes of a record's dwords: in up to 6 bits those in first halves, then the others
template <int BITS> inline __m256i in_order(__m256i codes) {
    const int64_t order = BITS == 8 ? 0x0705060403010200 : 0x0703060205010400, behind = 0x0808080808080808;
    const __m256i places = _mm256_set_epi64x(order + behind, order, order + behind, order);
    return _mm256_shuffle_epi8(codes, places);
}

template <class T, int BITS> void round_group(const T* x, int8_t* codes, float& scale, int32_t (&wholes)[2]) {
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    Lanes first = load(x), second = load(x + LANES);
    // as integers, so that what is not a number is the largest
    __m512i most = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(first), magnitude),
                                    _mm512_and_si512(_mm512_castps_si512(second), magnitude));
    int32_t bits = _mm512_reduce_max_epi32(most);
    float largest;
    std::memcpy(&largest, &bits, sizeof largest);
    scale = largest / 127.0f;
    Lanes factor = all(largest > 0.0f ? 127.0f / largest : 0.0f);
    __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(first, factor)), b = _mm512_cvtps_epi32(_mm512_mul_ps(second, factor));
    bool apart = scales_of_group(BITS) > 1;
    wholes[0] = _mm512_reduce_add_epi32(apart ? a : _mm512_add_epi32(a, b));
    if (apart) wholes[1] = _mm512_reduce_add_epi32(b);
    __m256i bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(b), _mm512_cvtepi32_epi8(a));
    _mm256_storeu_si256((__m256i*)codes, in_order<BITS>(bytes));
}

#else

template <class T, int BITS> void round_group(const T* x, int8_t* codes, float& scale, int32_t (&wholes)[2]) {
    float largest = 0.0f;
    for (int i = 0; i < GROUP; i++) {
        float size = std::fabs(to_float(x[i]));
        if (!(size <= largest)) largest = size;
        if (size != size) break;
    }
    scale = largest / 127.0f;
    float factor = largest > 0.0f ? 127.0f / largest : 0.0f;
    wholes[0] = wholes[1] = 0;
    for (int i = 0; i < GROUP; i++) {
        float code = std::nearbyint(to_float(x[i]) * factor);
        codes[i] = code == code ? int8_t(code) : 0;
        wholes[i * scales_of_group(BITS) / GROUP] += codes[i];
    }
}

#endif

template <class T> void round_rows(const T* x, int64_t stride, int64_t rows, const Records& records, RoundedRows& to) {
    int64_t groups = records.groups, parts = records.parts();
    to.count = rows;
    to.by_amx = amx.load(std::memory_order_relaxed) && rows >= fewest_by_amx(records.bits);
    // whole tiles are read
    to.codes.resize((rows * groups + RowTiles::MOST) * GROUP);
    to.scales.resize(rows * groups);
    to.sums.resize(rows * groups * parts);
    to.wholes.resize(rows * groups * parts);
    with_bits(records.bits, [&](auto bits) {
        constexpr int BITS = decltype(bits)::value, PARTS = scales_of_group(BITS);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t g = 0; g < groups; g++) {
                int64_t i = g * rows + r;
                int32_t wholes[2];
                round_group<T, BITS>(x + r * stride + g * GROUP, to.codes.data() + i * GROUP, to.scales[i], wholes);
                for (int64_t p = 0; p < PARTS; p++) {
                    int64_t s = (g * PARTS + p) * rows + r;
                    to.wholes[s] = wholes[p];
                    to.sums[s] = to.scales[i] * float(wholes[p]);
                }
            }
    });
}

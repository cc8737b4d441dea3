// Products with weights scale · code + offset, scale and offset of each group of 32 inputs.
//
// The sum over a group is scale · Σ code·x + offset · Σ x: codes are whole numbers, exact in bfloat16 and float32, and
// rows are taken as they are, so nothing is rounded but the sums, in float32.
#pragma once

#include <vector>

#include "lanes.h"

constexpr int GROUP = 32;
constexpr int AHEAD = 4;  // tiles between the weights that are multiplied and those that are fetched

template <class T> constexpr bool shuffled_rows = false;
#if WITH_AVX512 && defined(__AVX512BF16__)
template <> constexpr bool shuffled_rows<bf16> = true;
#endif

// Σ x of every group, [N, G] with G rounded up to whole vectors of zeros
inline int64_t padded_groups(int64_t inputs) { return (inputs / GROUP + LANES - 1) / LANES * LANES; }

template <class T>
void sum_groups(const T* x, int64_t stride, int64_t rows, int64_t inputs, std::vector<float>& sums) {
    int64_t groups = inputs / GROUP, padded = padded_groups(inputs);
    sums.assign(rows * padded, 0.0f);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t g = 0; g < groups; g++) {
            Lanes sum = zeros();
            for (int i = 0; i < GROUP; i += LANES) sum = fused(load(x + r * stride + g * GROUP + i), all(1.0f), sum);
            sums[r * padded + g] = sum_of(sum);
        }
}

// Two groups A and B at a time as 4-bit codes are unpacked: A's first 16 inputs, B's, then the last 16 of both; an odd
// last group has zeros beside it.
template <class T>
void shuffle_rows(const T* x, int64_t stride, int64_t rows, int64_t inputs, std::vector<T>& shuffled) {
    if (!shuffled_rows<T>) return;
    int64_t groups = inputs / GROUP, pairs = (groups + 1) / 2;
    shuffled.assign(rows * pairs * 2 * GROUP, T{});
    for (int64_t r = 0; r < rows; r++)
        for (int64_t g = 0; g < groups; g++) {
            const T* from = x + r * stride + g * GROUP;
            T* to = shuffled.data() + (r * pairs + g / 2) * 2 * GROUP + g % 2 * 16;
            std::memcpy(to, from, 16 * sizeof(T));
            std::memcpy(to + GROUP, from + 16, 16 * sizeof(T));
        }
}

// the 32 codes of a group as numbers
inline void unpack(int64_t bits, const void* codes, int64_t group, float* to) {
    if (bits == 4) {
        const uint8_t* bytes = (const uint8_t*)codes + group * (GROUP / 2);
        for (int j = 0; j < 16; j++) {
            to[j] = float(bytes[j] & 15);
            to[j + 16] = float(bytes[j] >> 4);
        }
    } else {
        const int8_t* bytes = (const int8_t*)codes + group * GROUP;
        for (int j = 0; j < GROUP; j++) to[j] = float(bytes[j]);
    }
}

template <int R>
inline void add_offsets(Lanes (&sum)[TILE_OUTPUTS][R], const uint16_t* offset, const int64_t (&row)[TILE_OUTPUTS],
                        int64_t groups, const float* sums) {
    int64_t padded = (groups + LANES - 1) / LANES * LANES;
    for (int64_t g = 0; g < groups; g += LANES)
        for (int c = 0; c < TILE_OUTPUTS; c++) {
            int count = int(groups - g < LANES ? groups - g : LANES);
            const uint16_t* from = offset + row[c] * groups + g;
#if WITH_AVX512
            Lanes offsets = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(count), from));
#else
            float held[LANES] = {};
            for (int l = 0; l < count; l++) held[l] = half_to_float(from[l]);
            Lanes offsets = load(held);
#endif
            for (int r = 0; r < R; r++) sum[c][r] = fused(offsets, load(sums + r * padded + g), sum[c][r]);
        }
}

inline float scale_of(const uint16_t* scale, int64_t at) {
#if WITH_AVX512
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(scale[at])));
#else
    return half_to_float(scale[at]);
#endif
}

// group by group, codes unpacked to float32
template <class T> struct Groups {
    template <int R>
    static void add(Lanes (&sum)[TILE_OUTPUTS][R], int64_t bits, const char* const (&codes)[TILE_OUTPUTS],
                    const uint16_t* scale, const int64_t (&row)[TILE_OUTPUTS], int64_t groups, const T* x,
                    int64_t stride, const T*) {
        for (int c = 0; c < TILE_OUTPUTS; c++)
            for (int64_t g = 0; g < groups; g++) {
                float numbers[GROUP];
                unpack(bits, codes[c], g, numbers);
                Lanes factor = all(scale_of(scale, row[c] * groups + g));
                for (int r = 0; r < R; r++) {
                    Lanes part = zeros();
                    for (int i = 0; i < GROUP; i += LANES)
                        part = fused(load(numbers + i), load(x + r * stride + g * GROUP + i), part);
                    sum[c][r] = fused(part, factor, sum[c][r]);
                }
            }
    }
};

#if WITH_AVX512

// [16] float32 from signed bytes, or from the low or high halves of bytes
inline Lanes numbers_of(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }

template <> struct Groups<float> {
    template <int R>
    static void add(Lanes (&sum)[TILE_OUTPUTS][R], int64_t bits, const char* const (&codes)[TILE_OUTPUTS],
                    const uint16_t* scale, const int64_t (&row)[TILE_OUTPUTS], int64_t groups, const float* x,
                    int64_t stride, const float*) {
        const __m128i low = _mm_set1_epi8(15);
        for (int c = 0; c < TILE_OUTPUTS; c++)
            for (int64_t g = 0; g < groups; g++) {
                Lanes first, second;
                if (bits == 4) {
                    __m128i bytes = _mm_loadu_si128((const __m128i*)(codes[c] + g * 16));
                    first = numbers_of(_mm_and_si128(bytes, low));
                    second = numbers_of(_mm_and_si128(_mm_srli_epi16(bytes, 4), low));
                } else {
                    first = numbers_of(_mm_loadu_si128((const __m128i*)(codes[c] + g * GROUP)));
                    second = numbers_of(_mm_loadu_si128((const __m128i*)(codes[c] + g * GROUP + 16)));
                }
                Lanes factor = all(scale_of(scale, row[c] * groups + g));
                for (int r = 0; r < R; r++) {
                    const float* from = x + r * stride + g * GROUP;
                    Lanes part = fused(second, load(from + 16), _mm512_mul_ps(first, load(from)));
                    sum[c][r] = fused(part, factor, sum[c][r]);
                }
            }
    }
};

#endif

#if WITH_AVX512 && defined(__AVX512BF16__)

template <> struct Groups<bf16> {
    template <int R>
    static void add(Lanes (&sum)[TILE_OUTPUTS][R], int64_t bits, const char* const (&codes)[TILE_OUTPUTS],
                    const uint16_t* scale, const int64_t (&row)[TILE_OUTPUTS], int64_t groups, const bf16* x,
                    int64_t stride, const bf16* shuffled) {
        if (bits == 4)
            add_4(sum, codes, scale, row, groups, shuffled);
        else
            add_8(sum, codes, scale, row, groups, x, stride);
    }

    // two groups at a time: the eight lower lanes of a product belong to the first, the others to the second
    template <int R>
    static void add_4(Lanes (&sum)[TILE_OUTPUTS][R], const char* const (&codes)[TILE_OUTPUTS], const uint16_t* scale,
                      const int64_t (&row)[TILE_OUTPUTS], int64_t groups, const bf16* shuffled) {
        // 0 … 15 in bfloat16
        alignas(64) static const uint16_t NUMBERS[32] = {
            0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0, 0x4100, 0x4110, 0x4120,
            0x4130, 0x4140, 0x4150, 0x4160, 0x4170, 0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0,
            0x40C0, 0x40E0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
        const __m512i numbers = _mm512_load_si512(NUMBERS);
        const __m512i by_half = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
        int64_t pairs = (groups + 1) / 2, width = pairs * 2 * GROUP;
        for (int c = 0; c < TILE_OUTPUTS; c++) {
            for (int64_t pair = 0; pair < pairs; pair++) {
                bool whole = 2 * pair + 1 < groups;
                const char* from = codes[c] + pair * GROUP;
                __builtin_prefetch(from + AHEAD * TILE_OUTPUTS * groups * 16, 0, 2);
                __m256i bytes = whole ? _mm256_loadu_si256((const __m256i*)from)
                                      : _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i*)from));
                // the table has every number twice, so bit 4 of an index does not matter
                __m512i code = _mm512_cvtepu8_epi16(bytes);
                __m512i first = _mm512_permutexvar_epi16(_mm512_and_si512(code, _mm512_set1_epi16(15)), numbers);
                __m512i second = _mm512_permutexvar_epi16(_mm512_srli_epi16(code, 4), numbers);
                const uint16_t* at = scale + row[c] * groups + 2 * pair;
                uint32_t both = at[0];
                if (whole) std::memcpy(&both, at, sizeof both);
                __m128 scales = _mm_cvtph_ps(_mm_cvtsi32_si128(int(both)));
                Lanes factor = _mm512_permutexvar_ps(by_half, _mm512_castps128_ps512(scales));
                for (int r = 0; r < R; r++) {
                    const bf16* inputs = shuffled + r * width + pair * 2 * GROUP;
                    Lanes part = Products<bf16>::add(zeros(), first, _mm512_loadu_si512(inputs));
                    part = Products<bf16>::add(part, second, _mm512_loadu_si512(inputs + GROUP));
                    sum[c][r] = fused(part, factor, sum[c][r]);
                }
            }
        }
    }

    template <int R>
    static void add_8(Lanes (&sum)[TILE_OUTPUTS][R], const char* const (&codes)[TILE_OUTPUTS], const uint16_t* scale,
                      const int64_t (&row)[TILE_OUTPUTS], int64_t groups, const bf16* x, int64_t stride) {
        for (int c = 0; c < TILE_OUTPUTS; c++)
            for (int64_t g = 0; g < groups; g++) {
                const char* from = codes[c] + g * GROUP;
                __builtin_prefetch(from + AHEAD * TILE_OUTPUTS * groups * GROUP, 0, 2);
                __m256i bytes = _mm256_loadu_si256((const __m256i*)from);
                Lanes first = numbers_of(_mm256_castsi256_si128(bytes));
                Lanes second = numbers_of(_mm256_extracti128_si256(bytes, 1));
                __m512i weights = (__m512i)_mm512_cvtne2ps_pbh(second, first);
                Lanes factor = all(scale_of(scale, row[c] * groups + g));
                for (int r = 0; r < R; r++) {
                    Lanes part =
                        Products<bf16>::add(zeros(), weights, _mm512_loadu_si512(x + r * stride + g * GROUP));
                    sum[c][r] = fused(part, factor, sum[c][r]);
                }
            }
    }
};

#endif

template <class T, int R>
void quantized_tile(int64_t bits, const void* codes, const uint16_t* scale, const uint16_t* offset,
                    const int64_t (&row)[TILE_OUTPUTS], int64_t inputs, const T* x, int64_t stride, const T* shuffled,
                    const float* sums, float* y, int64_t y_stride) {
    int64_t groups = inputs / GROUP, bytes = inputs * bits / 8;
    const char* from[TILE_OUTPUTS];
    Lanes sum[TILE_OUTPUTS][R];
    for (int c = 0; c < TILE_OUTPUTS; c++) {
        from[c] = (const char*)codes + row[c] * bytes;
        for (int r = 0; r < R; r++) sum[c][r] = zeros();
    }
    Groups<T>::template add<R>(sum, bits, from, scale, row, groups, x, stride, shuffled);
    if (offset) add_offsets<R>(sum, offset, row, groups, sums);
    sum_lanes<R>(sum, y, y_stride);
}

template <class T>
void quantized_tiles(int64_t bits, const void* codes, const uint16_t* scale, const uint16_t* offset,
                     const int64_t (&row)[TILE_OUTPUTS], int64_t inputs, const T* x, int64_t stride, const T* shuffled,
                     const float* sums, int64_t rows, float* y, int64_t y_stride) {
    int64_t width = (inputs / GROUP + 1) / 2 * 2 * GROUP, padded = padded_groups(inputs);
    for (int64_t r = 0; r < rows; r += STREAM_ROWS)
        with_count<STREAM_ROWS>(rows - r < STREAM_ROWS ? rows - r : STREAM_ROWS, [&](auto count) {
            quantized_tile<T, decltype(count)::value>(bits, codes, scale, offset, row, inputs, x + r * stride, stride,
                                                      shuffled + r * width, sums + r * padded, y + r * y_stride,
                                                      y_stride);
        });
}

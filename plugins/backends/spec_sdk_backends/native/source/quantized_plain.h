// Tiles of quantised products in vectors that the compiler translates into what there is.
#pragma once

#include "quantized.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

constexpr int QUANTIZED_ROWS = 4;

typedef float Outputs __attribute__((vector_size(64)));
typedef uint32_t Dwords __attribute__((vector_size(64)));
typedef int32_t Wholes __attribute__((vector_size(64)));

// where input ``input`` of a line has its code in a dword
constexpr int place_of(int bits, int input) { return input / 2 * (bits == 8 ? 8 : 4) + input % 2 * 16; }

// number ``input`` of the dwords of 16 outputs, ``upper`` what upper bits it has, ``middle`` what it has too much
template <int BITS> inline Outputs codes_of(Dwords dwords, Dwords upper, int middle, int input) {
    if (BITS != 8) {
        Wholes codes = (Wholes)((dwords >> place_of(BITS, input)) & 15) + (Wholes)(upper << 4);
        return __builtin_convertvector(codes - middle, Outputs);
    }
    Wholes codes = (Wholes)(dwords << (24 - place_of(BITS, input))) >> 24;
    return __builtin_convertvector(codes ^ ((codes >> 31) & 127), Outputs);
}

inline Outputs halves_to_floats(const char* from) {
    Outputs to;
    for (int o = 0; o < BESIDE; o++) {
        uint16_t half;
        std::memcpy(&half, from + 2 * o, 2);
        to[o] = half_to_float(half);
    }
    return to;
}

// what a table has for the lower 4 bits of codes
inline Outputs looked_up(const Outputs& table, Dwords codes) {
    Outputs found;
#if defined(__AVX2__)
    __m256 first, second;
    std::memcpy(&first, &table, 32);
    std::memcpy(&second, (const char*)&table + 32, 32);
    for (int half = 0; half < 2; half++) {
        __m256i index;
        std::memcpy(&index, (const char*)&codes + half * 32, 32);
        __m256 low = _mm256_permutevar8x32_ps(first, index), high = _mm256_permutevar8x32_ps(second, index);
        // the fourth bit as a sign
        __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
        __m256 chosen = _mm256_blendv_ps(low, high, upper);
        std::memcpy((char*)&found + half * 32, &chosen, 32);
    }
#else
    for (int o = 0; o < BESIDE; o++) found[o] = table[codes[o] & 15];
#endif
    return found;
}

// levels as numbers; zeros without any
inline Outputs table_of(const Records& records) {
    Outputs table{};
    for (int i = 0; i < MOST_LEVELS && records.levels; i++) table[i] = records.levels[i];
    return table;
}

// part[r] += the sum over the inputs of a group's scale number ``p`` of code · x[r * stride + input]
template <int BITS, int R, class X>
inline void add_part(const char* record, int p, int middle, const Outputs& table, const X* x, int64_t stride,
                     Outputs (&part)[R]) {
    constexpr int INPUTS = inputs_of_line(BITS), LINES = lines_of_group(BITS) / scales_of_group(BITS);
    for (int line = p * LINES; line < (p + 1) * LINES; line++) {
        Dwords dwords, upper{};
        std::memcpy(&dwords, record + line * 64, 64);
        if (has_upper(BITS)) std::memcpy(&upper, record + upper_line(BITS, line) * 64, 64);
        const X* inputs = x + line * INPUTS;
        for (int i = 0; i < INPUTS; i++) {
            Dwords own = has_upper(BITS) ? upper >> upper_shift(BITS, line, i) & upper_mask(BITS) : upper;
            Outputs codes = BITS == BY_LEVELS ? looked_up(table, dwords >> place_of(BITS, i))
                                              : codes_of<BITS>(dwords, own, middle, i);
            for (int r = 0; r < R; r++) part[r] = codes * to_float(inputs[r * stride + i]) + part[r];
        }
    }
}

// what the groups before a stretch came to
template <int R> void begin_with(const float* y, int64_t y_stride, const Stretch& stretch, Outputs (&total)[R]) {
    for (int r = 0; r < R; r++) {
        total[r] = Outputs{};
        if (stretch.start) std::memcpy(&total[r], y + r * y_stride, sizeof total[r]);
    }
}

template <class T, int BITS, int R>
void quantized_tile(const Records& records, const Stretch& stretch, const T* x, int64_t stride, const float* sums,
                    float* y, int64_t y_stride, Fetch) {
    constexpr int PARTS = scales_of_group(BITS);
    const Outputs table = table_of(records);
    Outputs total[R];
    begin_with(y, y_stride, stretch, total);
    for (int64_t s = stretch.start * PARTS; s < stretch.end * PARTS; s++) {
        int p = s % PARTS;
        const char *record = stretch.at(s / PARTS), *factors = record + records.codes() + p * 2 * BESIDE;
        Outputs part[R];
        for (int r = 0; r < R; r++) part[r] = Outputs{};
        add_part<BITS, R>(record, p, int(records.middle()), table, x + s / PARTS * GROUP, stride, part);
        Outputs scale = halves_to_floats(factors);
        for (int r = 0; r < R; r++) total[r] = scale * part[r] + total[r];
        if (records.offsets) {
            Outputs offset = halves_to_floats(factors + PARTS * 2 * BESIDE);
            for (int r = 0; r < R; r++) total[r] = offset * sums[r * records.groups * PARTS + s] + total[r];
        }
    }
    for (int r = 0; r < R; r++) std::memcpy(y + r * y_stride, &total[r], sizeof total[r]);
}

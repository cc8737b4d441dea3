// Tiles of quantised products in vectors that the compiler translates into what there is.
#pragma once

#include "quantized.h"

constexpr int QUANTIZED_ROWS = 4;

typedef float Outputs __attribute__((vector_size(64)));
typedef uint32_t Dwords __attribute__((vector_size(64)));
typedef int32_t Wholes __attribute__((vector_size(64)));

// number ``input`` of the dwords of 16 outputs, ``upper`` what upper bits it has, ``middle`` what it has too much
template <int BITS> inline Outputs codes_of(Dwords dwords, Dwords upper, int middle, int input) {
    if (BITS != 8) {
        Wholes codes = (Wholes)((dwords >> (input / 2 * 4 + input % 2 * 16)) & 15) + (Wholes)(upper << 4);
        return __builtin_convertvector(codes - middle, Outputs);
    }
    Wholes codes = (Wholes)(dwords << (24 - (input / 2 * 8 + input % 2 * 16))) >> 24;
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

// part[r] += the sum over the inputs of a group's scale number ``p`` of code · x[r * stride + input]
template <int BITS, int R, class X>
inline void add_part(const char* record, int p, int middle, const X* x, int64_t stride, Outputs (&part)[R]) {
    constexpr int INPUTS = inputs_of_line(BITS), LINES = lines_of_group(BITS) / scales_of_group(BITS);
    for (int line = p * LINES; line < (p + 1) * LINES; line++) {
        Dwords dwords, upper{};
        std::memcpy(&dwords, record + line * 64, 64);
        if (has_upper(BITS)) std::memcpy(&upper, record + upper_line(BITS, line) * 64, 64);
        const X* inputs = x + line * INPUTS;
        for (int i = 0; i < INPUTS; i++) {
            Dwords own = has_upper(BITS) ? upper >> upper_shift(BITS, line, i) & upper_mask(BITS) : upper;
            Outputs codes = codes_of<BITS>(dwords, own, middle, i);
            for (int r = 0; r < R; r++) part[r] = codes * to_float(inputs[r * stride + i]) + part[r];
        }
    }
}

template <class T, int BITS, int R>
void quantized_tile(const Records& records, int64_t block, const T* x, int64_t stride, const float* sums, float* y,
                    int64_t y_stride, Fetch) {
    constexpr int PARTS = scales_of_group(BITS);
    Outputs total[R];
    for (int r = 0; r < R; r++) total[r] = Outputs{};
    for (int64_t s = 0; s < records.groups * PARTS; s++) {
        int p = s % PARTS;
        const char *record = records.at(block, s / PARTS), *factors = record + records.codes() + p * 2 * BESIDE;
        Outputs part[R];
        for (int r = 0; r < R; r++) part[r] = Outputs{};
        add_part<BITS, R>(record, p, int(records.middle()), x + s / PARTS * GROUP, stride, part);
        Outputs scale = halves_to_floats(factors);
        for (int r = 0; r < R; r++) total[r] = scale * part[r] + total[r];
        if (records.offsets) {
            Outputs offset = halves_to_floats(factors + PARTS * 2 * BESIDE);
            for (int r = 0; r < R; r++) total[r] = offset * sums[r * records.groups * PARTS + s] + total[r];
        }
    }
    for (int r = 0; r < R; r++) std::memcpy(y + r * y_stride, &total[r], sizeof total[r]);
}

// Rows of an embedding, in whichever form its weights lie.
#pragma once

#include <algorithm>

#include "product.h"

// What looks tokens up: rows one after the other, in the model's dtype or in few bits; or a matrix as products read it.
extern "C" struct Lookup {
    Matrix matrix;       // where the others are null
    const void* rows;    // [V, M]
    const void* codes;   // of ``bits``, a row after the other, with the scales and maybe offsets of their groups
    const void* scale;
    const void* offset;
    const int8_t* levels;  // that codes stand for, or null
    int64_t bits;
    double factor;       // by which what is looked up is multiplied; 1: not at all
};

// number ``input`` of a group's codes as they are stored
template <int BITS> inline int code_of(const char* codes, int64_t input) {
    if (BITS == 8) return (int8_t)codes[input];
    int code = (uint8_t)codes[input % (GROUP / 2)] >> input / (GROUP / 2) * 4 & 15;
    return has_upper(BITS) ? code + int(upper_bits<BITS>(codes, input)) * 16 : code;
}

// a row of codes in floating point; scale · code is exact, so that nothing depends on fused instructions
template <class T, int BITS> void decode_row(const Lookup& embedding, int64_t row, int64_t model, T* to) {
    constexpr int64_t parts = scales_of_group(BITS), bytes = GROUP * BITS / 8, inputs = GROUP / parts;
    int64_t groups = model / GROUP;
    const uint16_t* scale = (const uint16_t*)embedding.scale + row * groups * parts;
    const uint16_t* offset = embedding.offset ? (const uint16_t*)embedding.offset + row * groups * parts : nullptr;
    int middle = int(middle_of(BITS, offset));
    auto number = [&](int code) { return embedding.levels ? embedding.levels[code] : code - middle; };
    for (int64_t s = 0; s < groups * parts; s++) {
        float factor = half_to_float(scale[s]), added = offset ? half_to_float(offset[s]) : 0.0f;
        int64_t first = s % parts * inputs;
        const char* codes = (const char*)embedding.codes + (row * groups + s / parts) * bytes;
        for (int64_t i = first; i < first + inputs; i++)
            *to++ = rounded<T>(factor * float(number(code_of<BITS>(codes, i))) + added);
    }
}

// Rows of an embedding. Tokens are integers of any kind.
template <class T, class I> void look_up(const Lookup& embedding, const I* token, int64_t count, int64_t model, T* to) {
    const Matrix& matrix = embedding.matrix;
    for (int64_t r = 0; r < count; r++, to += model) {
        if (embedding.rows) {
            std::copy_n((const T*)embedding.rows + token[r] * model, model, to);
        } else if (embedding.codes) {
            with_bits(embedding.bits, [&](auto bits) {
                decode_row<T, decltype(bits)::value>(embedding, token[r], model, to);
            });
        } else if (matrix.bits) {
            expand<T>(records_of(matrix), token[r], to);
        } else {
            constexpr int64_t D = DEPTH<T>;
            const T* panel = (const T*)matrix.weights + token[r] / PANEL * steps_of<T>(model) * PANEL * D;
            for (int64_t i = 0; i < model; i++) to[i] = panel[(i / D * PANEL + token[r] % PANEL) * D + i % D];
        }
        if (embedding.factor != 1.0)
            for (int64_t i = 0; i < model; i++) to[i] = rounded<T>(to_float(to[i]) * float(embedding.factor));
    }
}

// Rows of an embedding, in whichever form its weights lie.
#pragma once

#include <algorithm>

#include "product.h"

// What looks tokens up: rows one after the other, in the model's dtype or in few bits; or a matrix as products read it.
extern "C" struct Lookup {
    Matrix matrix;       // where the others are null
    const void* rows;    // [V, M]
    const void* codes;   // of ``bits`` as a GGUF file has them, with a scale and maybe an offset for each group
    const void* scale;
    const void* offset;
    int64_t bits;
};

// a row of codes in floating point; scale · code is exact, so that nothing depends on fused instructions
template <class T> void decode_row(const Lookup& embedding, int64_t row, int64_t model, T* to) {
    int64_t groups = model / GROUP;
    const uint16_t* scale = (const uint16_t*)embedding.scale + row * groups;
    const uint16_t* offset = embedding.offset ? (const uint16_t*)embedding.offset + row * groups : nullptr;
    for (int64_t g = 0; g < groups; g++) {
        float factor = half_to_float(scale[g]), added = offset ? half_to_float(offset[g]) : 0.0f;
        const int8_t* codes = (const int8_t*)embedding.codes + (row * groups + g) * (GROUP * embedding.bits / 8);
        for (int i = 0; i < GROUP; i++) {
            int byte = embedding.bits == 8 ? codes[i] : (uint8_t)codes[i % (GROUP / 2)];
            int code = embedding.bits == 8 ? byte : i < GROUP / 2 ? byte & 15 : byte >> 4;
            *to++ = rounded<T>(factor * float(code) + added);
        }
    }
}

// Rows of an embedding. Tokens are integers of any kind.
template <class T, class I> void look_up(const Lookup& embedding, const I* token, int64_t count, int64_t model, T* to) {
    const Matrix& matrix = embedding.matrix;
    for (int64_t r = 0; r < count; r++, to += model) {
        if (embedding.rows) {
            std::copy_n((const T*)embedding.rows + token[r] * model, model, to);
        } else if (embedding.codes) {
            decode_row<T>(embedding, token[r], model, to);
        } else if (matrix.bits) {
            expand<T>(records_of(matrix), token[r], to);
        } else {
            constexpr int64_t D = DEPTH<T>;
            const T* panel = (const T*)matrix.weights + token[r] / PANEL * steps_of<T>(model) * PANEL * D;
            for (int64_t i = 0; i < model; i++) to[i] = panel[(i / D * PANEL + token[r] % PANEL) * D + i % D];
        }
    }
}

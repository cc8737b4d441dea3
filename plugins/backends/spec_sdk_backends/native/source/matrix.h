// Products of rows with a matrix of weights [O, I], dense or quantised, whose rows lie one after the other.
#pragma once

#include <vector>

#include "quantized.h"

constexpr int BLOCK = 16;      // outputs that are computed together
constexpr int MOST_ROWS = 64;  // rows that are

extern "C" struct Matrix {
    int64_t bits;  // 4 or 8 of a code; 0 for weights in the dtype of the rows
    int64_t outputs;
    int64_t inputs;
    const void* weights;
    const uint16_t* scale;   // float16 [O, I / 32]
    const uint16_t* offset;  // the same, or null
    const void* bias;        // [O] in the dtype of the rows, or null
};

// Rows [N, I] as a matrix takes them. Each thread makes its own.
template <class T> struct Rows {
    const T* x;
    int64_t stride;
    int64_t count;
    std::vector<T>* shuffled;
    std::vector<float>* sums;

    void prepare(const Matrix& matrix) {
        if (matrix.bits == 4) shuffle_rows<T>(x, stride, count, matrix.inputs, *shuffled);
        if (matrix.bits && matrix.offset) sum_groups<T>(x, stride, count, matrix.inputs, *sums);
    }
};

// y[r * BLOCK + c] = output first + c of row r, for up to BLOCK outputs; y has room for whole tiles
template <class T> void outputs_of(const Matrix& m, const Rows<T>& rows, int64_t first, int64_t count, float* y) {
    for (int64_t at = 0; at < count; at += TILE_OUTPUTS) {
        int64_t row[TILE_OUTPUTS];
        for (int c = 0; c < TILE_OUTPUTS; c++) row[c] = first + (at + c < count ? at + c : count - 1);
        if (m.bits) {
            quantized_tiles<T>(m.bits, m.weights, m.scale, m.offset, row, m.inputs, rows.x, rows.stride,
                               rows.shuffled->data(), rows.sums->data(), rows.count, y + at, BLOCK);
        } else {
            const T* weights = (const T*)m.weights;
            const T* w[TILE_OUTPUTS];
            for (int c = 0; c < TILE_OUTPUTS; c++) w[c] = weights + row[c] * m.inputs;
            tiles<T>(w, rows.x, rows.stride, rows.count, m.inputs, y + at, BLOCK);
        }
    }
    if (m.bias) {
        const T* bias = (const T*)m.bias + first;
        for (int64_t r = 0; r < rows.count; r++)
            for (int64_t c = 0; c < count; c++) y[r * BLOCK + c] += to_float(bias[c]);
    }
}

// Products of rows with a matrix of weights [O, I]: dense, its rows one after the other, or quantised.
#pragma once

#include <vector>

#include "quantized_tiles.h"

constexpr int BLOCK = BESIDE;        // outputs that are computed together
constexpr int MOST_ROWS = 64;        // rows that are
constexpr int Y_STRIDE = 2 * BLOCK;  // outputs that do not begin with a block lie in two

extern "C" struct Matrix {
    int64_t bits;  // 4 or 8 of a code; 0 for weights in the dtype of the rows
    int64_t offsets;  // whether quantised weights have any
    int64_t outputs;
    int64_t inputs;
    const void* weights;  // [O, I], or records
    const void* bias;     // [O] in the dtype of the rows, or null
};

inline Records records_of(const Matrix& m) { return {m.bits, m.offsets, m.inputs / GROUP, (const char*)m.weights}; }

// Rows [N, I] as a matrix takes them. Each thread makes its own.
template <class T> struct Rows {
    const T* x;
    int64_t stride;
    int64_t count;
    std::vector<float>* sums;

    void prepare(const Matrix& matrix) {
        if (matrix.bits) sum_groups<T>(x, stride, count, matrix.inputs / GROUP, *sums);
    }
};

// Where y[r * Y_STRIDE + c] = output first + c of row r begins, for up to BLOCK of them. ``room`` is for MOST_ROWS rows.
template <class T>
const float* outputs_of(const Matrix& m, const Rows<T>& rows, int64_t first, int64_t count, float* room) {
    float* y = room;
    if (m.bits) {
        Records records = records_of(m);
        for (int64_t block = first / BLOCK; block * BLOCK < first + count; block++)
            quantized_tiles<T>(records, block, rows.x, rows.stride, rows.sums->data(), rows.count,
                               room + (block - first / BLOCK) * BLOCK, Y_STRIDE);
        y += first % BLOCK;
    } else {
        const T* weights = (const T*)m.weights;
        for (int64_t at = 0; at < count; at += TILE_OUTPUTS) {
            const T* w[TILE_OUTPUTS];
            for (int c = 0; c < TILE_OUTPUTS; c++)
                w[c] = weights + (first + (at + c < count ? at + c : count - 1)) * m.inputs;
            tiles<T>(w, rows.x, rows.stride, rows.count, m.inputs, y + at, Y_STRIDE);
        }
    }
    if (m.bias) {
        const T* bias = (const T*)m.bias + first;
        for (int64_t r = 0; r < rows.count; r++)
            for (int64_t c = 0; c < count; c++) y[r * Y_STRIDE + c] += to_float(bias[c]);
    }
    return y;
}

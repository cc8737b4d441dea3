// Products of rows with a matrix of weights [O, I]: dense, in panels, or quantised, whose rows lie one after the other.
#pragma once

#include <algorithm>
#include <vector>

#include "panels.h"
#include "quantized.h"
#include "team.h"

constexpr int BLOCK = PANEL;   // outputs that are computed together
constexpr int MOST_ROWS = 64;  // rows that are

extern "C" struct Matrix {
    int64_t bits;  // 4 or 8 of a code; 0 for panels in the dtype of the rows
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
    std::vector<typename Packed<T>::Input>* storage;
    Packed<T> packed;

    void prepare(const Matrix& matrix) {
        if (!matrix.bits) {
            storage->resize(Packed<T>::size(count, matrix.inputs));
            packed = {storage->data(), count, steps_of<T>(matrix.inputs)};
            for (int64_t tile = 0; tile < packed.tiles(); tile++) packed.pack(tile, x, stride, matrix.inputs);
        }
        if (matrix.bits == 4) shuffle_rows<T>(x, stride, count, matrix.inputs, *shuffled);
        if (matrix.bits && matrix.offset) sum_groups<T>(x, stride, count, matrix.inputs, *sums);
    }
};

template <class T> void add_bias(const Matrix& m, int64_t first, int64_t count, int64_t rows, float* y) {
    if (!m.bias) return;
    const T* bias = (const T*)m.bias + first;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < count; c++) y[r * BLOCK + c] += to_float(bias[c]);
}

// y[r * BLOCK + c] = output first + c of row r, for up to BLOCK outputs of a quantised matrix; y has room for whole
// tiles
template <class T> void outputs_of(const Matrix& m, const Rows<T>& rows, int64_t first, int64_t count, float* y) {
    for (int64_t at = 0; at < count; at += TILE_OUTPUTS) {
        int64_t row[TILE_OUTPUTS];
        for (int c = 0; c < TILE_OUTPUTS; c++) row[c] = first + (at + c < count ? at + c : count - 1);
        quantized_tiles<T>(m.bits, m.weights, m.scale, m.offset, row, m.inputs, rows.x, rows.stride,
                           rows.shuffled->data(), rows.sums->data(), rows.count, y + at, BLOCK);
    }
    add_bias<T>(m, first, count, rows.count, y);
}

// ``use(i, n, y)`` for n panels of a dense matrix from number i on, of ``count`` whose numbers there are ``panel(i)``;
// y[(b * rows + r) * PANEL + c] is output c of the b-th of them for row r
template <class T, class Number, class Use>
void dense_outputs(const Matrix& m, const Packed<T>& x, int64_t count, Number panel, float* y, Use use) {
    auto place = [&](int64_t i) { return (const char*)m.weights + panel(i) * x.steps * STEP_BYTES; };
    each_panel<T>(count, x, place, y, [&](int64_t i, int64_t n, float* found) {
        for (int64_t b = 0; b < n; b++) {
            int64_t first = panel(i + b) * PANEL;
            add_bias<T>(m, first, std::min<int64_t>(PANEL, m.outputs - first), x.count, found + b * x.count * PANEL);
        }
        use(i, n, found);
    });
}

// the outputs of blocks ``part`` of BLOCK: ``use(first, count, y)``, y[r * BLOCK + c] as above
template <class T, class Use>
void multiply(const Matrix& matrix, const Rows<T>& rows, Team::Part part, float* y, Use use) {
    auto width = [&](int64_t first) { return std::min<int64_t>(BLOCK, matrix.outputs - first); };
    if (matrix.bits) {
        for (int64_t block = part.first; block < part.end; block++) {
            int64_t first = block * BLOCK;
            outputs_of<T>(matrix, rows, first, width(first), y);
            use(first, width(first), y);
        }
        return;
    }
    auto panel = [&](int64_t i) { return part.first + i; };
    dense_outputs<T>(matrix, rows.packed, part.end - part.first, panel, y, [&](int64_t i, int64_t n, const float* found) {
        for (int64_t b = 0; b < n; b++) {
            int64_t first = (part.first + i + b) * PANEL;
            use(first, width(first), found + b * rows.count * PANEL);
        }
    });
}

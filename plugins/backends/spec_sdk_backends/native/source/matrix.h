// Products of rows with a matrix of weights [O, I]: dense, in panels, or quantised, in records.
#pragma once

#include <algorithm>
#include <vector>

#include "panels.h"
#include "quantized_tiles.h"
#include "team.h"

constexpr int BLOCK = PANEL;   // outputs that are computed together
constexpr int MOST_ROWS = 64;  // rows that are
constexpr int Y_STRIDE = (BAND + 1) * BLOCK;  // quantised outputs of a band that do not begin with a block lie in one more
static_assert(BLOCK == BESIDE, "blocks of both kinds are shared out alike");

extern "C" struct Matrix {
    int64_t bits;  // 4, 5, 6 or 8 of a code; 0 for panels in the dtype of the rows
    int64_t offsets;  // whether quantised weights have any
    int64_t rounds;   // whether rows are rounded to 8 bits before they are multiplied with quantised weights
    int64_t outputs;
    int64_t inputs;
    const void* weights;  // panels, or records
    const void* bias;     // [O] in the dtype of the rows, or null
    const int8_t* levels;  // as records have them, or null
};

inline int64_t blocks_of(int64_t outputs) { return (outputs + BLOCK - 1) / BLOCK; }

inline Records records_of(const Matrix& m) {
    return {m.bits, m.offsets, m.inputs / GROUP, blocks_of(m.outputs), (const char*)m.weights, m.levels};
}

// Rows [N, I] as a matrix takes them. Each thread makes its own.
template <class T> struct Rows {
    const T* x;
    int64_t stride;
    int64_t count;
    std::vector<float>* sums;
    std::vector<typename Packed<T>::Input>* storage;
    RoundedRows* rounded;
    Packed<T> packed;

    void prepare(const Matrix& matrix) {
        if (!matrix.bits) {
            storage->resize(Packed<T>::size(count, matrix.inputs));
            packed = {storage->data(), count, steps_of<T>(matrix.inputs)};
            for (int64_t tile = 0; tile < packed.tiles(); tile++) packed.pack(tile, x, stride, matrix.inputs);
        }
        if (matrix.bits && matrix.rounds) round_rows<T>(x, stride, count, records_of(matrix), *rounded);
        if (matrix.bits && !matrix.rounds) sum_groups<T>(x, stride, count, records_of(matrix), *sums);
    }

    // of the tiles in which these rows are multiplied
    TileShapes shapes(const Matrix& matrix) const {
        int64_t of_tile = RowTiles(count).rows;
        if (!matrix.bits) return {packed.by_amx, of_tile, TILE_STEPS};
        return {matrix.rounds && rounded->by_amx, of_tile, GROUP / 4};
    }
};

template <class T>
void add_bias(const Matrix& m, int64_t first, int64_t count, int64_t rows, float* y, int64_t stride) {
    if (!m.bias) return;
    const T* bias = (const T*)m.bias + first;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < count; c++) y[r * stride + c] += to_float(bias[c]);
}

// ``use(block, blocks)`` for those of ``part`` that are of one band
template <class Use> void each_band(const Records& records, Team::Part part, int64_t rows, const Use& use) {
    for (int64_t block = part.first, band = records.band(rows), next; block < part.end; block = next) {
        next = std::min(part.end, (block / band + 1) * band);
        use(block, next - block);
    }
}

// Where y[r * Y_STRIDE + c] = output first + c of row r begins, for as many of a quantised matrix as a band has. ``room`` is
// for all rows.
template <class T>
const float* outputs_of(const Matrix& m, const Rows<T>& rows, int64_t first, int64_t count, float* room) {
    Records records = records_of(m);
    each_band(records, {first / BLOCK, blocks_of(first + count)}, rows.count, [&](int64_t block, int64_t blocks) {
        float* to = room + (block - first / BLOCK) * BLOCK;
        if (m.rounds)
            rounded_tiles(records, block, blocks, *rows.rounded, rows.count, to, Y_STRIDE);
        else
            quantized_tiles<T>(records, block, blocks, rows.x, rows.stride, rows.sums->data(), rows.count, to, Y_STRIDE);
    });
    float* y = room + first % BLOCK;
    add_bias<T>(m, first, count, rows.count, y, Y_STRIDE);
    return y;
}

// ``use(i, n, y)`` for n panels of a dense matrix from number i on, of ``count`` whose numbers there are ``panel(i)``;
// y[(b * lines + r) * PANEL + c] is output c of the b-th of them for row r
template <class T, class Number, class Use>
void dense_outputs(const Matrix& m, const Packed<T>& x, int64_t count, const Number& panel, float* y,
                   const Use& use) {
    auto place = [&](int64_t i) { return (const char*)m.weights + panel(i) * x.steps * STEP_BYTES; };
    each_panel<T>(count, x, place, y, [&](int64_t i, int64_t n, float* found) {
        for (int64_t b = 0; b < n; b++) {
            int64_t first = panel(i + b) * PANEL;
            add_bias<T>(m, first, std::min<int64_t>(PANEL, m.outputs - first), x.count, found + b * x.lines() * PANEL,
                        PANEL);
        }
        use(i, n, found);
    });
}

// the outputs of blocks ``part`` of BLOCK: ``use(first, count, y, stride)``, y[r * stride + c] as above
template <class T, class Use>
void multiply(const Matrix& matrix, const Rows<T>& rows, Team::Part part, float* y, const Use& use) {
    auto width = [&](int64_t first) { return std::min<int64_t>(BLOCK, matrix.outputs - first); };
    TileShapes shapes = rows.shapes(matrix);
    if (matrix.bits) {
        each_band(records_of(matrix), part, rows.count, [&](int64_t block, int64_t blocks) {
            int64_t first = block * BLOCK, count = std::min(blocks * BLOCK, matrix.outputs - first);
            const float* found = outputs_of<T>(matrix, rows, first, count, y);
            for (int64_t c = 0; c < count; c += BLOCK) use(first + c, width(first + c), found + c, int64_t(Y_STRIDE));
        });
        return;
    }
    auto panel = [&](int64_t i) { return part.first + i; };
    dense_outputs<T>(matrix, rows.packed, part.end - part.first, panel, y, [&](int64_t i, int64_t n, const float* found) {
        for (int64_t b = 0; b < n; b++) {
            int64_t first = (part.first + i + b) * PANEL;
            use(first, width(first), found + b * rows.packed.lines() * PANEL, int64_t(PANEL));
        }
    });
}

// y [rows, O] = x Wᵀ + b in one call, by all threads.
#pragma once

#include "block.h"

template <class T> void quantized_product(const Matrix& matrix, const T* x, int64_t stride, int64_t rows, T* y, int threads) {
#pragma omp parallel num_threads(threads)
    {
        thread_local Own<T> own;
        for (int64_t at = 0; at < rows; at += MOST_ROWS) {
            int64_t count = std::min<int64_t>(MOST_ROWS, rows - at);
            Rows<T> part = own.rows(x + at * stride, stride, count, matrix);
            multiply<T>(matrix, part, own.y.data(), [&](int64_t first, int64_t width, const float* found, int64_t y_stride) {
                for (int64_t r = 0; r < count; r++)
                    for (int64_t c = 0; c < width; c++)
                        y[(at + r) * matrix.outputs + first + c] = rounded<T>(found[r * y_stride + c]);
            });
        }
    }
}

constexpr int64_t PACKED_ROWS = 240;  // that stay in the second-level cache while all outputs are computed
constexpr int64_t ROWS_ALONE = 96;    // of a thread that makes reading all weights worth its while

template <class T>
void dense_product(const Matrix& matrix, const T* x, int64_t stride, int64_t rows, T* y, int threads) {
    thread_local std::vector<typename Packed<T>::Input> kept;
    if (!rows) return;
    int64_t steps = steps_of<T>(matrix.inputs);
    bool apart = rows >= threads * ROWS_ALONE;  // a thread's own rows, or its own outputs
    int64_t unit = apart ? threads : 1, chunks = (rows + unit * PACKED_ROWS - 1) / (unit * PACKED_ROWS) * unit;
    int64_t of_chunk = Packed<T>::size((rows + chunks - 1) / chunks, matrix.inputs);
    kept.resize(chunks * of_chunk);
    auto* packed = kept.data();
    Team team;
#pragma omp parallel num_threads(threads)
    {
        thread_local Own<T> own;
        int64_t thread = omp_get_thread_num(), size = omp_get_num_threads(), item = 0;
        auto start = [&](int64_t chunk) { return rows * chunk / chunks; };
        auto rows_of = [&](int64_t chunk) {
            int64_t at = start(chunk);
            Rows<T> made{x + at * stride, stride, start(chunk + 1) - at};
            made.packed = {packed + chunk * of_chunk, made.count, steps};
            return made;
        };
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            Rows<T> part = rows_of(chunk);
            for (int64_t tile = 0; tile < part.packed.tiles(); tile++)
                if ((apart ? chunk : item++) % size == thread) part.packed.pack(tile, part.x, stride, matrix.inputs);
        }
        if (!apart) team.meet();
        Team::Part all{0, panels_of(matrix.outputs)}, share = apart ? all : Team::part_of(all.end);
        for (int64_t chunk = apart ? thread : 0; chunk < chunks; chunk += apart ? size : 1) {
            Rows<T> part = rows_of(chunk);
            own.y.resize((part.count + RowTiles::MOST) * PANEL * MOST_PANELS);
            multiply<T>(matrix, part, share, own.y.data(), [&](int64_t first, int64_t width, const float* found, int64_t y_stride) {
                T* to = y + start(chunk) * matrix.outputs + first;
                for (int64_t r = 0; r < part.count; r++)
                    for (int64_t c = 0; c < width; c++) to[r * matrix.outputs + c] = rounded<T>(found[r * y_stride + c]);
            });
        }
    }
}

template <class T> void product(const Matrix& matrix, const T* x, int64_t stride, int64_t rows, T* y, int threads) {
    if (matrix.bits)
        quantized_product<T>(matrix, x, stride, rows, y, threads);
    else
        dense_product<T>(matrix, x, stride, rows, y, threads);
}

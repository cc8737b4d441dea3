// Products with quantised weights. Each output has a lane of its own, so a sum is in one order in every tile: over the
// inputs of a group, then scale · Σ code·x and offset · Σ x are added to the groups before. Codes are exact in bfloat16
// and float32, and rows are taken as they are, so nothing is rounded but the sums, in float32.
#pragma once

#include "quantized.h"

#if WITH_AVX512 && defined(__AVX512VBMI__)
#include "quantized_avx512.h"
#else
#include "quantized_plain.h"
#endif

// y[r * y_stride + o] = product of output o of ``blocks`` blocks from ``block`` on with row r
template <class T>
void quantized_tiles(const Records& records, int64_t block, int64_t blocks, const T* x, int64_t stride,
                     const float* sums, int64_t rows, float* y, int64_t y_stride) {
    for (int64_t r = 0; r < rows; r += QUANTIZED_ROWS) {
        int64_t left = rows - r < QUANTIZED_ROWS ? rows - r : QUANTIZED_ROWS;
        with_count<QUANTIZED_ROWS>(left, [&](auto count) {
            constexpr int R = decltype(count)::value;
            const T* from = x + r * stride;
            const float* of = sums + r * records.groups;
            float* to = y + r * y_stride;
            int64_t b = 0;
            if constexpr (R <= QUANTIZED_ROWS / 2)
                for (; b + 2 <= blocks; b += 2)
                    quantized_tile<T, 2, R>(records, block + b, from, stride, of, to + b * BESIDE, y_stride, r == 0);
            for (; b < blocks; b++)
                quantized_tile<T, 1, R>(records, block + b, from, stride, of, to + b * BESIDE, y_stride, r == 0);
        });
    }
}

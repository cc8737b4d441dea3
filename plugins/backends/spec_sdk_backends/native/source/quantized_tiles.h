// Products with quantised weights. Each output has a lane of its own, so a sum is in one order in every tile: over the
// inputs of a group, then scale · Σ code·x and offset · Σ x are added to the groups before. Codes are exact in bfloat16
// and float32, and rows are taken as they are, so nothing is rounded but the sums, in float32.
#pragma once

#include "quantized.h"

#include "rounded_rows.h"
#if WITH_ROUNDED_AVX512
#include "quantized_avx512.h"
#else
#include "quantized_plain.h"
#endif
#if WITH_ROUNDED_AVX512
#include "rounded_avx512.h"
#include "rounded_amx.h"
#else
#include "rounded_plain.h"
#endif

// ``use(stretch, b, r, count, fetch)`` for tiles of rows and stretches of ``blocks`` of a band: whose stretch it is, the
// first row's number, how many rows as a type, and what is fetched
template <class Use>
void each_tile(const Records& records, int64_t block, int64_t blocks, int64_t rows, const Use& use) {
    each_stretch(records, block, [&](const Stretch& stretch) {
        for (int64_t r = 0; r < rows; r += QUANTIZED_ROWS) {
            int64_t left = rows - r < QUANTIZED_ROWS ? rows - r : QUANTIZED_ROWS;
            Fetch fetch = r ? Fetch::NOTHING : left == rows ? Fetch::ONCE : Fetch::KEPT;
            with_count<QUANTIZED_ROWS>(left, [&](auto count) {
                Stretch of = stretch;
                for (int64_t b = 0; b < blocks; b++, of.first += of.bytes()) use(of, b, r, count, fetch);
            });
        }
    });
}

// y[r * y_stride + b * BESIDE + o] = product of output o of block ``block + b`` with row r, for ``blocks`` of a band
template <class T>
void quantized_tiles(const Records& records, int64_t block, int64_t blocks, const T* x, int64_t stride,
                     const float* sums, int64_t rows, float* y, int64_t y_stride) {
    each_tile(records, block, blocks, rows, [&](const Stretch& stretch, int64_t b, int64_t r, auto count, Fetch fetch) {
        constexpr int R = decltype(count)::value;
        const float* of_rows = sums + r * records.groups * records.parts();
        auto tile = records.levels      ? quantized_tile<T, BY_LEVELS, R>
                    : records.bits == 4 ? quantized_tile<T, 4, R>
                    : records.bits == 5 ? quantized_tile<T, 5, R>
                    : records.bits == 6 ? quantized_tile<T, 6, R>
                                        : quantized_tile<T, 8, R>;
        tile(records, stretch, x + r * stride, stride, of_rows, y + r * y_stride + b * BESIDE, y_stride, fetch);
    });
}

// the same with rounded rows
inline void rounded_tiles(const Records& records, int64_t block, int64_t blocks, const RoundedRows& x, int64_t rows,
                          float* y, int64_t y_stride) {
#if WITH_AMX
    if (x.by_amx) {
        auto tiles = records.levels      ? rounded_tiles_by_amx<BY_LEVELS>
                     : records.bits == 4 ? rounded_tiles_by_amx<4>
                                         : rounded_tiles_by_amx<8>;
        each_stretch(records, block, [&](Stretch stretch) {
            for (int64_t b = 0; b < blocks; b++, stretch.first += stretch.bytes())
                tiles(records, stretch, x, rows, y + b * BESIDE, y_stride);
        });
        return;
    }
#endif
    each_tile(records, block, blocks, rows, [&](const Stretch& stretch, int64_t b, int64_t r, auto count, Fetch fetch) {
        constexpr int R = decltype(count)::value;
        auto tile = records.levels      ? rounded_tile<BY_LEVELS, R>
                    : records.bits == 4 ? rounded_tile<4, R>
                    : records.bits == 5 ? rounded_tile<5, R>
                    : records.bits == 6 ? rounded_tile<6, R>
                                        : rounded_tile<8, R>;
        tile(records, stretch, x, r, y + r * y_stride + b * BESIDE, y_stride, fetch);
    });
}

// Products of rounded rows with quantised weights in AMX's tiles: sums over a group in whole numbers, as elsewhere, and
// the same operations in float32 in the same order. So a row gets the same bits as from other instructions.
#pragma once

#include <algorithm>

#include "rounded_avx512.h"

#if WITH_AMX

constexpr int MOST_GROUPS = 32;           // that are unpacked at once
constexpr int UNPACKED = GROUP * BESIDE;  // bytes of a group
constexpr int64_t UNPACKED_AHEAD = 3;     // groups, so that what was just written is not read at once
constexpr int AHEAD_GROUPS = 2;           // whose sums are on their way
constexpr int SUMS_KEPT = 4;              // of so many groups

// a block's groups, unpacked for all row tiles
struct alignas(64) Unpacked {
    int8_t codes[MOST_GROUPS][UNPACKED];
    float scales[MOST_GROUPS][BESIDE], offsets[MOST_GROUPS][BESIDE];

    template <int BITS> __attribute__((noinline)) void unpack(const Records& records, const char* record, int64_t to) {
        using B = Bytes<BITS>;
        int8_t* bytes = codes[to];
        const typename B::Table table(records);
        const __m512i above = _mm512_set1_epi8(char(BITS == BY_LEVELS ? 128 : records.middle()));
        for (int line = 0; line < Codes<BITS>::LINES; line++) {
            if constexpr (BITS != 8) {
                __m512i halves[B::VECTORS];
                B::unpack(record, line, table, halves);
                for (int v = 0; v < B::VECTORS; v++, bytes += 64) _mm512_store_si512(bytes, _mm512_sub_epi8(halves[v], above));
            } else {
                // those with a sign have -1 - code below it
                __m512i found = _mm512_loadu_si512(record + line * 64);
                __mmask64 negative = _mm512_movepi8_mask(found);
                __m512i inverted = _mm512_xor_si512(found, _mm512_set1_epi8(0x7F));
                _mm512_store_si512(bytes, _mm512_mask_mov_epi8(found, negative, inverted));
                bytes += 64;
            }
        }
        const __m256i* factors = (const __m256i*)(record + records.codes());
        store(scales[to], _mm512_cvtph_ps(_mm256_loadu_si256(factors)));
        if (records.offsets) store(offsets[to], _mm512_cvtph_ps(_mm256_loadu_si256(factors + 1)));
    }
};

// total[r] += the products of a group, whose sums in whole numbers are ``whole``, with R rows
template <int R, bool OFFSETS>
inline __attribute__((always_inline)) void add_group(const int32_t (&whole)[RowTiles::MOST][BESIDE],
                                                     const float* scale_of, const float* offset_of, const float* scales,
                                                     const float* sums, Lanes (&total)[R]) {
    Lanes scale = load(scale_of);
    UNROLLED for (int r = 0; r < R; r++) {
        Lanes sum = _mm512_cvtepi32_ps(_mm512_load_si512(whole[r]));
        total[r] = fused(_mm512_mul_ps(scale, all(scales[r])), sum, total[r]);
    }
    if (OFFSETS) {
        Lanes offset = load(offset_of);
        UNROLLED for (int r = 0; r < R; r++) total[r] = fused(offset, all(sums[r]), total[r]);
    }
}

// y[r * y_stride + o] += products of ``count`` groups from ``start`` on with R rows from row ``first`` on, or anew.
// ``before(g)`` is called for each group before it is multiplied.
template <int R, bool OFFSETS, class Before>
__attribute__((noinline)) void add_groups(const Unpacked& weights, const RoundedRows& rows, int64_t first,
                                          int64_t start, int64_t count, float* y, int64_t y_stride,
                                          const Before& before) {
    alignas(64) int32_t wholes[SUMS_KEPT][RowTiles::MOST][BESIDE];
    Lanes total[R];
    UNROLLED for (int r = 0; r < R; r++) total[r] = start ? load(y + r * y_stride) : zeros();
    int64_t at = start * rows.count + first, step = rows.count;
    const int8_t* codes = rows.codes.data() + at * GROUP;
    const float *scales = rows.scales.data() + at, *sums = rows.sums.data() + at;
    for (int64_t g = 0; g < count + AHEAD_GROUPS; g++) {
        if (g < count) {
            before(g);
            load_tile<4>(codes + g * step * GROUP, GROUP);
            load_tile<6>(weights.codes[g], TILE_BYTES);
            zero_tile<0>();
            add_bytes<0, 4, 6>();
            store_tile<0>(wholes[g % SUMS_KEPT], TILE_BYTES);
        }
        if (int64_t of = g - AHEAD_GROUPS; of >= 0)
            add_group<R, OFFSETS>(wholes[of % SUMS_KEPT], weights.scales[of], weights.offsets[of], scales + of * step,
                                  sums + of * step, total);
    }
    UNROLLED for (int r = 0; r < R; r++) store(y + r * y_stride, total[r]);
}

// all rows with a stretch of a block; TileShapes are made for ``rows`` and a group's depth
template <int BITS>
void rounded_tiles_by_amx(const Records& records, const Stretch& stretch, const RoundedRows& x, int64_t rows, float* y,
                          int64_t y_stride) {
    Unpacked weights;
    RowTiles tiles(rows);
    int64_t size = records.size(), all = stretch.end - stretch.start, parts = (all + MOST_GROUPS - 1) / MOST_GROUPS;
    for (int64_t part = 0; part < parts; part++) {
        int64_t start = stretch.start + all * part / parts, end = stretch.start + all * (part + 1) / parts;
        int64_t count = end - start;
        const char* record = stretch.at(start);
        for (int64_t tile = 0; tile < tiles.count; tile++) {
            int64_t first = tile * tiles.rows;
            auto unpack = [&](int64_t g) {
                const char* of_group = record + g * size;
                fetch_ahead(of_group, size, Fetch::KEPT);
                weights.unpack<BITS>(records, of_group, g);
            };
            if (!tile)
                for (int64_t g = 0; g < std::min(UNPACKED_AHEAD, count); g++) unpack(g);
            auto before = [&](int64_t g) {
                if (!tile && g + UNPACKED_AHEAD < count) unpack(g + UNPACKED_AHEAD);
            };
            with_count<RowTiles::MOST>(std::min(tiles.rows, rows - first), [&](auto count_of_rows) {
                constexpr int R = decltype(count_of_rows)::value;
                if (records.offsets)
                    add_groups<R, true>(weights, x, first, start, count, y + first * y_stride, y_stride, before);
                else
                    add_groups<R, false>(weights, x, first, start, count, y + first * y_stride, y_stride, before);
            });
        }
    }
}

#endif

// Tiles of products of rounded rows with quantised weights for AVX-512: sums over a group in whole numbers, exactly.
#pragma once

#include "quantized_avx512.h"
#include "rounded_rows.h"

// A line of codes as vectors of unsigned bytes, each multiplied with one dword of a row's codes.
template <int FORM> struct Bytes;

struct NoTable {
    NoTable() = default;
    explicit NoTable(const Records&) {}
};

template <> struct Bytes<4> {
    static constexpr int VECTORS = 2;
    using Table = NoTable;
    static void unpack(const char* record, int line, const NoTable&, __m512i (&bytes)[VECTORS]) {
        const __m512i half = _mm512_set1_epi8(15);
        __m512i codes = _mm512_loadu_si512(record + line * 64);
        bytes[0] = _mm512_and_si512(codes, half);
        bytes[1] = _mm512_and_si512(_mm512_srli_epi32(codes, 4), half);
    }
};

// levels with 128 added
template <> struct Bytes<BY_LEVELS> {
    static constexpr int VECTORS = 2;
    struct Table {
        __m512i bytes;
        explicit Table(const Records& records)
            : bytes(_mm512_xor_si512(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)records.levels)),
                                     _mm512_set1_epi8(char(0x80)))) {}
    };
    static void unpack(const char* record, int line, const Table& table, __m512i (&bytes)[VECTORS]) {
        Bytes<4>::unpack(record, line, NoTable(), bytes);
        for (int v = 0; v < VECTORS; v++) bytes[v] = _mm512_shuffle_epi8(table.bytes, bytes[v]);
    }
};

template <int BITS> struct BytesWithUpper {
    static constexpr int VECTORS = 2;
    using Table = NoTable;
    static void unpack(const char* record, int line, const NoTable&, __m512i (&bytes)[VECTORS]) {
        bytes_with_upper<BITS>(record, line, bytes);
    }
};

template <> struct Bytes<5> : BytesWithUpper<5> {};
template <> struct Bytes<6> : BytesWithUpper<6> {};

template <> struct Bytes<8> {
    static constexpr int VECTORS = 1;
    using Table = NoTable;
    static void unpack(const char* record, int line, const NoTable&, __m512i (&bytes)[VECTORS]) {
        __m512i codes = _mm512_loadu_si512(record + line * 64);
        // 128 + code, and 255 - byte = 128 + code for those with a sign
        bytes[0] = _mm512_mask_sub_epi8(_mm512_xor_si512(codes, _mm512_set1_epi8(char(0x80))),
                                        _mm512_movepi8_mask(codes), _mm512_set1_epi8(char(0xFF)), codes);
    }
};

// R rows from row ``first`` on, whose products with the groups before are in y; records behind are fetched meanwhile
template <int BITS, int R>
void rounded_tile(const Records& records, const Stretch& stretch, const RoundedRows& rows, int64_t first, float* y,
                  int64_t y_stride, Fetch fetch) {
    using B = Bytes<BITS>;
    constexpr int PARTS = scales_of_group(BITS), LINES = Codes<BITS>::LINES;
    // what was added to each code
    const int32_t above = BITS == 8 || BITS == BY_LEVELS ? 128 : int32_t(records.middle());
    const typename B::Table table(records);
    // one sum of few rows would wait for itself
    constexpr int CHAINS = PARTS > 1 ? PARTS : R < 4 ? 2 : 1;
    int64_t size = records.size();
    const char* record = stretch.first;
    const int8_t* codes = rows.codes.data() + first * GROUP;
    const float *scales = rows.scales.data() + first, *sums = rows.sums.data() + first;
    const int32_t* wholes = rows.wholes.data() + first;
    Lanes total[R];
    for (int r = 0; r < R; r++) total[r] = stretch.start ? load(y + r * y_stride) : zeros();
    for (int64_t g = stretch.start; g < stretch.end; g++, record += size) {
        int64_t at = g * rows.count;
        fetch_ahead(record, size, fetch);
        __m512i part[R][CHAINS];
        for (int r = 0; r < R; r++)
            for (int c = 0; c < CHAINS; c++) part[r][c] = _mm512_setzero_si512();
        UNROLLED for (int line = 0; line < LINES; line++) {
            __m512i bytes[B::VECTORS];
            B::unpack(record, line, table, bytes);
            UNROLLED for (int v = 0; v < B::VECTORS; v++) {
                const int8_t* four = codes + at * GROUP + (line * B::VECTORS + v) * 4;
                UNROLLED for (int r = 0; r < R; r++) {
                    int32_t dword;
                    std::memcpy(&dword, four + r * GROUP, sizeof dword);
                    __m512i& sum = part[r][PARTS > 1 ? line * PARTS / LINES : (line * B::VECTORS + v) % CHAINS];
                    sum = _mm512_dpbusd_epi32(sum, bytes[v], _mm512_set1_epi32(dword));
                }
            }
        }
        const __m256i* factors = (const __m256i*)(record + records.codes());
        for (int p = 0; p < PARTS; p++) {
            Lanes scale = _mm512_cvtph_ps(_mm256_loadu_si256(factors + p));
            for (int r = 0; r < R; r++) {
                __m512i whole = CHAINS > PARTS ? _mm512_add_epi32(part[r][0], part[r][CHAINS - 1]) : part[r][p];
                // behind the sum: before it, as many vectors as there are rows would be written to memory first
                if (above)
                    whole = _mm512_sub_epi32(whole, _mm512_set1_epi32(above * wholes[at * PARTS + p * rows.count + r]));
                total[r] = fused(_mm512_mul_ps(scale, all(scales[at + r])), _mm512_cvtepi32_ps(whole), total[r]);
            }
            if (records.offsets) {
                Lanes offset = _mm512_cvtph_ps(_mm256_loadu_si256(factors + PARTS + p));
                const float* of_rows = sums + at * PARTS + p * rows.count;
                for (int r = 0; r < R; r++) total[r] = fused(offset, all(of_rows[r]), total[r]);
            }
        }
    }
    for (int r = 0; r < R; r++) store(y + r * y_stride, total[r]);
}

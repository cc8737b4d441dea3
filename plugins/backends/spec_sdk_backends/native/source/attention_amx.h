// A span of keys for some rows in bfloat16 by AMX tiles: sums of 32 products at a time for 16 queries x 16 columns.
//
// A key's weight is the sum of two bfloat16, 16 bits. A result of a tile depends on its own row and column alone. The sum
// over a row's keys goes in steps of 32 key numbers; rows that have the same keys in a step take it together: behind the
// prefix those of one path.
//
// Layout of tiles: A [16 queries][16 pairs], B [16 pairs][16 columns], of bfloat16 pairs. Which inputs make a pair does
// not matter as long as both agree: numbers i and i + 16 of a step's keys, neighbours of a head's numbers.
#pragma once

#include <vector>

#include "amx.h"
#include "attention_scores.h"

#if WITH_AMX

constexpr int TILE_QUERIES = 16;
constexpr int STEP = 32;         // inputs that a tile sums up
constexpr int COLUMNS = 4;       // tiles of sums at once
constexpr int WEIGHT_PARTS = 2;  // tiles of A that make one of weights
constexpr int64_t TILE = TILE_QUERIES * TILE_BYTES;  // bytes

// f(the number of each of N columns of tiles as a type)
template <int N, class F> inline __attribute__((always_inline)) void for_columns(F f) {
    f(Count<0>());
    if constexpr (N > 1) f(Count<1>());
    if constexpr (N > 2) f(Count<2>());
    if constexpr (N > 3) f(Count<3>());
}

// to [16][N tiles] = from + A B, step after step; from null: 0. A: [steps][PARTS] tiles, the smaller part first; B: [N]
// tiles, steps so far apart.
template <int PARTS, int N>
inline void tile_products(const char* a, const char* b, int64_t b_step, int64_t steps, const float* from,
                          int64_t from_stride, float* to, int64_t stride) {
    auto begin = [&](auto c) {
        constexpr int C = decltype(c)::value;
        if (from)
            load_tile<C>(from + C * 16, from_stride * 4);
        else
            zero_tile<C>();
    };
    auto add = [&](auto c) {
        constexpr int C = decltype(c)::value;
        load_tile<6>(b + C * TILE, TILE_BYTES);
        if constexpr (PARTS > 1) add_bf16<C, 5, 6>();
        add_bf16<C, 4, 6>();
    };
    for_columns<N>(begin);
    for (int64_t s = 0; s < steps; s++, a += PARTS * TILE, b += b_step) {
        load_tile<4>(a, TILE_BYTES);
        if constexpr (PARTS > 1) load_tile<5>(a + TILE, TILE_BYTES);
        for_columns<N>(add);
    }
    for_columns<N>([&](auto c) { store_tile<decltype(c)::value>(to + decltype(c)::value * 16, stride * 4); });
}

template <class T> class AmxSpan {
  public:
    static constexpr int64_t PREPARING = 20;  // what reading and packing keys and values costs, in queries
    static constexpr int64_t UNIT = TILE_QUERIES;

    explicit AmxSpan(int64_t dim) : D(dim), _steps((dim + STEP - 1) / STEP), _columns(dim / 16) {
        constexpr int64_t QUERY_TILES = MOST_QUERIES / TILE_QUERIES;
        int64_t sizes[] = {QUERY_TILES * _steps * TILE,
                           COLUMNS * _steps * TILE,
                           SPAN / STEP * _columns * TILE,
                           QUERY_TILES * SPAN / STEP * WEIGHT_PARTS * TILE,
                           MOST_QUERIES * SPAN * 4,
                           MOST_QUERIES * WIDTH * 4,
                           MOST_QUERIES * D * 4,
                           TILE_QUERIES * WIDTH * 4};
        char** parts[] = {&_q, &_k, &_v, &_w, (char**)&_score, (char**)&_own, (char**)&_sum, (char**)&_part};
        int64_t size = 64;
        for (int64_t part : sizes) size += part;
        thread_local std::vector<char> kept;
        if (kept.size() < size_t(size)) kept.resize(size);
        char* at = (char*)((uintptr_t(kept.data()) + 63) / 64 * 64);
        for (int i = 0; i < 8; i++) *parts[i] = at, at += sizes[i];
    }

    // what the span gives each query of the piece; ``to(n, h)`` numbers the results. same: it has the queries of the
    // piece before
    template <class To> void run(const Piece<T, bf16>& piece, bool same, Span* spans, float* sums, To to) {
        if (!same) pack_queries(piece);
        all_scores(piece, *this, _score, _own);
        int64_t last = 0, joint = piece.common / STEP;
        for (int64_t n = 0; n < piece.count; n++) {
            last = std::max(last, (piece.end[n] + STEP - 1) / STEP);
            for (int64_t h = 0; h < piece.group; h++)
                spans[to(n, h)] =
                    weights(piece.heads, _score + (n * piece.group + h) * SPAN, piece.hidden[n], piece.end[n]);
        }
        for (int64_t q = 0; q < piece.queries(); q++) pack_weights(q);
        for (int64_t s = 0; s < joint; s++) pack_values(s, STEP, [&](int64_t i) { return prefix_value(piece, s, i); });
        for (int64_t t = 0; t < tiles(piece); t++) add_values(t, 0, joint, false, 0, TILE_QUERIES);
        for (int64_t s = joint; s < last; s++) add_paths(piece, s);
        for (int64_t n = 0; n < piece.count; n++)
            for (int64_t h = 0; h < piece.group; h++)
                std::memcpy(sums + to(n, h) * D, _sum + (n * piece.group + h) * D, D * sizeof(float));
    }

    void scores(const Piece<T, bf16>& piece, const bf16* key, int64_t count, float* to, int64_t stride,
                const bf16* ahead) {
        int64_t columns = (count + 15) / 16, step = columns * TILE;
        Fetching<bf16> fetch(key, ahead, D);
        for (int64_t c = 0; c < columns; c++) {
            const float* of[16];
            for (int k = 0; k < 16; k++) of[k] = (const float*)(key + std::min(c * 16 + k, count - 1) * D);
            for (int64_t d = 0; d < D; d += STEP)
                for (int i = 0; i < 16; i += 4) {
                    Lanes pairs[4] = {zeros(), zeros(), zeros(), zeros()};
                    if (d + 2 * i < D) {
                        fetch(c * 16, d + 2 * i);
                        four_across(of, d / 2 + i, pairs);
                    }
                    for (int k = 0; k < 4; k++)
                        _mm512_store_ps(_k + d / STEP * step + c * TILE + (i + k) * TILE_BYTES, pairs[k]);
                }
        }
        with_count<COLUMNS>(columns, [&](auto n) {
            for (int64_t t = 0; t < tiles(piece); t++)
                tile_products<1, decltype(n)::value>(_q + t * _steps * TILE, _k, step, _steps, nullptr, 0,
                                                     to + t * TILE_QUERIES * stride, stride);
        });
    }

  private:
    static_assert(WIDTH == COLUMNS * 16);

    // the upper halves of lanes: a's are the lower ones of the result
    static __m512i upper_halves(Lanes a, Lanes b) {
        __m512i low = _mm512_srli_epi32(_mm512_castps_si512(a), 16);
        return _mm512_or_si512(low, _mm512_castps_si512(second_of(b)));
    }

    static int64_t tiles(const Piece<T, bf16>& piece) { return (piece.queries() + TILE_QUERIES - 1) / TILE_QUERIES; }

    const bf16* prefix_value(const Piece<T, bf16>& piece, int64_t s, int64_t i) const {
        return piece.values + (piece.start + s * STEP + i) * D;
    }

    void pack_queries(const Piece<T, bf16>& piece) {
        for (int64_t n = 0; n < piece.count; n++)
            for (int64_t h = 0; h < piece.group; h++) {
                int64_t at = n * piece.group + h;
                const T* q = piece.q + n * piece.q_stride + h * D;
                char* to = _q + at / TILE_QUERIES * _steps * TILE + at % TILE_QUERIES * TILE_BYTES;
                for (int64_t s = 0; s < _steps; s++) {
                    Lanes first = load(q + s * STEP), second = D - s * STEP > 16 ? load(q + s * STEP + 16) : zeros();
                    _mm512_store_si512(to + s * TILE, (__m512i)_mm512_cvtne2ps_pbh(second, first));
                }
            }
    }

    // rows of A
    void pack_weights(int64_t q) {
        char* to = _w + q / TILE_QUERIES * (SPAN / STEP) * WEIGHT_PARTS * TILE + q % TILE_QUERIES * TILE_BYTES;
        for (int64_t j = 0; j < SPAN; j += STEP, to += WEIGHT_PARTS * TILE) {
            Lanes a = load(_score + q * SPAN + j), b = load(_score + q * SPAN + j + 16);
            _mm512_store_si512(to, upper_halves(a, b));
            _mm512_store_si512(to + TILE, upper_halves(a - second_of(a), b - second_of(b)));
        }
    }

    // the values of a step's first ``count`` keys as tiles of B, zeros for the others
    template <class Value> void pack_values(int64_t s, int64_t count, Value value) {
        char* to = _v + s * _columns * TILE;
        for (int64_t i = 0; i < STEP / 2; i++) {
            const bf16 *a = i < count ? value(i) : nullptr, *b = i + STEP / 2 < count ? value(i + STEP / 2) : nullptr;
            for (int64_t c = 0; c < _columns; c++)
                _mm512_store_si512(to + c * TILE + i * TILE_BYTES, upper_halves(a ? load(a + c * 16) : zeros(),
                                                                              b ? load(b + c * 16) : zeros()));
        }
    }

    // sums of tile t's queries first … end - 1 += the values of so many steps; not ``more``: the sums begin there
    void add_values(int64_t t, int64_t step, int64_t steps, bool more, int64_t first, int64_t end) {
        const char* a = _w + (t * (SPAN / STEP) + step) * WEIGHT_PARTS * TILE;
        bool whole = first == 0 && end == TILE_QUERIES;
        for (int64_t c = 0; c < _columns; c += COLUMNS) {
            int64_t columns = std::min<int64_t>(COLUMNS, _columns - c), stride = _columns * TILE;
            float* sum = _sum + t * TILE_QUERIES * D + c * 16;
            with_count<COLUMNS>(columns, [&](auto n) {
                tile_products<WEIGHT_PARTS, decltype(n)::value>(
                    a, _v + step * stride + c * TILE, stride, steps, more ? sum : nullptr, D,
                    whole ? sum : _part, whole ? D : WIDTH);
            });
            for (int64_t q = first; q < end && !whole; q++)
                std::memcpy(sum + q * D, _part + q * WIDTH, columns * 64);
        }
    }

    // a step that has keys behind the prefix: rows whose keys are the same, as far as they go, take it together
    void add_paths(const Piece<T, bf16>& piece, int64_t s) {
        int64_t from = s * STEP;
        for (int64_t n = 0, next; n < piece.count; n = next) {
            int64_t longest = n;
            for (next = n + 1; next < piece.count && piece.alike(longest, next, from, from + STEP); next++)
                if (piece.end[next] > piece.end[longest]) longest = next;
            auto value = [&](int64_t i) { return piece.values + piece.column(longest, from + i) * D; };
            int64_t count = std::min<int64_t>(STEP, piece.end[longest] - from);
            // a hidden value counts 0 times, which is 0 of a number only
            for (int64_t i = 0; i < count && next > n + 1; i++)
                if (!finite(value(i), D)) next = n + 1, longest = n;
            count = std::min<int64_t>(STEP, piece.end[longest] - from);
            if (count <= 0) continue;
            pack_values(s, count, value);
            int64_t q = n * piece.group, end = next * piece.group;
            for (int64_t t = q / TILE_QUERIES; t * TILE_QUERIES < end; t++)
                add_values(t, s, 1, true, std::max<int64_t>(0, q - t * TILE_QUERIES),
                           end == piece.queries() ? TILE_QUERIES : std::min<int64_t>(TILE_QUERIES, end - t * TILE_QUERIES));
        }
    }

    int64_t D, _steps, _columns;
    char *_q, *_k, *_v, *_w;               // tiles of queries, keys, values, weights
    float *_score, *_own, *_sum, *_part;
};
#endif

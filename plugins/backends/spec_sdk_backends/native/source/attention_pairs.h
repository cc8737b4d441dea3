// A span of keys in bfloat16 for some rows, by sums of two products at a time (AVX-512 BF16).
//
// Queries and weights are rounded to bfloat16, and a weight is divided by the sum of the rounded ones. Pairs are
// neighbours of a head's numbers in a score, and keys 2i and 2i + 1 of a span in an output. A sum stays in a lane; the
// pairs of keys are added in order, also where one of them is committed and the other a node of a tree.
//
// Values of two keys lie as [pairs][D], in units of 32 numbers: numbers 8l … 8l + 3 of the four eights, then the others.
#pragma once

#include <vector>

#include "attention_scores.h"

#if WITH_AVX512 && defined(__AVX512BF16__)
#define WITH_PAIRS 1

template <class T> class PairSpan {
  public:
    static constexpr int64_t PREPARING = 3;  // what reading and turning keys costs, in queries
    static constexpr int64_t UNIT = 1;

    explicit PairSpan(int64_t dim) : D(dim), _width((dim + UNIT_OF_VALUES - 1) / UNIT_OF_VALUES * UNIT_OF_VALUES) {
        int64_t sizes[] = {MOST_QUERIES * D / 2,     D / 2 * WIDTH,      MOST_QUERIES * SPAN, MOST_QUERIES * WIDTH,
                           MOST_QUERIES * SPAN / 2,  SPAN / 2 * _width,  MOST_QUERIES * _width};
        float** parts[] = {(float**)&_q, &_turned, &_score, &_own, (float**)&_weights, &_values, &_sum};
        int64_t size = 16;
        for (int64_t part : sizes) size += part;
        thread_local std::vector<float> kept;
        if (kept.size() < size_t(size)) kept.resize(size);
        float* at = (float*)((uintptr_t(kept.data()) + 63) / 64 * 64);
        for (int i = 0; i < 7; i++) *parts[i] = at, at += (sizes[i] + 15) / 16 * 16;
    }

    // what the span gives each query of the piece; ``to(n, h)`` numbers the results. same: it has the queries of the
    // piece before
    template <class To> void run(const Piece<T, bf16>& piece, bool same, Span* spans, float* sums, To to) {
        if (!same) pack_queries(piece);
        _keys.begin(piece);
        all_scores(piece, *this, _score, _own);
        for (int64_t n = 0; n < piece.count; n++)
            for (int64_t h = 0; h < piece.group; h++) {
                int64_t q = n * piece.group + h;
                spans[to(n, h)] = pack_weights(piece.heads, q, piece.hidden[n], piece.end[n]);
            }
        int64_t joint = piece.common / 2;
        add_prefix(piece, joint);
        add_paths(piece, joint);
        for (int64_t n = 0; n < piece.count; n++)
            for (int64_t h = 0; h < piece.group; h++) in_order(_sum + (n * piece.group + h) * _width, sums + to(n, h) * D);
    }

    void scores(const Piece<T, bf16>& piece, const bf16* key, int64_t count, float* to, int64_t stride,
                const bf16* ahead) {
        int64_t columns = (count + LANES - 1) / LANES;
        Fetching<bf16> fetch(key, ahead, D);
        for (int64_t c = 0; c < columns; c++) {
            const float* of[LANES];
            for (int k = 0; k < LANES; k++) of[k] = (const float*)(key + std::min(c * LANES + k, count - 1) * D);
            if (_keys.there())
                turn(of, D / 2, _turned + c * LANES, WIDTH, [](int64_t) {});
            else
                turn(of, D / 2, _turned + c * LANES, WIDTH, [&](int64_t d) { fetch.lines(fetch.keys, c * LANES, 2 * d); });
        }
        LinesAhead values(ahead, count * D * 2, D / 2 * tiles_of(piece.queries(), columns));
        products(_q, D / 2, piece.queries(), D / 2, Packed{_turned, WIDTH}, columns, to, stride, false, values);
    }

  private:
    static constexpr int64_t UNIT_OF_VALUES = 32;
    static constexpr int ROWS = 6, COLUMNS = 4;  // vectors of sums at once
    static constexpr int64_t TOGETHER = 8;       // rows that take the keys of the longest one

    // how many tiles a product of so many rows and vectors of columns has
    static int64_t tiles_of(int64_t rows, int64_t columns) {
        return (rows + ROWS - 1) / ROWS * ((columns + COLUMNS - 1) / COLUMNS);
    }

    void pack_queries(const Piece<T, bf16>& piece) {
        for (int64_t n = 0; n < piece.count; n++)
            for (int64_t i = 0; i < piece.group * D; i += LANES) {
                const T* q = piece.q + n * piece.q_stride + i;
                _mm256_store_si256((__m256i*)(_q + (n * piece.group * D + i) / 2), (__m256i)_mm512_cvtneps_pbh(load(q)));
            }
    }

    // pairs of a query's rounded weights exp(score - top), 0 where hidden: before ``hidden`` and from ``end`` on
    Span pack_weights(const Heads& heads, int64_t q, int64_t hidden, int64_t end) {
        constexpr int PAIRS = 2 * LANES;  // keys of a vector
        constexpr float HIDDEN = -1e30f;  // less than every score, and finite after it is scaled
        float *score = _score + q * SPAN, scale = heads.scale;
        int32_t* to = _weights + q * SPAN / 2;
        int64_t seen = end > hidden ? (end + PAIRS - 1) / PAIRS * PAIRS : 0;
        std::fill(to + seen / 2, to + SPAN / 2, 0);
        if (!seen) return {-INFINITY, 0};
        if (heads.cap > 0) {
            for (int64_t j = hidden; j < end; j++) score[j] = capped(score[j] * scale, heads.cap);
            scale = 1;
        }
        std::fill(score, score + hidden, HIDDEN);
        std::fill(score + end, score + seen, HIDDEN);
        Lanes most = all(-INFINITY), sum[2] = {zeros(), zeros()};
        for (int64_t j = 0; j < seen; j += LANES) most = larger(load(score + j), most);
        float top = largest(most) * scale;  // passing over what is not a number
        Lanes turns = all(scale * 1.44269504f), less = all(top * 1.44269504f);
        for (int64_t j = 0; j < seen; j += PAIRS) {
            Lanes first = power_of_two(_mm512_fmsub_ps(load(score + j), turns, less));
            Lanes second = power_of_two(_mm512_fmsub_ps(load(score + j + LANES), turns, less));
            Lanes pairs = _mm512_castsi512_ps((__m512i)_mm512_cvtne2ps_pbh(second, first));
            _mm512_store_ps(to + j / 2, pairs);
            sum[0] = sum[0] + first_of(pairs);
            sum[1] = sum[1] + second_of(pairs);
        }
        return {top, total(sum[0] + sum[1])};
    }

    // 2^x within 3e-6 of it; NaN for infinite x
    static Lanes power_of_two(Lanes x) {
        Lanes whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), rest = x - whole;
        Lanes sum = all(9.58285e-3f);
        sum = fused(sum, rest, all(5.590642e-2f));
        sum = fused(sum, rest, all(2.4024099e-1f));
        sum = fused(sum, rest, all(6.9312419e-1f));
        return _mm512_scalef_ps(fused(sum, rest, all(1.0f)), whole);
    }

    // pair number i: the values of two keys; none for the second: zeros
    void pack_values(int64_t i, const bf16* a, const bf16* b) {
        for (int64_t d = 0; d < D; d += UNIT_OF_VALUES) {
            __m512i low, high;
            pair(a, b, d, D, low, high);
            float* to = _values + i * _width + d;
            _mm512_store_si512(to, low);
            _mm512_store_si512(to + LANES, high);
        }
    }

    // a sum as values lie, in the order of its numbers
    void in_order(const float* from, float* to) const {
        const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
        for (int64_t d = 0; d < D; d += UNIT_OF_VALUES) {
            Lanes low = load(from + d), high = load(from + d + LANES);
            store(to + d, _mm512_permutex2var_ps(low, first, high));
            if (d + LANES < D) store(to + d + LANES, _mm512_permutex2var_ps(low, second, high));
        }
    }

    // B of a product as it lies in vectors of pairs
    struct Packed {
        const float* pairs;
        int64_t stride;

        template <int W> void load(int64_t step, int64_t column, __m512bh (&to)[W]) const {
            for (int i = 0; i < W; i++) to[i] = (__m512bh)_mm512_load_si512(pairs + step * stride + (column + i) * LANES);
        }
    };

    // the values of a prefix as they are cached, whose pairs are made as they are read
    struct Cached {
        const bf16* values;
        int64_t dim;

        template <int W> void load(int64_t step, int64_t column, __m512bh (&to)[W]) const {
            const bf16* value = values + 2 * step * dim;
            for (int i = 0; i < W; i += 2) {
                __m512i low, high;
                pair(value, value + dim, (column + i) * LANES, dim, low, high);
                to[i] = (__m512bh)low;
                if (i + 1 < W) to[i + 1] = (__m512bh)high;
            }
        }
    };

    // numbers d … d + 31 of two values
    static void pair(const bf16* a, const bf16* b, int64_t d, int64_t dim, __m512i& low, __m512i& high) {
        __mmask32 there = dim - d < UNIT_OF_VALUES ? 0xFFFF : 0xFFFFFFFF;
        __m512i x = _mm512_maskz_loadu_epi16(there, a + d);
        __m512i y = b ? _mm512_maskz_loadu_epi16(there, b + d) : _mm512_setzero_si512();
        low = _mm512_unpacklo_epi16(x, y);
        high = _mm512_unpackhi_epi16(x, y);
    }

    // c [rows][columns vectors] = a [rows][steps] b [steps][columns vectors] in pairs; ``more``: it is added to c
    template <class B>
    static void products(const int32_t* a, int64_t a_stride, int64_t rows, int64_t steps, const B& b, int64_t columns,
                         float* c, int64_t c_stride, bool more, LinesAhead ahead) {
        for (int64_t r = 0; r < rows; r += ROWS)
            with_count<ROWS>(std::min<int64_t>(ROWS, rows - r), [&](auto count) {
                for (int64_t at = 0; at < columns; at += COLUMNS)
                    with_count<COLUMNS>(std::min<int64_t>(COLUMNS, columns - at), [&](auto vectors) {
                        tile_of_pairs<decltype(count)::value, decltype(vectors)::value>(
                            a + r * a_stride, a_stride, steps, b, at, c + r * c_stride + at * LANES, c_stride, more, ahead);
                    });
            });
    }

    template <int R, int W, class B>
    static void tile_of_pairs(const int32_t* a, int64_t a_stride, int64_t steps, const B& b, int64_t column, float* c,
                              int64_t c_stride, bool more, LinesAhead& ahead) {
        Lanes sum[R][W];
        for (int r = 0; r < R; r++)
            for (int i = 0; i < W; i++) sum[r][i] = more ? load(c + r * c_stride + i * LANES) : zeros();
        for (int64_t k = 0; k < steps; k++) {
            __m512bh part[W];
            b.load(k, column, part);
            ahead();
            for (int r = 0; r < R; r++) {
                __m512bh share = (__m512bh)_mm512_set1_epi32(a[r * a_stride + k]);
                for (int i = 0; i < W; i++) sum[r][i] = _mm512_dpbf16_ps(sum[r][i], share, part[i]);
            }
        }
        for (int r = 0; r < R; r++)
            for (int i = 0; i < W; i++) store(c + r * c_stride + i * LANES, sum[r][i]);
    }

    // the pairs of keys that all rows have
    void add_prefix(const Piece<T, bf16>& piece, int64_t joint) {
        const bf16* values = piece.values + piece.start * D;
        LinesAhead keys = _keys.next(piece, joint * tiles_of(piece.queries(), _width / LANES));
        // pairs that are used once need no place
        if (piece.queries() <= ROWS) return add_values(0, piece.queries(), 0, joint, Cached{values, D}, false, keys);
        for (int64_t i = 0; i < joint; i++) pack_values(i, values + 2 * i * D, values + (2 * i + 1) * D);
        add_values(0, piece.queries(), 0, joint, Packed{_values, _width}, false, keys);
    }

    // sums of queries first … end - 1 = their weights from pair ``step`` on times ``values``, or += if ``more``
    template <class B>
    void add_values(int64_t first, int64_t end, int64_t step, int64_t steps, const B& values, bool more, LinesAhead ahead) {
        products(_weights + first * SPAN / 2 + step, SPAN / 2, end - first, steps, values, _width / LANES,
                 _sum + first * _width, _width, more, ahead);
    }

    // pairs with a key behind the prefix: rows whose keys are the same, as far as they go, take them together
    void add_paths(const Piece<T, bf16>& piece, int64_t joint) {
        for (int64_t n = 0, next; n < piece.count; n = next) {
            int64_t longest = n;
            for (next = n + 1; next < std::min(piece.count, n + TOGETHER) && piece.alike(longest, next, 2 * joint, SPAN); next++)
                if (piece.end[next] > piece.end[longest]) longest = next;
            auto value = [&](int64_t j) { return piece.values + piece.column(longest, j) * D; };
            // a hidden value counts 0 times, which is 0 of a number only
            for (int64_t j = 2 * joint; j < piece.end[longest] && next > n + 1; j++)
                if (!finite(value(j), D)) next = n + 1, longest = n;
            int64_t end = piece.end[longest];
            for (int64_t j = 2 * joint; j < end; j += 2) pack_values(j / 2, value(j), j + 1 < end ? value(j + 1) : nullptr);
            if (end > 2 * joint)
                add_values(n * piece.group, next * piece.group, joint, (end + 1) / 2 - joint,
                           Packed{_values + joint * _width, _width}, true, {});
        }
    }

    int64_t D, _width;
    KeysAhead<bf16> _keys;
    int32_t *_q, *_weights;                            // pairs
    float *_turned, *_score, *_own, *_values, *_sum;   // keys and values: pairs
};

#else
#define WITH_PAIRS 0
#endif

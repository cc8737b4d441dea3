// A span of keys for some rows by vectors of float32. Keys are turned, so that a vector has 16 keys' scores; a value's
// vector has 16 of its numbers. So every sum stays in a lane: of a score along the head, of an output along the keys.
#pragma once

#include <vector>

#include "across.h"
#include "attention_scores.h"

#if WITH_AVX512
constexpr int VECTORS_AT_ONCE = 4;
#else
constexpr int VECTORS_AT_ONCE = 2;
#endif
constexpr int QUERIES_AT_ONCE = 6;

// c[r][0 … W vectors) += a[r][k] b[k][at …], for R rows: added one by one, or their sum if it is APART
template <bool APART, int R, int W, class B>
void add_columns(const float* a, int64_t a_stride, int64_t steps, const B* const* b, int64_t at, float* c,
                 int64_t c_stride, LinesAhead& ahead) {
    Lanes sum[R][W];
    for (int r = 0; r < R; r++)
        for (int i = 0; i < W; i++) sum[r][i] = APART ? zeros() : load(c + r * c_stride + i * LANES);
    for (int64_t k = 0; k < steps; k++) {
        const B* row = b[k] + at;
        ahead();
        Lanes part[W];
        for (int i = 0; i < W; i++) part[i] = load(row + i * LANES);
        for (int r = 0; r < R; r++) {
            Lanes share = all(a[r * a_stride + k]);
            for (int i = 0; i < W; i++) sum[r][i] = fused(share, part[i], sum[r][i]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int i = 0; i < W; i++) {
            float* to = c + r * c_stride + i * LANES;
            store(to, APART ? load(to) + sum[r][i] : sum[r][i]);
        }
}

// c [rows][columns] += a [rows][steps] b [steps][columns], where b[k] points at a row; columns fill whole vectors
template <bool APART, class B>
void add_products(const float* a, int64_t a_stride, int64_t rows, int64_t steps, const B* const* b, int64_t columns,
                  float* c, int64_t c_stride, LinesAhead& ahead) {
    if (steps <= 0) return;
    for (int64_t r = 0; r < rows; r += QUERIES_AT_ONCE)
        with_count<QUERIES_AT_ONCE>(std::min<int64_t>(QUERIES_AT_ONCE, rows - r), [&](auto count) {
            constexpr int R = decltype(count)::value, W = VECTORS_AT_ONCE;
            const float* x = a + r * a_stride;
            for (int64_t at = 0; at < columns; at += W * LANES)
                with_count<W>(std::min<int64_t>(W, (columns - at) / LANES), [&](auto vectors) {
                    add_columns<APART, R, decltype(vectors)::value>(x, a_stride, steps, b, at, c + r * c_stride + at,
                                                                    c_stride, ahead);
                });
        });
}

// how many steps such a product has for each of a's columns
inline int64_t tiles_of(int64_t rows, int64_t columns) {
    constexpr int64_t WIDE = VECTORS_AT_ONCE * LANES;
    return (rows + QUERIES_AT_ONCE - 1) / QUERIES_AT_ONCE * ((columns + WIDE - 1) / WIDE);
}

template <class T, class C> class VectorSpan {
  public:
    static constexpr int64_t PREPARING = 3;  // what reading and turning keys costs, in queries
    static constexpr int64_t UNIT = 1;

    explicit VectorSpan(int64_t dim) : D(dim) {
        int64_t sizes[] = {MOST_QUERIES * D, WIDTH * D, MOST_QUERIES * SPAN, MOST_QUERIES * WIDTH, SPAN * D, MOST_QUERIES * D};
        float** parts[] = {&_q, &_turned, &_score, &_own, &_values, &_sum};
        int64_t size = 16;
        for (int64_t part : sizes) size += part;
        thread_local std::vector<float> kept;
        if (kept.size() < size_t(size)) kept.resize(size);
        float* at = (float*)((uintptr_t(kept.data()) + 63) / 64 * 64);
        for (int i = 0; i < 6; i++) *parts[i] = at, at += sizes[i];
    }

    // what the span gives each query of the piece; ``to(n, h)`` numbers the results. same: it has the queries of the
    // piece before
    template <class To> void run(const Piece<T, C>& piece, bool same, Span* spans, float* sums, To to) {
        int64_t queries = piece.queries(), group = piece.group;
        _keys.begin(piece);
        if (!same)
            for (int64_t n = 0; n < piece.count; n++)
                for (int64_t i = 0; i < group * D; i++) _q[n * group * D + i] = to_float(piece.q[n * piece.q_stride + i]);
        all_scores(piece, *this, _score, _own);
        for (int64_t n = 0; n < piece.count; n++)
            for (int64_t h = 0; h < group; h++)
                spans[to(n, h)] = weights(piece.heads, _score + (n * group + h) * SPAN, piece.hidden[n], piece.end[n]);
        std::fill(_sum, _sum + queries * D, 0.0f);
        add_prefix(piece);
        for (int64_t n = 0; n < piece.count; n++) {
            const C* of[SPAN];
            int64_t q = n * group, own = piece.end[n] - piece.common;
            for (int64_t j = 0; j < own; j++) of[j] = piece.values + piece.column(n, piece.common + j) * D;
            LinesAhead none;
            add_products<false>(_score + q * SPAN + piece.common, SPAN, group, own, of, D, _sum + q * D, D, none);
        }
        for (int64_t n = 0; n < piece.count; n++)
            for (int64_t h = 0; h < group; h++)
                std::memcpy(sums + to(n, h) * D, _sum + (n * group + h) * D, D * sizeof(float));
    }

    void scores(const Piece<T, C>& piece, const C* key, int64_t count, float* to, int64_t stride, const C* ahead) {
        int64_t queries = piece.queries(), columns = (count + LANES - 1) / LANES * LANES;
        Fetching<C> fetch(key, ahead, D);
        for (int64_t c = 0; c < columns; c += LANES) {
            const C* of[LANES];
            for (int k = 0; k < LANES; k++) of[k] = key + std::min(c + k, count - 1) * D;
            if (_keys.there())
                turn(of, D, _turned + c, WIDTH, [](int64_t) {});
            else
                turn(of, D, _turned + c, WIDTH, [&](int64_t d) { fetch.lines(fetch.keys, c, d); });
        }
        for (int64_t q = 0; q < queries; q++) std::fill(to + q * stride, to + q * stride + columns, 0.0f);
        // a sum of few products is rounded less
        const float* of[MOST_DIM];
        for (int64_t d = 0; d < D; d++) of[d] = _turned + d * WIDTH;
        LinesAhead values(ahead, count * D * sizeof(C), D * tiles_of(queries, columns));
        for (int64_t d = 0; d < D; d += FEW)
            add_products<true>(_q + d, D, queries, std::min(FEW, D - d), of + d, columns, to, stride, values);
    }

  private:
    static constexpr int64_t FEW = 32;

    void add_prefix(const Piece<T, C>& piece) {
        const C *values = piece.values + piece.start * D, *of[SPAN];
        const float* widened[SPAN];
        int64_t queries = piece.queries();
        for (int64_t j = 0; j < piece.common; j++) of[j] = values + j * D, widened[j] = _values + j * D;
        LinesAhead keys = _keys.next(piece, piece.common * tiles_of(queries, D));
        if (sizeof(C) == sizeof(float) || queries <= QUERIES_AT_ONCE)
            return add_products<false>(_score, SPAN, queries, piece.common, of, D, _sum, D, keys);
        for (int64_t i = 0; i < piece.common * D; i += LANES) store(_values + i, load(values + i));
        add_products<false>(_score, SPAN, queries, piece.common, widened, D, _sum, D, keys);
    }

    int64_t D;
    KeysAhead<C> _keys;
    float *_q, *_turned, *_score, *_own, *_values, *_sum;
};

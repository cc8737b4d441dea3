// A span of keys for some rows by vectors: scores, their maximum, weights, the weighted sum of values, key after key.
#pragma once

#include <cmath>

#include "lanes.h"
#include "piece.h"

template <class T> class VectorSpan {
  public:
    explicit VectorSpan(int64_t dim) : D(dim) {}

    // what the span gives each query of the piece; ``to(n, h)`` numbers the results
    template <class To> void run(const Piece<T>& piece, bool, Span* spans, float* sums, To to) const {
        int64_t queries = piece.queries(), group = piece.group, common = piece.common;
        alignas(64) float weight[MOST_QUERIES * SPAN];
        T query[MOST_QUERIES * MOST_DIM];
        for (int64_t n = 0; n < piece.count; n++)
            std::memcpy(query + n * group * D, piece.q + n * piece.q_stride, group * D * sizeof(T));

        // scores: of the prefix for all rows together, of tree slots row by row
        for (int64_t j = 0; j < common; j += TILE_OUTPUTS) {
            const T* w[TILE_OUTPUTS];
            for (int c = 0; c < TILE_OUTPUTS; c++)
                w[c] = piece.keys + (piece.start + std::min<int64_t>(j + c, common - 1)) * D;
            // values lie behind one another as keys do, and are read when all scores are there
            const char* wanted = (const char*)(piece.values + (piece.start + j) * D);
            for (int64_t i = 0; i < TILE_OUTPUTS * D * int64_t(sizeof(T)); i += 64) __builtin_prefetch(wanted + i, 0, 2);
            scores(w, query, queries, weight + j, std::min<int64_t>(TILE_OUTPUTS, common - j));
        }
        for (int64_t n = 0; n < piece.count; n++)
            for (int64_t j = common; j < piece.end[n]; j += TILE_OUTPUTS) {
                const T* w[TILE_OUTPUTS];
                for (int c = 0; c < TILE_OUTPUTS; c++)
                    w[c] = piece.keys + piece.column(n, std::min<int64_t>(j + c, piece.end[n] - 1)) * D;
                scores(w, query + n * group * D, group, weight + n * group * SPAN + j,
                       std::min<int64_t>(TILE_OUTPUTS, piece.end[n] - j));
            }

        for (int64_t n = 0; n < piece.count; n++)
            for (int64_t h = 0; h < group; h++)
                spans[to(n, h)] = weights(piece.heads, weight + (n * group + h) * SPAN, piece.hidden[n], piece.end[n]);

        // sums of values, in the order of the keys
        float sum[MOST_QUERIES * MOST_DIM];
        std::memset(sum, 0, queries * D * sizeof(float));
        for (int64_t q = 0; q < queries && common > 0; q += TILE_ROWS)
            add_values(std::min<int64_t>(TILE_ROWS, queries - q), weight + q * SPAN, sum + q * D, common,
                       [&](int64_t j) { return piece.values + (piece.start + j) * D; });
        for (int64_t n = 0; n < piece.count; n++)
            for (int64_t h = 0; h < group && piece.end[n] > common; h += TILE_ROWS) {
                int64_t q = n * group + h;
                add_values(std::min<int64_t>(TILE_ROWS, group - h), weight + q * SPAN + common, sum + q * D,
                           piece.end[n] - common,
                           [&](int64_t j) { return piece.values + piece.column(n, common + j) * D; });
            }
        for (int64_t n = 0; n < piece.count; n++)
            for (int64_t h = 0; h < group; h++)
                std::memcpy(sums + to(n, h) * D, sum + (n * group + h) * D, D * sizeof(float));
    }

  private:
    void scores(const T* const (&w)[TILE_OUTPUTS], const T* query, int64_t queries, float* to, int64_t count) const {
        for (int64_t q = 0; q < queries; q += TILE_ROWS) {
            int64_t rows = std::min<int64_t>(TILE_ROWS, queries - q);
            float found[TILE_ROWS * TILE_OUTPUTS];
            bool whole = count == TILE_OUTPUTS;
            with_count(rows, [&](auto tile_rows) {
                tile<T, decltype(tile_rows)::value>(w, query + q * D, D, D, whole ? to + q * SPAN : found,
                                                    whole ? SPAN : TILE_OUTPUTS);
            });
            for (int64_t r = 0; r < rows && !whole; r++)
                for (int64_t c = 0; c < count; c++) to[(q + r) * SPAN + c] = found[r * TILE_OUTPUTS + c];
        }
    }

    // scores become exp(score - top), 0 where hidden: before ``hidden`` and from ``end`` on
    Span weights(const Heads& heads, float* score, int64_t hidden, int64_t end) const {
        if (heads.cap > 0)
            for (int64_t j = hidden; j < end; j++) score[j] = capped(score[j] * heads.scale, heads.cap);
        else
            for (int64_t j = hidden; j < end; j++) score[j] *= heads.scale;
        float top = largest_of(score, hidden, end);
        if (end <= hidden) {
            std::memset(score, 0, SPAN * sizeof(float));
            return {top, 0};
        }
        for (int64_t j = 0; j < hidden; j++) score[j] = -INFINITY;
        for (int64_t j = end; j < SPAN; j++) score[j] = -INFINITY;
        for (int64_t j = 0; j < SPAN; j++) score[j] = exponential(score[j] - top);
        Lanes total = zeros();
        for (int64_t j = 0; j < SPAN; j += LANES) total = total + load(score + j);
        return {top, sum_of(total)};
    }

    template <class Column>
    void add_values(int64_t rows, const float* weight, float* sum, int64_t keys, Column column) const {
        with_count(rows, [&](auto count) { add_rows<decltype(count)::value>(weight, sum, keys, column); });
    }

    template <int R, class Column>
    void add_rows(const float* weight, float* sum, int64_t keys, Column column) const {
        constexpr int WIDE = 4;
        int64_t d = 0;
        for (; d + WIDE * LANES <= D; d += WIDE * LANES) add_part<R, WIDE>(weight, sum, keys, column, d);
        for (; d < D; d += LANES) add_part<R, 1>(weight, sum, keys, column, d);
    }

    template <int R, int W, class Column>
    void add_part(const float* weight, float* sum, int64_t keys, Column column, int64_t d) const {
        Lanes total[R][W];
        for (int r = 0; r < R; r++)
            for (int i = 0; i < W; i++) total[r][i] = load(sum + r * D + d + i * LANES);
        for (int64_t j = 0; j < keys; j++) {
            const T* value = column(j) + d;
            Lanes part[W];
            for (int i = 0; i < W; i++) part[i] = load(value + i * LANES);
            for (int r = 0; r < R; r++) {
                Lanes share = all(weight[r * SPAN + j]);
                for (int i = 0; i < W; i++) total[r][i] = fused(share, part[i], total[r][i]);
            }
        }
        for (int r = 0; r < R; r++)
            for (int i = 0; i < W; i++) store(sum + r * D + d + i * LANES, total[r][i]);
    }

    int64_t D;
};

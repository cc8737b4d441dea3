// Attention of a pass's rows over the cache in place. Query heads that share a KV head share the reading of its keys.
//
// A row's keys are taken in spans of SPAN key numbers (pass.h). Within a span: scores, their maximum, weights, the
// weighted sum of values, key after key; then the spans are joined in order. Nothing of it depends on other rows, on
// threads, or on which of the keys are committed.
#pragma once

#include <algorithm>
#include <cmath>

#include "lanes.h"
#include "pass.h"
#include "team.h"

constexpr int SPAN = 128;
constexpr int MOST_QUERIES = 64;  // query heads of all rows that one item takes

struct Heads {
    int64_t queries, shared, dim;  // query heads, KV heads
    float scale;
    float cap;  // 0: none
    int64_t window;
};

// Result of a span for one query head of one row, and its values after it.
struct Span {
    float top, sum;
};

template <class T> class Attention {
  public:
    // q: [rows, .., D], row after row so many elements apart, query heads side by side
    Attention(const Heads& heads, const Sight& sight, const T* q, int64_t q_stride, const T* keys, const T* values,
              const Cache& cache)
        : _heads(heads), _sight(sight), _q(q), _q_stride(q_stride), _keys(keys), _values(values), _cache(cache) {
        _rows = sight.pass.requests * sight.pass.width;
        _group = heads.queries / heads.shared;
        _block = std::max<int64_t>(1, MOST_QUERIES / _group);
        _blocks = (sight.pass.width + _block - 1) / _block;
        int64_t most = 1;
        for (int64_t row = 0; row < _rows; row++) most = std::max(most, sight.keys(row));
        _spans = (most + SPAN - 1) / SPAN;
    }

    int64_t parts() const { return _rows * _heads.queries * _spans; }
    int64_t items() const { return _spans * sight_requests() * _blocks * _heads.shared; }

    // one KV head, one span, some rows of one request
    void run(int64_t item, Span* spans, float* sums) const {
        int64_t g = item % _heads.shared, rest = item / _heads.shared;
        int64_t block = rest % _blocks, b = rest / _blocks % sight_requests(), span = rest / _blocks / sight_requests();
        int64_t first = block * _block, live = _sight.pass.live[b];
        int64_t count = std::min(_block, live - first);
        if (count <= 0) return;
        int64_t row = b * _sight.pass.width + first, D = _heads.dim, start = span * SPAN;
        int64_t prefix = _sight.pass.prefix[b], common = std::min<int64_t>(SPAN, prefix - start);
        const T* keys = _keys + _sight.pass.slot[b] * _cache.slot_stride + g * _cache.head_stride;
        const T* values = _values + _sight.pass.slot[b] * _cache.slot_stride + g * _cache.head_stride;
        int64_t queries = count * _group;
        int64_t seen = SPAN;  // keys of this span before the first that any row sees
        for (int64_t n = 0; n < count; n++)
            seen = std::min(seen, std::max<int64_t>(0, _sight.first(row + n, _heads.window) - start));
        if (seen == SPAN) {
            for (int64_t n = 0; n < count; n++)
                for (int64_t h = 0; h < _group; h++)
                    spans[((row + n) * _heads.queries + g * _group + h) * _spans + span] = {-INFINITY, 0};
            return;
        }
        alignas(64) float weight[MOST_QUERIES * SPAN];
        T query[MOST_QUERIES * MOST_DIM];
        for (int64_t n = 0; n < count; n++)
            std::memcpy(query + n * _group * D, _q + (row + n) * _q_stride + g * _group * D, _group * D * sizeof(T));

        // scores: of the prefix for all rows together, of tree slots row by row
        for (int64_t j = 0; j < common; j += TILE_OUTPUTS) {
            const T* w[TILE_OUTPUTS];
            for (int c = 0; c < TILE_OUTPUTS; c++) w[c] = keys + (start + std::min<int64_t>(j + c, common - 1)) * D;
            // values lie behind one another as keys do, and are read when all scores are there
            const char* wanted = (const char*)(values + (start + j) * D);
            for (int64_t i = 0; i < TILE_OUTPUTS * D * int64_t(sizeof(T)); i += 64) __builtin_prefetch(wanted + i, 0, 2);
            scores(w, query, queries, weight + j, std::min<int64_t>(TILE_OUTPUTS, common - j));
        }
        int64_t own = std::max<int64_t>(common, 0);
        int64_t end[MOST_QUERIES];
        for (int64_t n = 0; n < count; n++) {
            end[n] = std::min<int64_t>(SPAN, _sight.keys(row + n) - start);
            for (int64_t j = own; j < end[n]; j += TILE_OUTPUTS) {
                const T* w[TILE_OUTPUTS];
                for (int c = 0; c < TILE_OUTPUTS; c++)
                    w[c] = keys + _sight.column(row + n, start + std::min<int64_t>(j + c, end[n] - 1)) * D;
                scores(w, query + n * _group * D, _group, weight + n * _group * SPAN + j,
                       std::min<int64_t>(TILE_OUTPUTS, end[n] - j));
            }
        }

        // weights
        float sum[MOST_QUERIES * MOST_DIM];
        std::memset(sum, 0, queries * D * sizeof(float));
        for (int64_t n = 0; n < count; n++) {
            int64_t hidden = std::max<int64_t>(0, _sight.first(row + n, _heads.window) - start);
            for (int64_t h = 0; h < _group; h++) {
                int64_t to = ((row + n) * _heads.queries + g * _group + h) * _spans + span;
                spans[to] = weights(weight + (n * _group + h) * SPAN, hidden, end[n]);
            }
        }

        // sums of values, in the order of the keys
        for (int64_t q = 0; q < queries && common > 0; q += TILE_ROWS)
            add_values(std::min<int64_t>(TILE_ROWS, queries - q), weight + q * SPAN, sum + q * D, common,
                       [&](int64_t j) { return values + (start + j) * D; });
        for (int64_t n = 0; n < count; n++)
            for (int64_t h = 0; h < _group && end[n] > own; h += TILE_ROWS) {
                int64_t q = n * _group + h;
                add_values(std::min<int64_t>(TILE_ROWS, _group - h), weight + q * SPAN + own, sum + q * D,
                           end[n] - own,
                           [&](int64_t j) { return values + _sight.column(row + n, start + own + j) * D; });
            }
        for (int64_t n = 0; n < count; n++)
            for (int64_t h = 0; h < _group; h++) {
                int64_t to = ((row + n) * _heads.queries + g * _group + h) * _spans + span;
                std::memcpy(sums + to * D, sum + (n * _group + h) * D, D * sizeof(float));
            }
    }

    // all spans of one query head of a row: o [D]; 0 for padding, NaN where a score is NaN or infinite
    void join(int64_t row, int64_t h, const Span* spans, const float* sums, T* o) const {
        int64_t D = _heads.dim, count = (_sight.keys(row) + SPAN - 1) / SPAN;
        int64_t from = (row * _heads.queries + h) * _spans;
        float top = -INFINITY, total = 0, joined[MOST_DIM] = {};
        for (int64_t s = 0; s < count; s++) top = std::max(top, spans[from + s].top);
        for (int64_t s = 0; s < count; s++) {
            if (spans[from + s].sum == 0) continue;
            float share = exponential(spans[from + s].top - top);
            total += share * spans[from + s].sum;
            const float* part = sums + (from + s) * D;
            for (int64_t d = 0; d < D; d++) joined[d] += share * part[d];
        }
        for (int64_t d = 0; d < D; d++) o[d] = rounded<T>(total == 0 ? 0.0f : joined[d] / total);
    }

    static constexpr int MOST_DIM = 256;

  private:
    int64_t sight_requests() const { return _sight.pass.requests; }

    void scores(const T* const (&w)[TILE_OUTPUTS], const T* query, int64_t queries, float* to, int64_t count) const {
        int64_t D = _heads.dim;
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
    Span weights(float* score, int64_t hidden, int64_t end) const {
        hidden = std::min<int64_t>(hidden, SPAN);
        if (_heads.cap > 0)
            for (int64_t j = hidden; j < end; j++) {
                // c tanh(s / c), as 1 - 2 / (e^2s/c + 1)
                float scaled = score[j] * _heads.scale;
                score[j] = _heads.cap * (1 - 2 / (exponential(2 * scaled / _heads.cap) + 1));
            }
        else
            for (int64_t j = hidden; j < end; j++) score[j] *= _heads.scale;
        float top = largest_of(score, hidden, end);
        if (end <= hidden) {
            std::memset(score, 0, SPAN * sizeof(float));
            return {top, 0};
        }
        for (int64_t j = 0; j < hidden; j++) score[j] = -INFINITY;
        for (int64_t j = std::max<int64_t>(end, 0); j < SPAN; j++) score[j] = -INFINITY;
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
        for (; d + WIDE * LANES <= _heads.dim; d += WIDE * LANES) add_part<R, WIDE>(weight, sum, keys, column, d);
        for (; d < _heads.dim; d += LANES) add_part<R, 1>(weight, sum, keys, column, d);
    }

    template <int R, int W, class Column>
    void add_part(const float* weight, float* sum, int64_t keys, Column column, int64_t d) const {
        Lanes total[R][W];
        for (int r = 0; r < R; r++)
            for (int i = 0; i < W; i++) total[r][i] = load(sum + r * _heads.dim + d + i * LANES);
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
            for (int i = 0; i < W; i++) store(sum + r * _heads.dim + d + i * LANES, total[r][i]);
    }

    const Heads& _heads;
    const Sight& _sight;
    const T* _q;
    int64_t _q_stride;
    const T* _keys;
    const T* _values;
    const Cache& _cache;
    int64_t _rows, _group, _block, _blocks, _spans;
};

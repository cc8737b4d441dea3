// Attention of a pass's rows over the cache in place. Query heads that share a KV head share the reading of its keys.
//
// A row's keys are taken in spans of SPAN key numbers (pass.h), and the spans are joined in order. Nothing of it depends
// on other rows, on threads, or on which of the keys are committed.
#pragma once

#include <cmath>
#include <type_traits>

#include "attention_amx.h"
#include "attention_pairs.h"
#include "attention_vectors.h"
#include "team.h"

// Spans of one query head of a row, of which none has a larger score than ``top``
struct Joined {
    float top, total = 0, sum[MOST_DIM];

    Joined(float top, int64_t dim) : top(top) { std::fill_n(sum, dim, 0.0f); }

    // a score, maybe the largest, that counts in the sum alone
    void add_sink(float score) { total += exponential(score - top); }

    void add(const Span& span, const float* values, int64_t dim) {
        if (span.sum == 0) return;
        float share = exponential(span.top - top);
        total += share * span.sum;
        for (int64_t d = 0; d < dim; d++) sum[d] += share * values[d];
    }

    float mean(int64_t d) const { return total == 0 ? 0.0f : sum[d] / total; }

    float log_sum() const { return total == 0 ? -INFINITY : top + std::log(total); }
};

template <class T, class C> class Attention {
  public:
    // q: [rows, .., D], row after row so many elements apart, query heads side by side
    Attention(const Heads& heads, const Sight& sight, const T* q, int64_t q_stride, const C* keys, const C* values,
              const Cache& cache)
        : _heads(heads), _sight(sight), _q(q), _q_stride(q_stride), _keys(keys), _values(values), _cache(cache) {
        _group = heads.queries / heads.shared;
        _spans = spans_of(sight);
    }

    // how many spans the row with the most keys has
    static int64_t spans_of(const Sight& sight) {
        int64_t most = 1;
        for (int64_t row = 0; row < sight.pass.requests * sight.pass.width; row++)
            most = std::max(most, sight.keys(row));
        return (most + SPAN - 1) / SPAN;
    }

    // this thread's share: spans of the same rows and KV head follow one another
    template <class Kernel> void run(Kernel&& kernel, Span* spans, float* sums) const {
        int64_t blocks = blocks_of<std::decay_t<Kernel>>(omp_get_num_threads()), before = -1;
        Team::Part part = Team::part_of(_sight.pass.requests * _heads.shared * blocks * _spans);
        for (int64_t item = part.first; item < part.end; item++) {
            int64_t span = item % _spans, rows = item / _spans, block = rows % blocks, head = rows / blocks;
            int64_t g = head % _heads.shared, b = head / _heads.shared, live = _sight.pass.live[b];
            int64_t first = live * block / blocks, count = live * (block + 1) / blocks - first;
            if (count == 0) continue;
            int64_t row = b * _sight.pass.width + first, at = first_column(b, g);
            Piece<T, C> piece{_heads, _sight, row, count, _group, g * _group, span * SPAN,
                           _q + row * _q_stride + g * _group * _heads.dim, _q_stride, _keys + at, _values + at, nullptr, 0};
            if (item + 1 < part.end) find_keys_of((item + 1) / _spans / blocks, (item + 1) % _spans, piece);
            auto to = [&](int64_t n, int64_t h) {
                return ((row + n) * _heads.queries + g * _group + h) * _spans + span;
            };
            if (!piece.find_keys()) {
                for (int64_t n = 0; n < count; n++)
                    for (int64_t h = 0; h < _group; h++) spans[to(n, h)] = {-INFINITY, 0};
                continue;
            }
            kernel.run(piece, rows == before, spans, sums, to);
            before = rows;
        }
    }

    // all spans of one query head of a row: o [D]; 0 for padding, NaN where a score is NaN or infinite
    void join(int64_t row, int64_t h, const Span* spans, const float* sums, T* o) const {
        float most = top(row, h, spans);
        Joined joined(_heads.sinks ? std::max(most, _heads.sinks[h]) : most, _heads.dim);
        if (_heads.sinks) joined.add_sink(_heads.sinks[h]);
        add(row, h, spans, sums, joined);
        for (int64_t d = 0; d < _heads.dim; d++) o[d] = rounded<T>(joined.mean(d));
    }

    // the largest score of a query head of a row; -inf without keys
    float top(int64_t row, int64_t h, const Span* spans) const {
        float top = -INFINITY;
        for (int64_t s = 0, from = of(row, h); s < count(row); s++) top = std::max(top, spans[from + s].top);
        return top;
    }

    // its spans one after the other
    void add(int64_t row, int64_t h, const Span* spans, const float* sums, Joined& joined) const {
        for (int64_t s = 0, from = of(row, h); s < count(row); s++)
            joined.add(spans[from + s], sums + (from + s) * _heads.dim, _heads.dim);
    }

  private:
    // where the cache has a request's keys of a KV head
    int64_t first_column(int64_t b, int64_t g) const {
        return _sight.pass.slot[b] * _cache.slot_stride + g * _cache.head_stride;
    }

    // those of a span, of one of all requests' KV heads, are fetched beside ``piece``
    void find_keys_of(int64_t head, int64_t span, Piece<T, C>& piece) const {
        int64_t b = head / _heads.shared, live = _sight.pass.live[b];
        int64_t keys = live ? _sight.keys(b * _sight.pass.width + live - 1) : 0;
        piece.next = _keys + first_column(b, head % _heads.shared) + span * SPAN * _heads.dim;
        piece.next_count = std::clamp<int64_t>(keys - span * SPAN, 0, SPAN);
    }

    int64_t of(int64_t row, int64_t h) const { return (row * _heads.queries + h) * _spans; }

    int64_t count(int64_t row) const { return (_sight.keys(row) + SPAN - 1) / SPAN; }

    // into how many blocks rows are divided: as few as leave the threads about as much to do each
    template <class Kernel> int64_t blocks_of(int64_t threads) const {
        int64_t rows = std::max<int64_t>(1, _sight.pass.width), least = (rows * _group + MOST_QUERIES - 1) / MOST_QUERIES;
        while ((rows + least - 1) / least * _group > MOST_QUERIES) least++;
        int64_t best = least, cheapest = INT64_MAX;
        for (int64_t n = least; n <= std::min(4 * least, rows); n++) {
            int64_t queries = (rows + n - 1) / n * _group, units = (queries + Kernel::UNIT - 1) / Kernel::UNIT;
            int64_t items = _sight.pass.requests * _heads.shared * n * _spans;
            int64_t cost = (items + threads - 1) / threads * (Kernel::PREPARING + units * Kernel::UNIT);
            if (cost < cheapest) best = n, cheapest = cost;
        }
        return best;
    }

    const Heads& _heads;
    const Sight& _sight;
    const T* _q;
    int64_t _q_stride;
    const C* _keys;
    const C* _values;
    const Cache& _cache;
    int64_t _group, _spans;
};

// What one item of a pass's attention is: some rows of a request, one KV head, and a span of key numbers. T: what rows are
// computed in, C: what keys and values are kept in.
#pragma once

#include <algorithm>

#include "pass.h"

constexpr int SPAN = 128;
constexpr int MOST_QUERIES = 96;  // query heads of all rows of a piece
constexpr int MOST_SHARED = 64;   // query heads to a KV head
constexpr int MOST_DIM = 576;

struct Heads {
    int64_t queries, shared, dim;  // query heads, KV heads
    float scale;
    float cap;  // 0: none
    int64_t window;
    const float* sinks;  // [queries]: the score of a key of each whose value is 0; or null
};

// Result of a span for one query head of one row, and its values after it.
struct Span {
    float top, sum;
};

// Keys are counted from the span's first one on: hidden[n] … end[n] - 1 are in the sight of row n, the first ``common``
// of them are committed, at ``keys`` and ``values`` and behind them.
template <class T, class C> struct Piece {
    const Heads& heads;
    const Sight& sight;
    int64_t row, count;  // rows of the pass
    int64_t group, head;  // query heads of a KV head, the first of them
    int64_t start;
    const T* q;  // of the first row's first head
    int64_t q_stride;
    const C *keys, *values;  // of the request's first column
    const C* next;           // the keys of the thread's next piece, to be fetched meanwhile
    int64_t next_count;
    int64_t common;
    int64_t hidden[MOST_QUERIES], end[MOST_QUERIES];

    // at least one row sees a key
    bool find_keys() {
        bool any = false;
        common = std::clamp<int64_t>(sight.prefix(row) - start, 0, SPAN);
        for (int64_t n = 0; n < count; n++) {
            end[n] = std::clamp<int64_t>(sight.keys(row + n) - start, 0, SPAN);
            hidden[n] = std::clamp<int64_t>(sight.first(row + n, heads.window) - start, 0, SPAN);
            any |= hidden[n] < end[n];
        }
        return any;
    }

    int64_t queries() const { return count * group; }

    // where key j of row n lies
    int64_t column(int64_t n, int64_t j) const { return sight.column(row + n, start + j); }

    // whether rows a and b have the same keys from ``from`` up to ``to``, as far as both have any
    bool alike(int64_t a, int64_t b, int64_t from, int64_t to) const {
        int64_t last = std::min({end[a], end[b], to});
        for (int64_t j = std::max(common, from); j < last; j++)
            if (column(a, j) != column(b, j)) return false;
        return true;
    }
};

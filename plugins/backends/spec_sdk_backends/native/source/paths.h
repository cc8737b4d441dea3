// Rows of one request behind a recurrent layer's state, and which earlier rows each goes on from.
#pragma once

#include <algorithm>
#include <vector>

#include "scalars.h"

// Rows that go to the cache columns from ``first`` on, behind ``prefix`` committed tokens. query [count], start and end
// [first + count - prefix], as query_start, key_start and key_end of Pass; null: a chain right behind the prefix.
extern "C" struct NewRows {
    int64_t prefix, first, count;
    const int32_t *query, *start, *end;
};

constexpr int64_t MOST_MEMORIES = 3;

// What one layer keeps of a request: its state behind ``length`` tokens, and rows from ``lead`` tokens before it on.
extern "C" struct Kept {
    int64_t length, lead;
    int64_t room;         // R rows
    void* x;              // [R, C], in the dtype of the rows
    float *k, *u;         // [G, R, D] and [H, R, V]; null where only a convolution goes on from earlier rows
    double* path;         // [H, R], as these: the sums of log decays from a text's beginning on
    int64_t step, behind; // a row goes on from a state of whole steps, so many tokens or more before it
    int64_t memories;     // those there are, each a step further
    const float* memory[MOST_MEMORIES];        // [H, V, D]
    const double* memory_path[MOST_MEMORIES];  // [H]

    // where the row of a cache column lies
    int64_t index(int64_t column) const { return column - length + lead; }

    // which of the memories the row at a position goes on from
    int64_t memory_of(int64_t position) const {
        int64_t tokens = std::max<int64_t>(0, position - behind) / step * step;
        return std::clamp<int64_t>((tokens - length) / step, 0, std::max<int64_t>(0, memories - 1));
    }
};

class Paths {
  public:
    explicit Paths(const NewRows& of) : rows(of), _slots(of.count * slots()), _count(of.count) {
        int64_t earlier = of.first - of.prefix;
        for (int64_t n = 0; n < of.count; n++) {
            int32_t *to = &_slots[n * slots()], count = 0;
            for (int32_t s = 0; s < earlier + n; s++)
                if (!of.query || (of.start[s] <= of.query[n] && of.query[n] < of.end[s])) to[count++] = s;
            _count[n] = count;
        }
    }

    // tree slots, of which the last are these rows
    int64_t slots() const { return rows.first + rows.count - rows.prefix; }

    // the column of the row so many rows before row n on its path; that of n itself for 0
    int64_t column(int64_t n, int64_t back) const {
        if (!back) return rows.first + n;
        int64_t i = _count[n] - back;
        return rows.prefix + (i < 0 ? i : slot(n)[i]);
    }

    // the tree slots before row n on its path, the oldest first
    const int32_t* slot(int64_t n) const { return &_slots[n * slots()]; }
    int64_t count(int64_t n) const { return _count[n]; }

    // where in the text row n is
    int64_t position(int64_t n) const { return rows.prefix + _count[n]; }

    const NewRows rows;

  private:
    std::vector<int32_t> _slots, _count;
};

// The rows behind a state by their numbers, new ones the last, and those of them that are on a new row's path.
struct PathBehind {
    int64_t pending, behind;     // rows that all paths begin with, and all there are
    int64_t own;                 // the number of the first new one
    std::vector<int32_t> place;  // [behind]: a path, the oldest row first

    void begin(const Kept& kept, const Paths& paths) {
        pending = paths.rows.prefix - kept.length, behind = pending + paths.slots(), own = behind - paths.rows.count;
        place.resize(behind);
        for (int64_t j = 0; j < pending; j++) place[j] = int32_t(j);
    }

    // how many rows are before row n on its path, which are the first of ``place`` then
    int64_t find(const Paths& paths, int64_t n) {
        int64_t count = paths.count(n);
        for (int64_t i = 0; i < count; i++) place[pending + i] = int32_t(pending) + paths.slot(n)[i];
        return pending + count;
    }

    // Γ of these: of the last one, if it is new; it falls along a path, so that of an earlier one is the least, as it is
    // of rows that were committed without being one; ``least``: that of the state
    double sum(int64_t count, const double* path, double least) const {
        if (count && place[count - 1] >= own) return path[place[count - 1]];
        for (int64_t j = 0; j < count; j++) least = std::min(least, path[place[j]]);
        return least;
    }
};

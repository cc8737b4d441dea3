// One pass over the cache: which rows there are, where their keys lie, and which of these they see.
#pragma once

#include <vector>

#include "scalars.h"

extern "C" struct Pass {
    int64_t requests;
    int64_t width;  // rows of a request, padding included
    int64_t slots;  // tree slots of a request
    const int32_t* slot;
    const int32_t* prefix;
    const int32_t* write_at;
    const int32_t* live;
    const int32_t* position;     // [requests, width], as query_start
    const int32_t* query_start;
    const int32_t* key_start;    // [requests, slots], as key_end and key_position
    const int32_t* key_end;
    const int32_t* key_position;
    int64_t row_stride;   // from one request's rows to the next one's
    int64_t slot_stride;
};

extern "C" struct Cache {
    int64_t dtype;  // 0 float32, 1 bfloat16: that of the rows, or bfloat16 beside rows in float32
    void* keys;    // [layers, cache slots, KV heads, capacity, D], as values
    void* values;
    int64_t layer_stride;
    int64_t slot_stride;
    int64_t head_stride;
};

// The keys that every row sees, by their number along the row's own path: number j < prefix is column j, the others are
// tree slots. A sum in the order of these numbers is the same whether a token was committed or is a node of a tree.
class Sight {
  public:
    explicit Sight(const Pass& pass) : pass(pass) {
        int64_t rows = pass.requests * pass.width;
        _slots.resize(rows * pass.slots);
        _count.assign(rows, 0);
        for (int64_t b = 0; b < pass.requests; b++) {
            int64_t slots = pass.write_at[b] + pass.live[b] - pass.prefix[b];
            const int32_t* start = pass.key_start + b * pass.slot_stride;
            const int32_t* end = pass.key_end + b * pass.slot_stride;
            for (int64_t n = 0; n < pass.live[b]; n++) {
                int32_t query = pass.query_start[b * pass.row_stride + n], *to = &_slots[(b * pass.width + n) * pass.slots];
                int32_t count = 0;
                for (int32_t s = 0; s < slots; s++)
                    if (start[s] <= query && query < end[s]) to[count++] = s;
                _count[b * pass.width + n] = count;
            }
        }
    }

    bool live(int64_t row) const { return row % pass.width < pass.live[row / pass.width]; }
    int64_t prefix(int64_t row) const { return pass.prefix[row / pass.width]; }

    // how many keys a row would see without a window
    int64_t keys(int64_t row) const { return live(row) ? prefix(row) + _count[row] : 0; }

    // the number of the first key that a window leaves in a row's sight; 0: no window
    int64_t first(int64_t row, int64_t window) const {
        if (window <= 0) return 0;
        int64_t b = row / pass.width, position = pass.position[b * pass.row_stride + row % pass.width];
        int64_t nearest = position - window + 1;
        if (nearest <= prefix(row)) return nearest < 0 ? 0 : nearest;
        int64_t gone = 0;
        const int32_t* of_slot = pass.key_position + b * pass.slot_stride;
        while (gone < _count[row] && of_slot[slot(row, gone)] < nearest) gone++;
        return prefix(row) + gone;
    }

    // the column of key number j
    int64_t column(int64_t row, int64_t j) const {
        int64_t p = prefix(row);
        return j < p ? j : p + slot(row, j - p);
    }

    const Pass& pass;

  private:
    int32_t slot(int64_t row, int64_t i) const { return _slots[row * pass.slots + i]; }

    std::vector<int32_t> _slots, _count;
};

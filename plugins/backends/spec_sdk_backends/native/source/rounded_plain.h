// Tiles of products of rounded rows in vectors that the compiler translates into what there is.
#pragma once

#include "quantized_plain.h"
#include "rounded_rows.h"

template <int BITS, int R>
void rounded_tile(const Records& records, int64_t block, const RoundedRows& rows, int64_t first, float* y,
                  int64_t y_stride, Fetch) {
    int64_t groups = records.groups;
    const int8_t* codes = rows.codes.data() + first * GROUP;
    const float *scales = rows.scales.data() + first, *sums = rows.sums.data() + first;
    Outputs total[R];
    for (int r = 0; r < R; r++) total[r] = Outputs{};
    for (int64_t g = 0; g < groups; g++) {
        const char* record = records.at(block, g);
        int64_t at = g * rows.count;
        Outputs part[R];
        for (int r = 0; r < R; r++) part[r] = Outputs{};
        // whole numbers below 2^24: exact
        add_group<BITS, R>(record, codes + at * GROUP, GROUP, part);
        const char* factors = record + records.codes();
        Outputs scale = halves_to_floats(factors);
        for (int r = 0; r < R; r++) total[r] = (scale * scales[at + r]) * part[r] + total[r];
        if (records.offsets) {
            Outputs offset = halves_to_floats(factors + 2 * BESIDE);
            for (int r = 0; r < R; r++) total[r] = offset * sums[at + r] + total[r];
        }
    }
    for (int r = 0; r < R; r++) std::memcpy(y + r * y_stride, &total[r], sizeof total[r]);
}

// Tiles of products of rounded rows in vectors that the compiler translates into what there is.
#pragma once

#include "quantized_plain.h"
#include "rounded_rows.h"

template <int BITS, int R>
void rounded_tile(const Records& records, const Stretch& stretch, const RoundedRows& rows, int64_t first, float* y,
                  int64_t y_stride, Fetch) {
    constexpr int PARTS = scales_of_group(BITS);
    const int8_t* codes = rows.codes.data() + first * GROUP;
    const float *scales = rows.scales.data() + first, *sums = rows.sums.data() + first;
    const Outputs table = table_of(records);
    Outputs total[R];
    begin_with(y, y_stride, stretch, total);
    for (int64_t s = stretch.start * PARTS; s < stretch.end * PARTS; s++) {
        int p = s % PARTS;
        const char *record = stretch.at(s / PARTS), *factors = record + records.codes() + p * 2 * BESIDE;
        int64_t at = s / PARTS * rows.count;
        Outputs part[R];
        for (int r = 0; r < R; r++) part[r] = Outputs{};
        // whole numbers below 2^24: exact
        add_part<BITS, R>(record, p, int(records.middle()), table, codes + at * GROUP, GROUP, part);
        Outputs scale = halves_to_floats(factors);
        for (int r = 0; r < R; r++) total[r] = (scale * scales[at + r]) * part[r] + total[r];
        if (records.offsets) {
            Outputs offset = halves_to_floats(factors + PARTS * 2 * BESIDE);
            for (int r = 0; r < R; r++) total[r] = offset * sums[s * rows.count + r] + total[r];
        }
    }
    for (int r = 0; r < R; r++) std::memcpy(y + r * y_stride, &total[r], sizeof total[r]);
}

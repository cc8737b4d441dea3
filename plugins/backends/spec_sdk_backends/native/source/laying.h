// Laying weights out as products read them: what lies output by output comes to lie 16 outputs side by side.
#pragma once

#include "panel_layout.h"
#include "quantized.h"
#include "team.h"

template <class T> T read(const char* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

// ``count`` matrices [outputs][steps] of dwords, to [count][panels][steps][16]
inline void lay_in_panels(const char* from, int64_t count, int64_t outputs, int64_t steps, uint32_t* to, int threads) {
    int64_t panels = panels_of(outputs);
#pragma omp parallel num_threads(threads)
    {
        Team::Part part = Team::part_of(count * panels);
        for (int64_t p = part.first; p < part.end; p++) {
            int64_t first = p % panels * PANEL, there = std::min<int64_t>(PANEL, outputs - first);
            const char* row = from + (p / panels * outputs + first) * steps * 4;
            uint32_t* step = to + p * steps * PANEL;
            for (int64_t s = 0; s < steps; s++, step += PANEL)
                for (int64_t c = 0; c < PANEL; c++)
                    step[c] = c < there ? read<uint32_t>(row + (c * steps + s) * 4) : 0;
        }
    }
}

// Rows [rows][steps] of dwords as the outputs from ``first`` on of panels [panels][steps][16] that are there
inline void lay_rows(const char* from, int64_t first, int64_t rows, int64_t steps, uint32_t* panels) {
    for (int64_t r = 0; r < rows; r++) {
        int64_t output = first + r;
        uint32_t* to = panels + output / PANEL * steps * PANEL + output % PANEL;
        for (int64_t s = 0; s < steps; s++) to[s * PANEL] = read<uint32_t>(from + (r * steps + s) * 4);
    }
}

// A dword of 8 codes of 4 bits, of bytes whose lower halves they are: those of even inputs, then those of odd ones.
inline uint32_t dword_of_halves(uint64_t bytes) {
    auto joined = [](uint64_t every_other) {
        return uint32_t(every_other | every_other >> 12 | every_other >> 24 | every_other >> 36) & 0xFFFF;
    };
    return joined(bytes & 0x000F000F000F000F) | joined(bytes >> 8 & 0x000F000F000F000F) << 16;
}

// A dword of 4 codes of 8 bits as sign and |code + 1/2|, in the same order.
inline uint32_t dword_of_bytes(uint32_t codes) {
    codes ^= (codes >> 7 & 0x01010101) * 127;
    return (codes & 0xFF0000FF) | (codes & 0x0000FF00) << 8 | (codes & 0x00FF0000) >> 8;
}

// the dwords of a group of one output, 64 bytes apart
template <int BITS> void lay_group(const char* codes, char* to) {
    constexpr int LINES = lines_of_group(BITS), INPUTS = inputs_of_line(BITS);
    uint32_t upper[scales_of_group(BITS)] = {};
    for (int line = 0; line < LINES; line++) {
        uint32_t dword;
        if (BITS == 8)
            dword = dword_of_bytes(read<uint32_t>(codes + line * 4));
        else
            // the first half of the inputs are lower halves, the second one upper halves
            dword = dword_of_halves(read<uint64_t>(codes + line % 2 * 8) >> (line < 2 ? 0 : 4));
        std::memcpy(to + line * 64, &dword, 4);
        for (int i = 0; i < INPUTS && has_upper(BITS); i++)
            upper[upper_line(BITS, line) - LINES] |= upper_bits<BITS>(codes, line * INPUTS + i)
                                                     << upper_shift(BITS, line, i);
    }
    for (int line = LINES; line < LINES + scales_of_group(BITS) && has_upper(BITS); line++)
        std::memcpy(to + line * 64, upper + line - LINES, 4);
}

// Codes [outputs][bytes of a row], scales and offsets (or null) [outputs][scales of a row], to ``records``; outputs that fill up
// the last block are zeros.
inline void lay_side_by_side(const Records& records, const char* codes, const uint16_t* scale, const uint16_t* offset,
                             int64_t outputs, int threads) {
    int64_t groups = records.groups, bytes = GROUP * records.bits / 8, parts = records.parts();
#pragma omp parallel num_threads(threads)
    {
        Team::Part part = Team::part_of(records.blocks);
        for (int64_t b = part.first; b < part.end; b++)
            each_record(records, b, [&](const char* first, int64_t g) {
                char* record = const_cast<char*>(first);
                uint16_t* factors = (uint16_t*)(record + records.codes());
                int64_t there = std::min<int64_t>(BESIDE, outputs - b * BESIDE);
                if (there < BESIDE) std::memset(record, 0, records.size());
                for (int64_t c = 0; c < there; c++) {
                    int64_t at = (b * BESIDE + c) * groups + g;
                    with_bits(records.bits, [&](auto bits) {
                        lay_group<decltype(bits)::value>(codes + at * bytes, record + c * 4);
                    });
                    for (int64_t p = 0; p < parts; p++) {
                        factors[p * BESIDE + c] = scale[at * parts + p];
                        if (offset) factors[(parts + p) * BESIDE + c] = offset[at * parts + p];
                    }
                }
            });
    }
}

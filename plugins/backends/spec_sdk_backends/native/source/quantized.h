// Weights scale · code + offset, scale and offset of each group of 32 inputs, of 16 neighbouring outputs side by side.
//
// A record is one group of 16 outputs: lines of 64 bytes with the codes, then 16 scales, then 16 offsets if there are
// any, in float16. Each output has one dword in a line. In 4 bits that is 8 inputs: numbers 0, 2, 4, 6 are in the halves
// of its first bytes, 1, 3, 5, 7 in those of its last. In 8 bits it is inputs 0, 2, 1, 3: the sign is bit 7, and a
// negative code c has -1 - c below it, so that |c + 1/2| is those bits plus 1/2. An output's records follow each other,
// then the next 16 outputs'; missing outputs have scale 0.
#pragma once

#include <vector>

#include "lanes.h"

constexpr int GROUP = 32;
constexpr int BESIDE = 16;  // outputs of a record

struct Records {
    int64_t bits;     // 4 or 8
    int64_t offsets;  // whether there are any
    int64_t groups;   // of an output
    const char* first;

    int64_t codes() const { return bits * GROUP * BESIDE / 8; }
    int64_t size() const { return codes() + (offsets ? 4 : 2) * BESIDE; }
    const char* at(int64_t block, int64_t group) const { return first + (block * groups + group) * size(); }
};

// Records that are multiplied later: fetched for one reading, or for one by every tile of rows; or not.
enum class Fetch { NOTHING, ONCE, KEPT };

// Σ x of every group, [N, G]
template <class T>
void sum_groups(const T* x, int64_t stride, int64_t rows, int64_t groups, std::vector<float>& sums) {
    sums.resize(rows * groups);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t g = 0; g < groups; g++) {
            const T* from = x + r * stride + g * GROUP;
            Lanes sum = load(from);
            for (int i = LANES; i < GROUP; i += LANES) sum = sum + load(from + i);
            sums[r * groups + g] = sum_of(sum);
        }
}

// the codes of a group of one output, whose dwords are 64 bytes apart
template <int BITS> void decode(const char* dwords, float (&codes)[GROUP]) {
    constexpr int INPUTS = 32 / BITS;
    for (int line = 0; line < GROUP / INPUTS; line++) {
        uint32_t dword;
        std::memcpy(&dword, dwords + line * 64, 4);
        for (int i = 0; i < INPUTS; i++) {
            int32_t code = dword >> (i / 2 * BITS + i % 2 * 16);
            if (BITS == 8) {
                code = int32_t(uint32_t(code) << 24) >> 24;
                code ^= (code >> 31) & 127;
            } else {
                code &= 15;
            }
            codes[line * INPUTS + i] = float(code);
        }
    }
}

// one row of weights [I] in floating point: scale · code is exact in float32
template <class T> void expand(const Records& records, int64_t output, T* to) {
    int64_t block = output / BESIDE, lane = output % BESIDE;
    for (int64_t g = 0; g < records.groups; g++, to += GROUP) {
        const char* record = records.at(block, g);
        const uint16_t* factors = (const uint16_t*)(record + records.codes()) + lane;
        float scale = half_to_float(factors[0]), offset = records.offsets ? half_to_float(factors[BESIDE]) : 0.0f;
        float numbers[GROUP];
        if (records.bits == 4)
            decode<4>(record + lane * 4, numbers);
        else
            decode<8>(record + lane * 4, numbers);
        for (int i = 0; i < GROUP; i++) to[i] = rounded<T>(numbers[i] * scale + offset);
    }
}

// Weights scale · code + offset, scale and offset of each group of 32 inputs, of 16 neighbouring outputs side by side.
// Codes of 6 bits have scales and offsets of half a group.
//
// A record is one group of 16 outputs: lines of 64 bytes with the codes, then 16 scales, of 6 bits for each half, then as
// many offsets if there are any, in float16. Each output has one dword in a line. In 4 bits that is 8 inputs: numbers 0,
// 2, 4, 6 are in the halves of its first bytes, 1, 3, 5, 7 in those of its last. The lower 4 of 5 and 6 bits
// are in such lines; the upper ones in a line behind these, or in one for each half of the group, in each byte those of
// the codes in the same byte of the others, line after line. Without offsets codes of up to 6 bits are stored with half
// their range added. In 8 bits it is inputs 0, 2, 1, 3: the sign is bit 7,
// and a negative code c has -1 - c below it, so that |c + 1/2| is those bits plus 1/2. An output's records follow each
// other, then the next 16 outputs'; missing outputs have scale 0. Codes of 4 bits without offsets may stand for levels.
//
// Outputs of more than UNCUT groups are laid in bands of up to BAND blocks: the records of a stretch of groups for each of
// them, then the next stretch. So weights are read as they lie, while several blocks of outputs meet a stretch of the rows,
// which stays in the first cache; all of a shorter row does.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "lanes.h"

constexpr int GROUP = 32;
constexpr int BESIDE = 16;  // outputs of a record
constexpr int UNCUT = 32;
constexpr int BAND = 8;
constexpr int STRETCH = 16;    // groups, about
constexpr int ROWS_APART = 4;  // for so few blocks are computed one by one, if they are laid so

// The form of codes of 4 bits that stand for levels; those of others are their bits.
constexpr int BY_LEVELS = 3;
constexpr int MOST_LEVELS = 16;

constexpr int64_t middle_of(int64_t bits, bool offsets) { return bits == 8 || offsets ? 0 : 1 << (bits - 1); }

// that an output's codes of a group have
constexpr int scales_of_group(int64_t bits) { return bits == 6 ? 2 : 1; }

// the records of neighbouring groups of a block, one behind the other
struct Stretch {
    const char* first;
    int64_t start, end;  // of the groups
    int64_t size;        // of a record

    int64_t bytes() const { return (end - start) * size; }
    const char* at(int64_t group) const { return first + (group - start) * size; }
};

struct Records {
    int64_t bits;     // 4, 5, 6 or 8
    int64_t offsets;  // whether there are any
    int64_t groups;   // of an output
    int64_t blocks;
    const char* first;
    const int8_t* levels;  // [16]: what codes stand for; or null

    int64_t codes() const { return bits * GROUP * BESIDE / 8; }
    int64_t parts() const { return scales_of_group(bits); }
    // what codes are stored with added
    int64_t middle() const { return levels ? 0 : middle_of(bits, offsets); }
    int64_t size() const { return codes() + (offsets ? 4 : 2) * parts() * BESIDE; }
    int64_t stretches() const { return groups > UNCUT ? (groups + STRETCH / 2) / STRETCH : 1; }
    // whose outputs are computed together for so many rows
    int64_t band(int64_t rows) const { return groups > UNCUT || rows > ROWS_APART ? BAND : 1; }
    int64_t start(int64_t stretch) const { return groups * stretch / stretches(); }

    Stretch stretch(int64_t block, int64_t number) const {
        if (groups <= UNCUT) return {first + block * groups * size(), 0, groups, size()};
        int64_t from = start(number), end = start(number + 1), of_band = block / BAND * BAND;
        int64_t beside = std::min<int64_t>(BAND, blocks - of_band);
        return {first + (of_band * groups + from * beside + (block - of_band) * (end - from)) * size(), from, end, size()};
    }
};

// ``use(stretch)`` for those of a block; behind the bytes of one is the same one of the next block of the band
template <class Use> void each_stretch(const Records& records, int64_t block, const Use& use) {
    for (int64_t s = 0, count = records.stretches(); s < count; s++) use(records.stretch(block, s));
}

// ``use(record, group)`` for those of a block
template <class Use> void each_record(const Records& records, int64_t block, const Use& use) {
    each_stretch(records, block, [&](const Stretch& stretch) {
        for (int64_t g = stretch.start; g < stretch.end; g++) use(stretch.at(g), g);
    });
}

// Records that are multiplied later: fetched for one reading, or for one by every tile of rows; or not.
enum class Fetch { NOTHING, ONCE, KEPT };

// Σ x of the inputs of every scale, [N, S]
template <class T>
void sum_groups(const T* x, int64_t stride, int64_t rows, const Records& records, std::vector<float>& sums) {
    int64_t scales = records.groups * records.parts(), inputs = GROUP / records.parts();
    sums.resize(rows * scales);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t s = 0; s < scales; s++) {
            const T* from = x + r * stride + s * inputs;
            Lanes sum = load(from);
            for (int i = LANES; i < inputs; i += LANES) sum = sum + load(from + i);
            sums[r * scales + s] = sum_of(sum);
        }
}

// of codes with so many bits; of 5 and 6 those with the lower 4
constexpr int inputs_of_line(int bits) { return bits == 8 ? 4 : 8; }
constexpr int lines_of_group(int bits) { return GROUP / inputs_of_line(bits); }
// Of 5 and 6 bits: the line with the upper ones of line ``line``, where its codes in lower and in upper halves of bytes
// (0, 1) have them in each byte, and where input ``input`` of the line has them in a dword.
constexpr int upper_line(int bits, int line) { return 4 + (bits == 6 ? line / 2 : 0); }
constexpr int upper_place(int bits, int line, int half) { return bits == 6 ? line % 2 * 4 + half * 2 : line * 2 + half; }
constexpr int upper_shift(int bits, int line, int input) {
    return upper_place(bits, line, input / 2 % 2) + input / 4 * 8 + input % 2 * 16;
}
constexpr int upper_mask(int bits) { return bits == 6 ? 3 : 1; }
constexpr bool has_upper(int bits) { return bits == 5 || bits == 6; }

// the codes of a group of one output as they are stored, whose dwords are 64 bytes apart
template <int BITS> void decode(const char* dwords, float (&codes)[GROUP]) {
    constexpr int INPUTS = inputs_of_line(BITS), WIDTH = BITS == 8 ? 8 : 4;
    auto dword_of = [&](int line) {
        uint32_t dword;
        std::memcpy(&dword, dwords + line * 64, 4);
        return dword;
    };
    for (int line = 0; line < lines_of_group(BITS); line++) {
        uint32_t dword = dword_of(line), upper = has_upper(BITS) ? dword_of(upper_line(BITS, line)) : 0;
        for (int i = 0; i < INPUTS; i++) {
            int32_t code = dword >> (i / 2 * WIDTH + i % 2 * 16);
            if (BITS == 8) {
                code = int32_t(uint32_t(code) << 24) >> 24;
                code ^= (code >> 31) & 127;
            } else {
                code &= 15;
            }
            if (has_upper(BITS)) code += int32_t(upper >> upper_shift(BITS, line, i) & upper_mask(BITS)) * 16;
            codes[line * INPUTS + i] = float(code);
        }
    }
}

// Where codes lie one after the other: those of input ``input`` of a group, as QuantizedMatrix has them.
template <int BITS> inline uint32_t upper_bits(const char* codes, int64_t input) {
    const uint8_t* upper = (const uint8_t*)codes + GROUP / 2;
    return BITS == 6 ? upper[input % 8] >> input / 8 * 2 & 3 : upper[input / 8] >> input % 8 & 1;
}

// ``use(bits)`` with the number of bits as a type
template <class Use> void with_bits(int64_t bits, const Use& use) {
    if (bits == 4)
        use(std::integral_constant<int, 4>());
    else if (bits == 5)
        use(std::integral_constant<int, 5>());
    else if (bits == 6)
        use(std::integral_constant<int, 6>());
    else
        use(std::integral_constant<int, 8>());
}

// one row of weights [I] in floating point: scale · code is exact in float32
template <class T> void expand(const Records& records, int64_t output, T* to) {
    int64_t block = output / BESIDE, lane = output % BESIDE;
    each_record(records, block, [&](const char* record, int64_t) {
        const uint16_t* factors = (const uint16_t*)(record + records.codes()) + lane;
        float numbers[GROUP];
        with_bits(records.bits, [&](auto bits) { decode<decltype(bits)::value>(record + lane * 4, numbers); });
        int64_t parts = records.parts(), inputs = GROUP / parts;
        float middle = float(records.middle());
        for (int i = 0; i < GROUP && records.levels; i++) numbers[i] = float(records.levels[int(numbers[i])]);
        for (int64_t p = 0; p < parts; p++) {
            float scale = half_to_float(factors[p * BESIDE]);
            float offset = records.offsets ? half_to_float(factors[(parts + p) * BESIDE]) : 0.0f;
            for (int64_t i = p * inputs; i < (p + 1) * inputs; i++) to[i] = rounded<T>((numbers[i] - middle) * scale + offset);
        }
        to += GROUP;
    });
}

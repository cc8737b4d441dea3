// Tiles of quantised products for AVX-512: codes become bfloat16 by looking them up in registers.
#pragma once

#include "amx.h"
#include "quantized.h"

constexpr int QUANTIZED_ROWS = 8;

// Lines of codes as vectors of pairs: an output's dword holds inputs 2n and 2n + 1 in bfloat16.
template <int FORM> struct Codes;

template <> struct Codes<4> {
    static constexpr int LINES = 4, PAIRS = 4;
    // 0 … 15 twice: bit 4 of an index belongs to the next code
    alignas(64) static constexpr uint16_t NUMBERS[32] = {
        0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0, 0x4100, 0x4110, 0x4120,
        0x4130, 0x4140, 0x4150, 0x4160, 0x4170, 0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0,
        0x40C0, 0x40E0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
    struct Tables {
        __m512i numbers = _mm512_load_si512(NUMBERS);
        explicit Tables(const Records&) {}

      protected:
        explicit Tables(__m512i numbers) : numbers(numbers) {}
    };
    static void unpack(const char* record, int line, const Tables& t, __m512i (&pairs)[PAIRS]) {
        __m512i codes = _mm512_loadu_si512(record + line * 64);
        for (int k = 0; k < PAIRS; k++)
            pairs[k] = _mm512_permutexvar_epi16(_mm512_srli_epi32(codes, 4 * k), t.numbers);
    }
};

template <> struct Codes<BY_LEVELS> : Codes<4> {
    struct Tables : Codes<4>::Tables {
        explicit Tables(const Records& records) : Codes<4>::Tables(twice(records.levels)) {}

        static __m512i twice(const int8_t* levels) {
            Lanes numbers = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)levels)));
            // exact: whole numbers of 8 bits
            __m256i halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(numbers), 16));
            return _mm512_broadcast_i64x4(halves);
        }
    };
};

inline __m512i shifted_up(__m512i x, int by) { return by < 0 ? _mm512_srli_epi32(x, -by) : _mm512_slli_epi32(x, by); }

// the codes of a line in 5 or 6 bits: those in lower halves of bytes, then the others
template <int BITS> inline void bytes_with_upper(const char* record, int line, __m512i (&bytes)[2]) {
    const __m512i half = _mm512_set1_epi8(15), above = _mm512_set1_epi8(upper_mask(BITS) << 4);
    __m512i lower = _mm512_loadu_si512(record + line * 64);
    __m512i upper = _mm512_loadu_si512(record + upper_line(BITS, line) * 64);
    for (int v = 0; v < 2; v++) {
        __m512i own = _mm512_and_si512(v ? _mm512_srli_epi32(lower, 4) : lower, half);
        // upper & above | own
        bytes[v] = _mm512_ternarylogic_epi32(shifted_up(upper, 4 - upper_place(BITS, line, v)), above, own, 0xEA);
    }
}

struct Numbers {
    // 0 … 63 in bfloat16
    alignas(64) uint16_t numbers[64];
    constexpr Numbers() : numbers() {
        for (int i = 1; i < 64; i++) {
            int exponent = 0;
            while (i >> (exponent + 1)) exponent++;
            numbers[i] = uint16_t((exponent + 127) << 7 | ((i << (7 - exponent)) & 127));
        }
    }
};

template <int BITS> struct WithUpper {
    static constexpr int LINES = 4, PAIRS = 4;
    static constexpr Numbers NUMBERS{};
    struct Tables {
        __m512i first = _mm512_load_si512(NUMBERS.numbers), others = _mm512_load_si512(NUMBERS.numbers + 32);
        explicit Tables(const Records&) {}
    };
    static void unpack(const char* record, int line, const Tables& t, __m512i (&pairs)[PAIRS]) {
        __m512i bytes[2];
        bytes_with_upper<BITS>(record, line, bytes);
        for (int k = 0; k < PAIRS; k++) {
            __m512i codes = k < 2 ? bytes[k] : _mm512_srli_epi16(bytes[k - 2], 8);
            pairs[k] = _mm512_permutex2var_epi16(t.first, codes, t.others);
        }
    }
};

template <> struct Codes<5> : WithUpper<5> {};
template <> struct Codes<6> : WithUpper<6> {};

struct Halves {
    // |c + 1/2| of 0 … 127 in bfloat16: first bytes, then last bytes
    alignas(64) uint8_t low[128], high[128];
    constexpr Halves() : low(), high() {
        for (int i = 0; i < 128; i++) {
            int twice = 2 * i + 1, exponent = 0;
            while (twice >> (exponent + 1)) exponent++;
            int bits = (exponent + 126) << 7 | ((twice << (7 - exponent)) & 127);
            low[i] = uint8_t(bits & 255);
            high[i] = uint8_t(bits >> 8);
        }
    }
};

template <> struct Codes<8> {
    static constexpr int LINES = 8, PAIRS = 2;
    static constexpr Halves HALVES{};
    struct Tables {
        __m512i low0 = _mm512_load_si512(HALVES.low), low1 = _mm512_load_si512(HALVES.low + 64);
        __m512i high0 = _mm512_load_si512(HALVES.high), high1 = _mm512_load_si512(HALVES.high + 64);
        explicit Tables(const Records&) {}
    };
    static void unpack(const char* record, int line, const Tables& t, __m512i (&pairs)[PAIRS]) {
        __m512i codes = _mm512_loadu_si512(record + line * 64);
        __m512i low = _mm512_permutex2var_epi8(t.low0, codes, t.low1);
        __m512i high = _mm512_permutex2var_epi8(t.high0, codes, t.high1);
        // high | (codes & sign)
        high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(char(0x80)), 0xF8);
        // words of a low and a high byte: (low & 0x00FF) | high << 8, low >> 8 | (high & 0xFF00)
        pairs[0] = _mm512_ternarylogic_epi32(_mm512_slli_epi16(high, 8), low, _mm512_set1_epi16(0x00FF), 0xF8);
        pairs[1] = _mm512_ternarylogic_epi32(_mm512_srli_epi16(low, 8), high, _mm512_set1_epi16(short(0xFF00)), 0xF8);
    }
};

// the sum over inputs of one scale, pair by pair, with rows of T
template <class T> struct GroupSum {
    struct Weights {
        Lanes even, odd;
        explicit Weights(__m512i pairs)
            : even(_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))),
              odd(_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xFFFF0000))))) {}
    };
    Lanes even, odd;
    void start(float x) { even = all(x), odd = zeros(); }
    void add(const Weights& w, const T* x) {
        even = fused(w.even, all(to_float(x[0])), even);
        odd = fused(w.odd, all(to_float(x[1])), odd);
    }
    Lanes sum() const { return _mm512_add_ps(even, odd); }
};

#if defined(__AVX512BF16__)
template <> struct GroupSum<bf16> {
    struct Weights {
        __m512bh both;
        explicit Weights(__m512i pairs) : both((__m512bh)pairs) {}
    };
    Lanes both;
    void start(float x) { both = all(x); }
    void add(const Weights& w, const bf16* x) {
        int pair;
        std::memcpy(&pair, x, sizeof pair);
        both = _mm512_dpbf16_ps(both, w.both, (__m512bh)_mm512_set1_epi32(pair));
    }
    Lanes sum() const { return both; }
};
#endif

constexpr int64_t AHEAD_BYTES = 4096;  // between the records that are multiplied and those that are fetched

// The records behind this one. Those that are read once in a pass come faster past the outer caches, and drive nothing
// out of them; only measured on processors without AMX.
inline void fetch_ahead(const char* record, int64_t size, Fetch fetch) {
    if (fetch == Fetch::ONCE && !WITH_AMX)
        for (int64_t i = 0; i < size; i += 64) __builtin_prefetch(record + AHEAD_BYTES + i, 0, 0);
    else if (fetch != Fetch::NOTHING)
        for (int64_t i = 0; i < size; i += 64) __builtin_prefetch(record + AHEAD_BYTES + i, 0, 2);
}

// R rows, whose products with the groups before are in y; records behind are fetched meanwhile
template <class T, int BITS, int R>
void quantized_tile(const Records& records, const Stretch& stretch, const T* x, int64_t stride, const float* sums,
                    float* y, int64_t y_stride, Fetch fetch) {
    using C = Codes<BITS>;
    const typename C::Tables tables(records);
    constexpr int PARTS = scales_of_group(BITS), LINES = C::LINES / PARTS;
    // what has to be added to each looked up number
    const float below = BITS == 8 ? -0.5f : -float(records.middle());
    int64_t scales = records.groups * PARTS, size = records.size();
    const char* record = stretch.first;
    Lanes total[R];
    for (int r = 0; r < R; r++) total[r] = stretch.start ? load(y + r * y_stride) : zeros();
    for (int64_t s = stretch.start * PARTS; s < stretch.end * PARTS; record += size) {
        fetch_ahead(record, size, fetch);
        const __m256i* factors = (const __m256i*)(record + records.codes());
        for (int p = 0; p < PARTS; p++, s++) {
            GroupSum<T> part[R];
            for (int r = 0; r < R; r++) part[r].start(below == 0.0f ? 0.0f : below * sums[r * scales + s]);
            for (int line = 0; line < LINES; line++) {
                __m512i pairs[C::PAIRS];
                C::unpack(record, p * LINES + line, tables, pairs);
                for (int k = 0; k < C::PAIRS; k++) {
                    typename GroupSum<T>::Weights weights(pairs[k]);
                    const T* inputs = x + (s * LINES + line) * C::PAIRS * 2 + k * 2;
                    for (int r = 0; r < R; r++) part[r].add(weights, inputs + r * stride);
                }
            }
            Lanes scale = _mm512_cvtph_ps(_mm256_loadu_si256(factors + p));
            for (int r = 0; r < R; r++) total[r] = fused(scale, part[r].sum(), total[r]);
            if (records.offsets) {
                Lanes offset = _mm512_cvtph_ps(_mm256_loadu_si256(factors + PARTS + p));
                for (int r = 0; r < R; r++) total[r] = fused(offset, all(sums[r * scales + s]), total[r]);
            }
        }
    }
    for (int r = 0; r < R; r++) store(y + r * y_stride, total[r]);
}

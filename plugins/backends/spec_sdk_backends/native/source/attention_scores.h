// What both ways to attend to a span share: which columns of the cache are scored for whom, and scores as weights.
#pragma once

#include <cmath>

#include "across.h"
#include "piece.h"

constexpr int WIDTH = 64;  // columns that are scored at once

// What is read next, fetched into the second level while keys are turned: as many keys behind those of a block, and its
// values. A few lines at a time, since there are few that a core can wait for.
template <class T> struct Fetching {
    const char *keys, *values;
    int64_t dim;

    Fetching(const T* key, const T* values, int64_t dim)
        : keys((const char*)(key + WIDTH * dim)), values((const char*)values), dim(dim) {}

    // What belongs to keys c … c + LANES - 1 and to the 16 bytes of them from number d on.
    __attribute__((always_inline)) void operator()(int64_t c, int64_t d) const {
        lines(keys, c, d);
        lines(values, c, d);
    }

    // Always inlined: to g++ a call that does nothing but fetch does nothing
    __attribute__((always_inline)) void lines(const char* from, int64_t c, int64_t d) const {
        int64_t at = (c * dim + d * LANES) * sizeof(T);
        for (int64_t i = 0; i < LANES * 16; i += 64) __builtin_prefetch(from + at + i, 0, 2);
    }
};

// What is read next, fetched into the second level evenly with the steps of a product, so that memory and arithmetic work
// at the same time.
struct LinesAhead {
    const char* next = nullptr;
    int64_t bytes = 0;  // with a step

    LinesAhead() = default;
    LinesAhead(const void* from, int64_t bytes, int64_t steps) : next((const char*)from), bytes((bytes + steps - 1) / steps) {}

    __attribute__((always_inline)) void operator()() {
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(next + i, 0, 2);
        next += bytes;
    }
};

// The keys of a piece, fetched while the values of the one before are added.
template <class C> class KeysAhead {
  public:
    template <class T> void begin(const Piece<T, C>& piece) {
        _there = piece.keys + piece.start * piece.heads.dim == _next;
        _next = nullptr;
    }

    // those of the piece at hand were
    bool there() const { return _there; }

    // those of the next one will be, with so many steps
    template <class T> LinesAhead next(const Piece<T, C>& piece, int64_t steps) {
        if (!piece.next || steps <= 0) return {};
        _next = piece.next;
        return {piece.next, piece.next_count * piece.heads.dim * int64_t(sizeof(C)), steps};
    }

  private:
    bool _there = false;
    const C* _next = nullptr;
};

// score [queries][SPAN] by key number. ``kernel.scores(piece, key, count, to, stride, ahead)``: scores of all queries with
// ``count`` columns of the cache from the one at ``key`` on, and values that are fetched meanwhile
template <class T, class C, class Kernel>
void all_scores(const Piece<T, C>& piece, Kernel& kernel, float* score, float* own) {
    int64_t D = piece.heads.dim;
    for (int64_t j = 0; j < piece.common; j += WIDTH) {
        int64_t at = (piece.start + j) * D;
        kernel.scores(piece, piece.keys + at, std::min<int64_t>(WIDTH, piece.common - j), score + j, SPAN,
                      piece.values + at);
    }
    // of tree slots each row takes those of its path
    int64_t first = INT64_MAX, last = -1, next[MOST_QUERIES];
    for (int64_t n = 0; n < piece.count; n++) {
        next[n] = piece.common;
        if (next[n] >= piece.end[n]) continue;
        first = std::min(first, piece.column(n, next[n]));
        last = std::max(last, piece.column(n, piece.end[n] - 1));
    }
    for (int64_t from = first; from <= last; from += WIDTH) {
        int64_t count = std::min<int64_t>(WIDTH, last + 1 - from);
        kernel.scores(piece, piece.keys + from * D, count, own, WIDTH, piece.values + from * D);
        for (int64_t n = 0; n < piece.count; n++)
            for (; next[n] < piece.end[n]; next[n]++) {
                int64_t column = piece.column(n, next[n]) - from;
                if (column >= count) break;
                for (int64_t q = n * piece.group; q < (n + 1) * piece.group; q++)
                    score[q * SPAN + next[n]] = own[q * WIDTH + column];
            }
    }
}

#if WITH_AVX512

// whether all numbers of a value [D] are
inline bool finite(const bf16* x, int64_t dim) {
    __mmask16 bad = 0;
    for (int64_t d = 0; d < dim; d += LANES) bad |= _mm512_fpclass_ps_mask(load(x + d), 0x99);
    return bad == 0;
}

// x 2^n, 0 where e^at would be subnormal
inline Lanes with_power(Lanes x, Lanes n, Lanes at) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(at, all(-87.0f), _CMP_NLT_UQ), x, n);
}

inline float largest(Lanes x) { return _mm512_reduce_max_ps(x); }
inline float total(Lanes x) { return _mm512_reduce_add_ps(x); }

#else

inline Lanes with_power(Lanes x, Lanes n, Lanes at) {
    LaneBits power = ((LaneBits)(n + all(12582912.0f)) + 127u) << 23;
    return (Lanes)((LaneBits)(x * (Lanes)power) & ~(LaneBits)(at < all(-87.0f)));
}

inline float largest(Lanes x) {
    float most = x[0];
    for (int l = 1; l < LANES; l++) most = x[l] > most ? x[l] : most;
    return most;
}

inline float total(Lanes x) { return sum_of(x); }

#endif

// e^x within 2 units in the last place; 0 below -87. For x <= 0, or NaN.
inline Lanes exponential(Lanes x) {
    // adding and subtracting 1.5 * 2^23 rounds to a whole number
    Lanes turns = fused(x, all(1.44269504f), all(12582912.0f)) - all(12582912.0f);
    Lanes rest = fused(turns, all(2.12194440e-4f), fused(turns, all(-0.693359375f), x));
    Lanes sum = all(1.9875691500e-4f);
    sum = fused(sum, rest, all(1.3981999507e-3f));
    sum = fused(sum, rest, all(8.3334519073e-3f));
    sum = fused(sum, rest, all(4.1665795894e-2f));
    sum = fused(sum, rest, all(1.6666665459e-1f));
    sum = fused(sum, rest, all(5.0000001201e-1f));
    sum = fused(sum, rest * rest, rest + all(1.0f));
    return with_power(sum, turns, x);
}

// a query's scores become exp(score - top), 0 where hidden: before ``hidden`` and from ``end`` on
inline Span weights(const Heads& heads, float* score, int64_t hidden, int64_t end) {
    float scale = heads.scale;
    if (heads.cap > 0) {
        for (int64_t j = hidden; j < end; j++) score[j] = capped(score[j] * scale, heads.cap);
        scale = 1;
    }
    if (end <= hidden) {
        std::fill(score, score + SPAN, 0.0f);
        return {-INFINITY, 0};
    }
    int64_t seen = (end + LANES - 1) / LANES * LANES;
    if (hidden > 0) std::fill(score, score + hidden, -INFINITY);
    std::fill(score + end, score + seen, -INFINITY);
    std::fill(score + seen, score + SPAN, 0.0f);
    Lanes most = all(-INFINITY), sum[2] = {zeros(), zeros()};
    for (int64_t j = 0; j < seen; j += LANES) most = larger(load(score + j) * all(scale), most);
    float top = largest(most);  // passing over what is not a number
    for (int64_t j = 0; j < seen; j += LANES) {
        Lanes weight = exponential(load(score + j) * all(scale) - all(top));
        Lanes& part = sum[j / LANES % 2];
        part = part + weight;
        store(score + j, weight);
    }
    return {top, total(sum[0] + sum[1])};
}

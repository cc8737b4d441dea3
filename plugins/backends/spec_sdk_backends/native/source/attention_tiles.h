// A span of keys for some rows by AMX tiles: sums of 32 products of bfloat16 at a time for 16 queries x 16 columns.
//
// float32 is taken as the sum of three bfloat16 of 8 bits each, which it is exactly. Of the products of such parts those
// above 2^-24 of the largest are added. Keys and values in bfloat16 have one part; then weights have two, 16 bits.
//
// A result of a tile depends on its own row and column alone. The sum over a row's keys goes in steps of 32 key numbers.
// Rows that have the same keys in a step take it together: behind the prefix those of one path.
//
// Layout of tiles: A [16 queries][16 pairs], B [16 pairs][16 columns], of bfloat16 pairs. Which inputs make a pair does
// not matter as long as both agree: numbers i and i + 16 of the 32, or neighbours where they lie so in memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "lanes.h"
#include "piece.h"

#if WITH_AVX512 && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#define WITH_TILES 1
#include <sys/syscall.h>
#include <unistd.h>

constexpr int64_t TILE_BYTES = 1024;
constexpr int TILE_QUERIES = 16;
constexpr int STEP = 32;  // inputs that a tile sums up
constexpr int COLUMNS = 4;  // tiles of sums at once

// compilers do not know that tile loads read what they point at
inline void written() { asm volatile("" ::: "memory"); }

// whether they are used where they may be
inline std::atomic<bool> tiles_wanted{true};

// Whether this process may use tiles, which Linux has to be asked for once.
inline bool tiles_allowed() {
    static const bool allowed = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
    return allowed;
}

// The shapes of this thread's tiles while it lives: all 16 rows of 64 bytes.
class Tiles {
  public:
    Tiles() {
        alignas(64) uint8_t shape[64] = {1};
        for (int i = 0; i < 8; i++) shape[16 + 2 * i] = 64, shape[48 + i] = 16;
        asm volatile("ldtilecfg %0" ::"m"(shape));
    }
    ~Tiles() { _tile_release(); }
    Tiles(const Tiles&) = delete;
};

// the upper halves of lanes: a's are the lower ones of the result
inline __m512i upper_halves(Lanes a, Lanes b) {
    __m512i low = _mm512_srli_epi32(_mm512_castps_si512(a), 16);
    return _mm512_ternarylogic_epi32(low, _mm512_castps_si512(b), _mm512_set1_epi32(0xFFFF0000), 0xF8);
}

inline Lanes upper(Lanes x) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0xFFFF0000)));
}

// a row of pairs (a, b) in so many parts, a tile's size apart
template <int PARTS> inline void split(Lanes a, Lanes b, char* to) {
    for (int p = 0; p < PARTS; p++) {
        _mm512_store_si512(to + p * TILE_BYTES, upper_halves(a, b));
        if (p + 1 < PARTS) {
            a = _mm512_sub_ps(a, upper(a));
            b = _mm512_sub_ps(b, upper(b));
        }
    }
}

// e^x within 2 units in the last place; 0 below -87. For x <= 0, or NaN.
inline Lanes exponential(Lanes x) {
    __mmask16 seen = _mm512_cmp_ps_mask(x, all(-87.0f), _CMP_NLT_UQ);
    Lanes turns = _mm512_sub_ps(fused(x, all(1.44269504f), all(12582912.0f)), all(12582912.0f));
    Lanes rest = fused(turns, all(2.12194440e-4f), fused(turns, all(-0.693359375f), x));
    Lanes sum = all(1.9875691500e-4f);
    sum = fused(sum, rest, all(1.3981999507e-3f));
    sum = fused(sum, rest, all(8.3334519073e-3f));
    sum = fused(sum, rest, all(4.1665795894e-2f));
    sum = fused(sum, rest, all(1.6666665459e-1f));
    sum = fused(sum, rest, all(5.0000001201e-1f));
    sum = fused(sum, _mm512_mul_ps(rest, rest), _mm512_add_ps(rest, all(1.0f)));
    return _mm512_maskz_scalef_ps(seen, sum, turns);
}

// 16 keys x 4 numbers become 4 vectors of 16 keys: row [k] points at key k
inline void four_across(const char* const (&row)[16], int64_t offset, Lanes (&to)[4]) {
    Lanes x[4];
    for (int k = 0; k < 4; k++) {
        x[k] = _mm512_castps128_ps512(_mm_loadu_ps((const float*)(row[k] + offset)));
        x[k] = _mm512_mask_broadcast_f32x4(x[k], 0x00F0, _mm_loadu_ps((const float*)(row[k + 4] + offset)));
        x[k] = _mm512_mask_broadcast_f32x4(x[k], 0x0F00, _mm_loadu_ps((const float*)(row[k + 8] + offset)));
        x[k] = _mm512_mask_broadcast_f32x4(x[k], 0xF000, _mm_loadu_ps((const float*)(row[k + 12] + offset)));
    }
    Lanes low01 = _mm512_unpacklo_ps(x[0], x[1]), high01 = _mm512_unpackhi_ps(x[0], x[1]);
    Lanes low23 = _mm512_unpacklo_ps(x[2], x[3]), high23 = _mm512_unpackhi_ps(x[2], x[3]);
    to[0] = _mm512_shuffle_ps(low01, low23, 0x44);
    to[1] = _mm512_shuffle_ps(low01, low23, 0xEE);
    to[2] = _mm512_shuffle_ps(high01, high23, 0x44);
    to[3] = _mm512_shuffle_ps(high01, high23, 0xEE);
}

// How numbers become tiles: ``PARTS`` of queries, keys and values, ``OF_WEIGHT`` of a key's weight
template <class T> struct TileParts;

template <> struct TileParts<float> {
    static constexpr int PARTS = 3, OF_WEIGHT = 3;

    // a row of A: inputs from ``step`` on, of which there are ``count``
    static void query(const float* q, int64_t count, char* to) {
        split<PARTS>(load(q), count > 16 ? load(q + 16) : zeros(), to);
    }

    // a tile of B: a step's inputs of 16 keys
    static void keys(const float* const (&key)[16], int64_t first, int64_t count, char* to) {
        const char* row[16];
        for (int k = 0; k < 16; k++) row[k] = (const char*)(key[k] + first);
        for (int i = 0; i < 16; i += 4) {
            Lanes a[4], b[4] = {zeros(), zeros(), zeros(), zeros()};
            four_across(row, i * 4, a);
            if (count > 16) four_across(row, 64 + i * 4, b);
            for (int k = 0; k < 4; k++) split<PARTS>(a[k], b[k], to + (i + k) * 64);
        }
    }

    // a row of B: 16 values of a pair of keys
    static void values(const float* a, const float* b, char* to) {
        split<PARTS>(a ? load(a) : zeros(), b ? load(b) : zeros(), to);
    }
};

template <> struct TileParts<bf16> {
    static constexpr int PARTS = 1, OF_WEIGHT = 2;

    static void query(const bf16* q, int64_t count, char* to) {
        _mm512_store_si512(to, _mm512_maskz_loadu_epi16(count > 16 ? 0xFFFFFFFF : 0xFFFF, q));
    }

    static void keys(const bf16* const (&key)[16], int64_t first, int64_t count, char* to) {
        const char* row[16];
        for (int k = 0; k < 16; k++) row[k] = (const char*)(key[k] + first);
        for (int i = 0; i < 16; i += 4) {
            Lanes a[4] = {zeros(), zeros(), zeros(), zeros()};
            if (2 * i < count) four_across(row, i * 4, a);
            for (int k = 0; k < 4; k++) _mm512_store_ps(to + (i + k) * 64, a[k]);
        }
    }

    static void values(const bf16* a, const bf16* b, char* to) {
        __m512i low = _mm512_castps_si512(a ? load(a) : zeros()), high = _mm512_castps_si512(b ? load(b) : zeros());
        _mm512_store_si512(to, _mm512_or_si512(_mm512_srli_epi32(low, 16), high));
    }
};

// c [16][N tiles] += A B, step after step, small parts first. A: [steps][PA] tiles; B: [N][PB] tiles, steps so far apart.
template <int PA, int PB, int N>
inline void add_tiles(const char* a, const char* b, int64_t b_step, int64_t steps) {
    constexpr int MOST = PA > PB ? PA : PB;
    for (int64_t s = 0; s < steps; s++, a += PA * TILE_BYTES, b += b_step) {
        _tile_loadd(4, a, 64);
        if (PA > 1) _tile_loadd(5, a + TILE_BYTES, 64);
        if (PA > 2) _tile_loadd(6, a + 2 * TILE_BYTES, 64);
#define COLUMN_TILE(c)                                                          \
    if (c < N) {                                                                \
        _tile_loadd(7, b + (c * PB + p) * TILE_BYTES, 64);                       \
        if (PA > 2 && p + 2 < MOST) _tile_dpbf16ps(c, 6, 7);                    \
        if (PA > 1 && p + 1 < MOST) _tile_dpbf16ps(c, 5, 7);                    \
        _tile_dpbf16ps(c, 4, 7);                                                \
    }
#pragma GCC unroll 4
        for (int p = PB - 1; p >= 0; p--) {
            COLUMN_TILE(0) COLUMN_TILE(1) COLUMN_TILE(2) COLUMN_TILE(3)
        }
#undef COLUMN_TILE
    }
}

// to = from + A B, [16][N tiles]; from null: 0
template <int PA, int PB, int N>
void tile_products(const char* a, const char* b, int64_t b_step, int64_t steps, const float* from,
                   int64_t from_stride, float* to, int64_t stride) {
    written();
#define COLUMN_TILE(c)                                                              \
    if (c < N) {                                                                    \
        if (from)                                                                   \
            _tile_loadd(c, from + c * 16, from_stride * 4);                         \
        else                                                                        \
            _tile_zero(c);                                                          \
    }
    COLUMN_TILE(0) COLUMN_TILE(1) COLUMN_TILE(2) COLUMN_TILE(3)
#undef COLUMN_TILE
    add_tiles<PA, PB, N>(a, b, b_step, steps);
#define COLUMN_TILE(c) \
    if (c < N) _tile_stored(c, to + c * 16, stride * 4);
    COLUMN_TILE(0) COLUMN_TILE(1) COLUMN_TILE(2) COLUMN_TILE(3)
#undef COLUMN_TILE
    written();
}

template <class T> class TiledSpan {
    using P = TileParts<T>;

  public:
    explicit TiledSpan(int64_t dim) : D(dim), _steps((dim + STEP - 1) / STEP), _columns(dim / 16) {
        int64_t query_tiles = MOST_QUERIES / TILE_QUERIES, size = 0;
        auto room = [&](int64_t bytes) { return (size += bytes) - bytes; };
        int64_t q = room(query_tiles * _steps * P::PARTS * TILE_BYTES);
        int64_t k = room(COLUMNS * _steps * P::PARTS * TILE_BYTES);
        int64_t v = room(SPAN / STEP * _columns * P::PARTS * TILE_BYTES);
        int64_t w = room(query_tiles * SPAN / STEP * P::OF_WEIGHT * TILE_BYTES);
        int64_t score = room(MOST_QUERIES * SPAN * 4), own = room(MOST_QUERIES * WIDTH * 4);
        int64_t sum = room(MOST_QUERIES * D * 4), part = room(TILE_QUERIES * WIDTH * 4);
        thread_local std::vector<char> kept;
        if (kept.size() < size_t(size + 64)) kept.resize(size + 64);
        char* base = (char*)((uintptr_t(kept.data()) + 63) / 64 * 64);
        _q = base + q, _k = base + k, _v = base + v, _w = base + w;
        _score = (float*)(base + score), _own = (float*)(base + own);
        _sum = (float*)(base + sum), _part = (float*)(base + part);
    }

    // what the span gives each query of the piece; ``to(n, h)`` numbers the results. same: it has the queries of the
    // piece before
    template <class To> void run(const Piece<T>& piece, bool same, Span* spans, float* sums, To to) {
        if (!same) pack_queries(piece);
        prefix_scores(piece);
        own_scores(piece);
        int64_t last = 0, joint = piece.common / STEP;
        for (int64_t n = 0; n < piece.count; n++) {
            last = std::max(last, (piece.end[n] + STEP - 1) / STEP);
            for (int64_t h = 0; h < piece.group; h++)
                spans[to(n, h)] = weights(piece.heads, n * piece.group + h, piece.hidden[n], piece.end[n]);
        }
        for (int64_t s = 0; s < joint; s++) pack_values(s, STEP, [&](int64_t i) { return prefix_value(piece, s, i); });
        for (int64_t t = 0; t < tiles(piece); t++) add_values(t, 0, joint, false, 0, TILE_QUERIES);
        for (int64_t s = joint; s < last; s++) add_paths(piece, s);
        for (int64_t n = 0; n < piece.count; n++)
            for (int64_t h = 0; h < piece.group; h++)
                std::memcpy(sums + to(n, h) * D, _sum + (n * piece.group + h) * D, D * sizeof(float));
    }

  private:
    static constexpr int WIDTH = COLUMNS * 16;

    static int64_t tiles(const Piece<T>& piece) { return (piece.queries() + TILE_QUERIES - 1) / TILE_QUERIES; }

    const T* prefix_value(const Piece<T>& piece, int64_t s, int64_t i) const {
        return piece.values + (piece.start + s * STEP + i) * D;
    }

    void pack_queries(const Piece<T>& piece) {
        for (int64_t n = 0; n < piece.count; n++)
            for (int64_t h = 0; h < piece.group; h++) {
                int64_t at = n * piece.group + h;
                const T* q = piece.q + n * piece.q_stride + h * D;
                char* to = _q + at / TILE_QUERIES * _steps * P::PARTS * TILE_BYTES + at % TILE_QUERIES * 64;
                for (int64_t s = 0; s < _steps; s++)
                    P::query(q + s * STEP, D - s * STEP, to + s * P::PARTS * TILE_BYTES);
            }
    }

    // scores of ``count`` columns of the cache, at most WIDTH, from the one at ``key`` on
    void scores(const Piece<T>& piece, const T* key, int64_t count, float* to, int64_t stride) {
        int64_t columns = (count + 15) / 16, step = columns * P::PARTS * TILE_BYTES;
        for (int64_t c = 0; c < columns; c++) {
            const T* of[16];
            for (int k = 0; k < 16; k++) of[k] = key + std::min(c * 16 + k, count - 1) * D;
            for (int64_t s = 0; s < _steps; s++)
                P::keys(of, s * STEP, D - s * STEP, _k + s * step + c * P::PARTS * TILE_BYTES);
        }
        with_count<COLUMNS>(columns, [&](auto n) {
            for (int64_t t = 0; t < tiles(piece); t++)
                tile_products<P::PARTS, P::PARTS, decltype(n)::value>(_q + t * _steps * P::PARTS * TILE_BYTES, _k, step,
                                                                      _steps, nullptr, 0, to + t * TILE_QUERIES * stride,
                                                                      stride);
        });
    }

    void prefix_scores(const Piece<T>& piece) {
        for (int64_t j = 0; j < piece.common; j += WIDTH) {
            int64_t count = std::min<int64_t>(WIDTH, piece.common - j);
            // values lie behind one another as keys do, and are read when all scores are there
            const char* wanted = (const char*)(piece.values + (piece.start + j) * D);
            for (int64_t i = 0; i < count * D * int64_t(sizeof(T)); i += 64) __builtin_prefetch(wanted + i, 0, 2);
            scores(piece, piece.keys + (piece.start + j) * D, count, _score + j, SPAN);
        }
    }

    // scores of tree slots, of which each row takes those of its path
    void own_scores(const Piece<T>& piece) {
        int64_t first = INT64_MAX, last = -1, next[MOST_QUERIES];
        for (int64_t n = 0; n < piece.count; n++) {
            next[n] = piece.common;
            if (next[n] >= piece.end[n]) continue;
            first = std::min(first, piece.column(n, next[n]));
            last = std::max(last, piece.column(n, piece.end[n] - 1));
        }
        for (int64_t from = first; from <= last; from += WIDTH) {
            int64_t count = std::min<int64_t>(WIDTH, last + 1 - from);
            scores(piece, piece.keys + from * D, count, _own, WIDTH);
            for (int64_t n = 0; n < piece.count; n++)
                for (; next[n] < piece.end[n]; next[n]++) {
                    int64_t column = piece.column(n, next[n]) - from;
                    if (column >= count) break;
                    for (int64_t q = n * piece.group; q < (n + 1) * piece.group; q++)
                        _score[q * SPAN + next[n]] = _own[q * WIDTH + column];
                }
        }
    }

    // exp(score - top), 0 where hidden: before ``hidden`` and from ``end`` on, as a row of A
    Span weights(const Heads& heads, int64_t q, int64_t hidden, int64_t end) {
        float *score = _score + q * SPAN, scale = heads.scale;
        if (heads.cap > 0) {
            for (int64_t j = hidden; j < end; j++) score[j] = capped(score[j] * scale, heads.cap);
            scale = 1;
        }
        constexpr int VECTORS = SPAN / LANES;
        Lanes x[VECTORS], most = all(-INFINITY), total = zeros();
        for (int i = 0; i < VECTORS; i++) {
            auto lanes = [&](int64_t j) { return first_lanes(int(std::clamp<int64_t>(j - i * LANES, 0, LANES))); };
            x[i] = _mm512_mask_mul_ps(all(-INFINITY), lanes(end) & ~lanes(hidden), load(score + i * LANES), all(scale));
            most = larger(x[i], most);
        }
        float top = _mm512_reduce_max_ps(most);
        Lanes least = all(top == -INFINITY ? 0.0f : top);  // all hidden or NaN
        char* to = _w + q / TILE_QUERIES * (SPAN / STEP) * P::OF_WEIGHT * TILE_BYTES + q % TILE_QUERIES * 64;
        for (int s = 0; s < SPAN / STEP; s++) {
            Lanes a = exponential(_mm512_sub_ps(x[2 * s], least)), b = exponential(_mm512_sub_ps(x[2 * s + 1], least));
            total = _mm512_add_ps(total, _mm512_add_ps(a, b));
            split<P::OF_WEIGHT>(a, b, to + s * P::OF_WEIGHT * TILE_BYTES);
        }
        return {top, sum_of(total)};
    }

    // the values of a step's first ``count`` keys as tiles of B, zeros for the others
    template <class Value> void pack_values(int64_t s, int64_t count, Value value) {
        char* to = _v + s * _columns * P::PARTS * TILE_BYTES;
        for (int64_t i = 0; i < STEP / 2; i++) {
            const T *a = i < count ? value(i) : nullptr, *b = i + STEP / 2 < count ? value(i + STEP / 2) : nullptr;
            for (int64_t c = 0; c < _columns; c++)
                P::values(a ? a + c * 16 : nullptr, b ? b + c * 16 : nullptr, to + c * P::PARTS * TILE_BYTES + i * 64);
        }
    }

    // sums of tile t's queries first … end - 1 += the values of so many steps; not ``more``: the sums begin there
    void add_values(int64_t t, int64_t step, int64_t steps, bool more, int64_t first, int64_t end) {
        const char* a = _w + (t * (SPAN / STEP) + step) * P::OF_WEIGHT * TILE_BYTES;
        bool whole = first == 0 && end == TILE_QUERIES;
        for (int64_t c = 0; c < _columns; c += COLUMNS) {
            int64_t columns = std::min<int64_t>(COLUMNS, _columns - c), stride = _columns * P::PARTS * TILE_BYTES;
            float* sum = _sum + t * TILE_QUERIES * D + c * 16;
            with_count<COLUMNS>(columns, [&](auto n) {
                tile_products<P::OF_WEIGHT, P::PARTS, decltype(n)::value>(
                    a, _v + step * stride + c * P::PARTS * TILE_BYTES, stride, steps, more ? sum : nullptr, D,
                    whole ? sum : _part, whole ? D : WIDTH);
            });
            for (int64_t q = first; q < end && !whole; q++)
                std::memcpy(sum + q * D, _part + q * WIDTH, columns * 64);
        }
    }

    // a step that has keys behind the prefix: rows whose keys are the same, as far as they go, take it together
    void add_paths(const Piece<T>& piece, int64_t s) {
        int64_t from = s * STEP;
        for (int64_t n = 0, next; n < piece.count; n = next) {
            int64_t longest = n;
            for (next = n + 1; next < piece.count && alike(piece, longest, next, from); next++)
                if (piece.end[next] > piece.end[longest]) longest = next;
            auto value = [&](int64_t i) { return piece.values + piece.column(longest, from + i) * D; };
            int64_t count = std::min<int64_t>(STEP, piece.end[longest] - from);
            // a hidden value counts 0 times, which is 0 of a number only
            for (int64_t i = 0; i < count && next > n + 1; i++)
                if (!finite(value(i))) next = n + 1, longest = n;
            count = std::min<int64_t>(STEP, piece.end[longest] - from);
            if (count <= 0) continue;
            pack_values(s, count, value);
            int64_t q = n * piece.group, end = next * piece.group;
            for (int64_t t = q / TILE_QUERIES; t * TILE_QUERIES < end; t++)
                add_values(t, s, 1, true, std::max<int64_t>(0, q - t * TILE_QUERIES),
                           end == piece.queries() ? TILE_QUERIES : std::min<int64_t>(TILE_QUERIES, end - t * TILE_QUERIES));
        }
    }

    // whether rows a and b have the same keys from ``from`` on, as far as the step goes and both have any
    static bool alike(const Piece<T>& piece, int64_t a, int64_t b, int64_t from) {
        int64_t end = std::min({piece.end[a], piece.end[b], from + STEP});
        for (int64_t j = std::max(piece.common, from); j < end; j++)
            if (piece.column(a, j) != piece.column(b, j)) return false;
        return true;
    }

    bool finite(const T* x) const {
        __mmask16 bad = 0;
        for (int64_t d = 0; d < D; d += 16) bad |= _mm512_fpclass_ps_mask(load(x + d), 0x99);
        return bad == 0;
    }

    int64_t D, _steps, _columns;
    char *_q, *_k, *_v, *_w;               // tiles of queries, keys, values, weights
    float *_score, *_own, *_sum, *_part;
};
#endif

// Products of rows with dense weights in panels of 16 outputs.
//
// The lanes of a step are multiplied with one value of a row each. So the sum of an output and a row stays in one lane,
// input after input, whatever the tile, the number of rows and the number of threads.
#pragma once

#include <vector>

#include "panels_amx.h"

// How a vector of a step's weights is multiplied with one row's inputs of that step, which are packed as Input.
template <class T> struct Step;

template <> struct Step<float> {
    using Input = float;
    using Weights = Lanes;
    using Inputs = Lanes;
    static Weights weights(const char* p) { return load((const float*)p); }
    static Inputs inputs(const Input* x) { return all(*x); }
    static Lanes add(Lanes sum, Weights w, Inputs x) { return fused(w, x, sum); }
};

#if WITH_AVX512 && defined(__AVX512BF16__)

template <> struct Step<bf16> {
    using Input = bf16;
    using Weights = __m512i;
    using Inputs = __m512i;
    static Weights weights(const char* p) { return _mm512_loadu_si512(p); }
    static Inputs inputs(const Input* x) {
        int32_t pair;
        std::memcpy(&pair, x, sizeof pair);
        return _mm512_set1_epi32(pair);
    }
    static Lanes add(Lanes sum, Weights w, Inputs x) { return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x); }
};

#else

// both inputs of a lane widened: the first is its lower half
template <> struct Step<bf16> {
    using Input = float;
    struct Weights {
        Lanes first, second;
    };
    using Inputs = Weights;
    static Weights weights(const char* p) {
        typedef uint32_t Bits __attribute__((vector_size(sizeof(Lanes))));
        Bits bits;
        std::memcpy(&bits, p, sizeof bits);
        return {(Lanes)(bits << 16), (Lanes)(bits & 0xFFFF0000u)};
    }
    static Inputs inputs(const Input* x) { return {all(x[0]), all(x[1])}; }
    static Lanes add(Lanes sum, const Weights& w, const Inputs& x) {
        return fused(w.second, x.second, fused(w.first, x.first, sum));
    }
};

#endif

inline float input_of(float x, float) { return x; }
inline float input_of(bf16 x, float) { return to_float(x); }
inline bf16 input_of(bf16 x, bf16) { return x; }

// Rows [N, I] tile by tile, [steps][rows of the tile][DEPTH]; or for AMX.
template <class T> struct Packed {
    using Input = typename Step<T>::Input;
    Input* data;
    int64_t count, steps;
    bool by_amx = WITH_AMX && std::is_same<T, bf16>::value && amx.load(std::memory_order_relaxed);

    // the most elements that so many rows take
    static int64_t size(int64_t rows, int64_t inputs) {
        int64_t tiled = RowTiles(rows).all() * panel_tiles_of(steps_of<T>(inputs)) * TILE_INPUTS;
        return std::max(rows * steps_of<T>(inputs) * DEPTH<T>, std::is_same<T, bf16>::value && WITH_AMX ? tiled : 0);
    }

    TiledRows tiled() const { return {(bf16*)data, count, steps}; }

    // rows of a panel's sums: those behind the last are there, and mean nothing
    int64_t lines() const { return by_amx ? RowTiles(count).all() : count; }

    // tiles are equally large, give or take a row
    int64_t tiles() const {
        return by_amx ? RowTiles(count).count : (count + PANEL_ROWS - 1) / PANEL_ROWS;
    }
    int64_t first(int64_t tile) const { return count * tile / tiles(); }
    Input* tile(int64_t tile) const { return data + first(tile) * steps * DEPTH<T>; }

    void pack(int64_t tile, const T* x, int64_t stride, int64_t inputs) const {
        if constexpr (std::is_same<T, bf16>::value)
            if (by_amx) return tiled().pack(tile, x, stride, inputs);
        int64_t start = first(tile), rows = first(tile + 1) - start;
        for (int64_t r = 0; r < rows; r++) {
            const T* from = x + (start + r) * stride;
            Input* to = this->tile(tile) + r * DEPTH<T>;
            int64_t whole = inputs / DEPTH<T>;
            for (int64_t s = 0; s < whole; s++)
                for (int d = 0; d < DEPTH<T>; d++)
                    to[s * rows * DEPTH<T> + d] = input_of(from[s * DEPTH<T> + d], Input());
            for (int64_t s = whole; s < steps; s++)
                for (int d = 0; d < DEPTH<T>; d++)
                    to[s * rows * DEPTH<T> + d] =
                        s * DEPTH<T> + d < inputs ? input_of(from[s * DEPTH<T> + d], Input()) : Input();
        }
    }
};

// sum[b][r] += the products of step s of panel b and row r
template <class T, int P, int R>
inline __attribute__((always_inline)) void panel_step(const char* const (&w)[P], const typename Step<T>::Input* x,
                                                      int64_t s, Lanes (&sum)[P][R][PARTS]) {
    using S = Step<T>;
    typename S::Weights weights[P][PARTS];
    UNROLLED for (int b = 0; b < P; b++)
        UNROLLED for (int i = 0; i < PARTS; i++)
            weights[b][i] = S::weights(w[b] + s * STEP_BYTES + i * (STEP_BYTES / PARTS));
    UNROLLED for (int r = 0; r < R; r++) {
        typename S::Inputs inputs = S::inputs(x + (s * R + r) * DEPTH<T>);
        UNROLLED for (int b = 0; b < P; b++)
            UNROLLED for (int i = 0; i < PARTS; i++) sum[b][r][i] = S::add(sum[b][r][i], weights[b][i], inputs);
    }
}

// y[b][r] += the products of ``steps`` steps of panel b and row r, P panels and R rows; anew or in addition to y.
// Meanwhile ``fetch`` of four steps of the weights that are next are fetched into the second-level cache. A function of
// its own: inlined, its sums would not all stay in registers.
template <class T, int P, int R>
__attribute__((noinline)) void panel_tile(const char* const (&w)[P], const char* const (&next)[P], int fetch,
                                          const typename Step<T>::Input* x, int64_t steps, bool anew, float* y,
                                          int64_t y_panel) {
    Lanes sum[P][R][PARTS];
    UNROLLED for (int b = 0; b < P; b++)
        UNROLLED for (int r = 0; r < R; r++)
            UNROLLED for (int i = 0; i < PARTS; i++)
                sum[b][r][i] = anew ? zeros() : load(y + b * y_panel + r * PANEL + i * LANES);
    int64_t s = 0;
    for (; s + 4 <= steps; s += 4) {
        for (int line = 0; line < fetch; line++)
            UNROLLED for (int b = 0; b < P; b++)
                __builtin_prefetch(next[b] + (s / 4 * fetch + line) * STEP_BYTES, 0, 2);
        UNROLLED for (int k = 0; k < 4; k++) panel_step<T, P, R>(w, x, s + k, sum);
    }
    for (; s < steps; s++) panel_step<T, P, R>(w, x, s, sum);
    UNROLLED for (int b = 0; b < P; b++)
        UNROLLED for (int r = 0; r < R; r++)
            UNROLLED for (int i = 0; i < PARTS; i++) store(y + b * y_panel + r * PANEL + i * LANES, sum[b][r][i]);
}

// y[(b * lines + r) * PANEL + c] = output c of panel w[b] for row r; ``after``: the panels that come next
template <class T, int P, int MOST>
void multiply_panels(const char* const (&w)[P], const char* const (&after)[P], const Packed<T>& x, float* y) {
#if WITH_AMX
    if constexpr (std::is_same<T, bf16>::value)
        if (x.by_amx) return multiply_panels_by_amx<P>(w, after, x.tiled(), y);
#endif
    int64_t tiles = x.tiles();
    for (int64_t start = 0; start < x.steps; start += CHUNK) {
        int64_t steps = x.steps - start < CHUNK ? x.steps - start : CHUNK;
        const char *from[P], *next[P];
        for (int b = 0; b < P; b++) {
            from[b] = w[b] + start * STEP_BYTES;
            next[b] = start + CHUNK < x.steps ? from[b] + CHUNK * STEP_BYTES : after[b];
        }
        for (int64_t t = 0; t < tiles; t++) {
            int64_t first = x.first(t);
            // the tiles share the fetching, so that memory and arithmetic work at the same time
            int fetch = tiles == 1 ? 4 : tiles == 2 || (tiles == 3 && t == 0) ? 2 : t < 4 ? 1 : 0;
            with_count<MOST>(x.first(t + 1) - first, [&](auto count) {
                constexpr int R = decltype(count)::value;
                panel_tile<T, P, R>(from, next, fetch, x.tile(t) + start * R * DEPTH<T>, steps, start == 0,
                                    y + first * PANEL, x.count * PANEL);
            });
            for (int b = 0; b < P; b++) next[b] += steps / 4 * fetch * STEP_BYTES;
        }
    }
}

// ``use(i, n, y)`` for n panels from number i on, of ``count`` that lie at ``place(i)``; n is odd for the last one only
template <class T, class Place, class Use>
void each_panel(int64_t count, const Packed<T>& x, const Place& place, float* y, const Use& use) {
    auto run = [&](auto panels, auto most, int64_t i) {
        constexpr int P = decltype(panels)::value;
        const char *w[P], *after[P];
        for (int b = 0; b < P; b++) {
            w[b] = place(i + b);
            after[b] = i + P + b < count ? place(i + P + b) : w[b];
        }
        multiply_panels<T, P, decltype(most)::value>(w, after, x, y);
        use(i, int64_t(P), y);
    };
    int64_t i = 0;
    if (x.by_amx ? x.tiles() == 1 : x.count <= FEW_ROWS)
        for (; i + 4 <= count; i += 4) run(Count<4>(), Count<FEW_ROWS>(), i);
    for (; i + 2 <= count; i += 2) run(Count<2>(), Count<PANEL_ROWS>(), i);
    for (; i < count; i++) run(Count<1>(), Count<PANEL_ROWS>(), i);
}

// Products of rows in bfloat16 with panels by AMX: a tile is 16 steps of a panel, 32 inputs.
//
// A sum of 32 products is added up as the processor does it, then added to those before, tile after tile, whatever the
// number of rows. So a row's result does not depend on those beside it here either; it is not that of other instructions.
#pragma once

#include "amx.h"
#include "panel_layout.h"

constexpr int TILE_STEPS = 16;  // of a panel in a tile
constexpr int TILE_INPUTS = 32;

inline int64_t panel_tiles_of(int64_t steps) { return (steps + TILE_STEPS - 1) / TILE_STEPS; }

// Rows [count, inputs] for tiles: [row tiles][tiles of a panel][rows of a tile][32], filled up with zeros.
struct TiledRows {
    bf16* data;
    RowTiles tiles;
    int64_t count, steps;

    TiledRows(bf16* data, int64_t count, int64_t steps) : data(data), tiles(count), count(count), steps(steps) {}

    int64_t tile_size() const { return tiles.rows * panel_tiles_of(steps) * TILE_INPUTS; }
    bf16* tile(int64_t number) const { return data + number * tile_size(); }

    void pack(int64_t number, const bf16* x, int64_t stride, int64_t inputs) const {
        int64_t first = number * tiles.rows, of_panel = panel_tiles_of(steps);
        for (int64_t r = 0; r < tiles.rows; r++)
            for (int64_t k = 0; k < of_panel; k++) {
                bf16* to = tile(number) + (k * tiles.rows + r) * TILE_INPUTS;
                int64_t there = first + r < count ? std::min<int64_t>(TILE_INPUTS, inputs - k * TILE_INPUTS) : 0;
                if (there) std::memcpy(to, x + (first + r) * stride + k * TILE_INPUTS, there * sizeof(bf16));
                std::memset(to + there, 0, (TILE_INPUTS - there) * sizeof(bf16));
            }
    }
};

#if WITH_AMX

// numbers 0 to COUNT - 1 as types
template <int COUNT, class F> inline __attribute__((always_inline)) void each_number(F f) {
    if constexpr (COUNT > 0) {
        each_number<COUNT - 1>(f);
        f(std::integral_constant<int, COUNT - 1>());
    }
}

// y[b][t] += the products of P panels with T row tiles that are ``x_tile`` apart, P · T ≤ 4; anew or in addition.
// ``fetch`` lines of what is next are fetched with each tile of a panel.
template <int P, int T>
void add_panel_tiles(const char* const (&w)[P], const char* const (&next)[P], int64_t fetch, const bf16* x,
                     int64_t x_tile, int64_t rows, int64_t steps, bool anew, float* y, int64_t y_panel) {
    auto each_sum = [&](auto use) {
        each_number<P>([&](auto b) { each_number<T>([&](auto t) { use(b, t, y + b * y_panel + t * rows * PANEL); }); });
    };
    each_sum([&](auto b, auto t, const float* from) {
        if (anew)
            zero_tile<b * T + t>();
        else
            load_tile<b * T + t>(from, TILE_BYTES);
    });
    alignas(64) char rest[TILE_STEPS * STEP_BYTES];
    for (int64_t s = 0, k = 0; s < steps; s += TILE_STEPS, k++) {
        each_number<T>([&](auto t) {
            load_tile<4 + t>(x + t * x_tile + k * rows * TILE_INPUTS, TILE_BYTES);
        });
        each_number<P>([&](auto b) {
            const char* weights = w[b] + s * STEP_BYTES;
            if (steps - s < TILE_STEPS) {
                std::memcpy(rest, weights, (steps - s) * STEP_BYTES);
                std::memset(rest + (steps - s) * STEP_BYTES, 0, (TILE_STEPS - (steps - s)) * STEP_BYTES);
                weights = rest;
            }
            load_tile<6 + b % 2>(weights, TILE_BYTES);
            for (int64_t line = 0; line < fetch; line++)
                __builtin_prefetch(next[b] + (k * fetch + line) * STEP_BYTES, 0, 2);
            each_number<T>([&](auto t) { add_bf16<b * T + t, 4 + t, 6 + b % 2>(); });
        });
    }
    each_sum([&](auto b, auto t, float* to) { store_tile<b * T + t>(to, TILE_BYTES); });
}

// the same as multiply_panels of other instructions
template <int P>
void multiply_panels_by_amx(const char* const (&w)[P], const char* const (&after)[P], const TiledRows& x, float* y) {
    constexpr int AT_ONCE = P < 4 ? 2 : 1;
    int64_t rows = x.tiles.rows, turns = (x.tiles.count + AT_ONCE - 1) / AT_ONCE;
    for (int64_t start = 0; start < x.steps; start += CHUNK) {
        int64_t steps = std::min<int64_t>(CHUNK, x.steps - start);
        const char *from[P], *next[P];
        for (int b = 0; b < P; b++) {
            from[b] = w[b] + start * STEP_BYTES;
            next[b] = start + CHUNK < x.steps ? from[b] + CHUNK * STEP_BYTES : after[b];
        }
        // the turns share the fetching, so that memory and arithmetic work at the same time
        int64_t fetch = (TILE_STEPS + turns - 1) / turns;
        for (int64_t turn = 0; turn < turns; turn++) {
            int64_t t = turn * AT_ONCE;
            const bf16* inputs = x.tile(t) + start / TILE_STEPS * rows * TILE_INPUTS;
            float* to = y + t * rows * PANEL;
            int64_t y_panel = x.tiles.all() * PANEL;
            if (AT_ONCE == 2 && t + 1 < x.tiles.count)
                add_panel_tiles<P, AT_ONCE>(from, next, fetch, inputs, x.tile_size(), rows, steps, start == 0, to,
                                            y_panel);
            else
                add_panel_tiles<P, 1>(from, next, fetch, inputs, 0, rows, steps, start == 0, to, y_panel);
            for (int b = 0; b < P; b++) next[b] += panel_tiles_of(steps) * fetch * STEP_BYTES;
        }
    }
}

#endif

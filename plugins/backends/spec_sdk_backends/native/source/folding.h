// Rows behind a gated delta net's state folded into it: S becomes e^(Γ - Γ_S) S + Σ e^(Γ - Γ_i) u_i k_iᵀ, Γ that of the
// last of them; and the other rows move to where they were.
#pragma once

#include "gated_delta.h"

// to [4, size] = left · from + Σ u[i][0 … 3] k[i], rows of u and k ``u_stride`` and ``size`` apart, B vectors from d on
template <int B>
inline void fold_tile(const float* from, float left, const float* u, int64_t u_stride, const float* k, int64_t count,
                      int64_t size, float* to) {
    Lanes sum[TILE_OUTPUTS][B];
    UNROLLED for (int c = 0; c < TILE_OUTPUTS; c++)
        UNROLLED for (int b = 0; b < B; b++) sum[c][b] = load(from + c * size + b * LANES) * all(left);
    for (int64_t i = 0; i < count; i++) {
        Lanes key[B];
        UNROLLED for (int b = 0; b < B; b++) key[b] = load(k + i * size + b * LANES);
        UNROLLED for (int c = 0; c < TILE_OUTPUTS; c++) {
            Lanes by = all(u[i * u_stride + c]);
            UNROLLED for (int b = 0; b < B; b++) sum[c][b] = fused(key[b], by, sum[c][b]);
        }
    }
    UNROLLED for (int c = 0; c < TILE_OUTPUTS; c++)
        UNROLLED for (int b = 0; b < B; b++) store(to + c * size + b * LANES, sum[c][b]);
}

// one number of it
inline float folded(float from, float left, const float* u, int64_t u_stride, const float* k, int64_t count,
                    int64_t size) {
    float sum = from * left;
    for (int64_t i = 0; i < count; i++) sum += u[i * u_stride] * k[i * size];
    return sum;
}

// to [V, D], which may be ``from``; u [count, V] and k [count, D]
inline void fold_state(const float* from, float left, const float* u, int64_t V, const float* k, int64_t count,
                       int64_t D, float* to) {
    constexpr int WIDE = 4;
    for (int64_t v = 0; v < V;) {
        bool whole = v + TILE_OUTPUTS <= V;
        int64_t d = 0, end = v + (whole ? TILE_OUTPUTS : V - v);
        for (; whole && d + WIDE * LANES <= D; d += WIDE * LANES)
            fold_tile<WIDE>(from + v * D + d, left, u + v, V, k + d, count, D, to + v * D + d);
        for (; whole && d + LANES <= D; d += LANES)
            fold_tile<1>(from + v * D + d, left, u + v, V, k + d, count, D, to + v * D + d);
        for (int64_t row = v; row < end; row++)
            for (int64_t i = d; i < D; i++)
                to[row * D + i] = folded(from[row * D + i], left, u + row, V, k + i, count, D);
        v = end;
    }
}

// rows [reach, size] without the first ``count``
template <class T> void move_up(T* rows, int64_t count, int64_t reach, int64_t size) {
    std::copy(rows + count * size, rows + reach * size, rows);
}

// this thread's part of to [H, V, D] and to_path [H]: a state and its Γ behind ``count`` more rows, from number ``first``
// on behind the one that is kept
inline void fold(const DeltaNet& net, const Kept& kept, const float* from, const double* from_path, int64_t first,
                 int64_t count, float* to, double* to_path) {
    thread_local std::vector<float> weighted;
    int64_t D = net.key_dim, V = net.value_dim, begin = kept.lead + first;
    weighted.resize(count * V);
    Team::Part part = Team::part_of(net.value_heads);
    for (int64_t h = part.first; h < part.end; h++) {
        const float* u = kept.u + (h * kept.room + begin) * V;
        const double* path = kept.path + h * kept.room + begin;
        double last = path[count - 1];
        for (int64_t i = 0; i < count; i++) {
            float left = exponential(float(last - path[i]));
            for (int64_t v = 0; v < V; v++) weighted[i * V + v] = left * u[i * V + v];
        }
        const float* keys = kept.k + (h / net.shared() * kept.room + begin) * D;
        float left = exponential(float(last - from_path[h]));
        fold_state(from + h * V * D, left, weighted.data(), V, keys, count, D, to + h * V * D);
        to_path[h] = last;
    }
}

// this thread's part of the rows behind the first ``count``, which move up; those behind number ``reach`` mean nothing
template <class T> void drop_rows(const DeltaNet& net, const Kept& kept, int64_t count, int64_t reach) {
    int64_t D = net.key_dim, V = net.value_dim, C = net.convolution.channels;
    Team::Part channels = Team::part_of(C);
    for (int64_t r = 0; r < reach - count; r++) {
        T* row = (T*)kept.x + r * C;
        std::copy(row + count * C + channels.first, row + count * C + channels.end, row + channels.first);
    }
    Team::Part heads = Team::part_of(net.value_heads), groups = Team::part_of(net.key_heads);
    for (int64_t h = heads.first; h < heads.end; h++) {
        move_up(kept.u + h * kept.room * V, count, reach, V);
        move_up(kept.path + h * kept.room, count, reach, 1);
    }
    for (int64_t g = groups.first; g < groups.end; g++) move_up(kept.k + g * kept.room * D, count, reach, D);
}

// What tokens are drawn from: a row's probabilities up to a factor, its mass, and the sums of its tiles.
//
// A tile is so small that its float32 sum loses nothing that shows; sums of tiles are added up in float64, one after the
// other, so that a row's mass depends neither on the number of threads nor on the rows beside it.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lanes.h"

constexpr int64_t MASS_TILE = 256;
constexpr int64_t LEAST_TILES = 64;  // of a thread: waking one for fewer takes longer than they do

extern "C" struct Mass {
    int64_t tokens;
    float* of;    // [tokens]
    float* sums;  // [tiles]

    int64_t tiles() const { return (tokens + MASS_TILE - 1) / MASS_TILE; }
    int64_t end(int64_t tile) const { return std::min((tile + 1) * MASS_TILE, tokens); }

    void sum_tile(int64_t tile) const {
        float lane[LANES] = {};
        int64_t i = tile * MASS_TILE, last = end(tile);
        for (; i + LANES <= last; i += LANES)
            for (int l = 0; l < LANES; l++) lane[l] += of[i + l];
        for (int l = 0; i < last; i++, l++) lane[l] += of[i];
        for (int width = LANES / 2; width > 0; width /= 2)
            for (int l = 0; l < width; l++) lane[l] += lane[l + width];
        sums[tile] = lane[0];
    }

    double total() const {
        double sum = 0;
        for (int64_t t = 0; t < tiles(); t++) sum += sums[t];
        return sum;
    }
};

// f(first, end) of shares of the tiles, on as many threads as these are worth
template <class F> void over_tiles(const Mass& mass, int threads, const F& f) {
    int64_t tiles = mass.tiles(), shares = std::clamp<int64_t>(tiles / LEAST_TILES, 1, threads);
    if (shares == 1) return f(0, tiles);
#pragma omp parallel for num_threads(int(shares)) schedule(static)
    for (int64_t share = 0; share < shares; share++) f(tiles * share / shares, tiles * (share + 1) / shares);
}

// The largest of ``count`` logits; not finite if they are unusable: NaN or +infinity among them, or nothing but -infinity.
// ``token``: of each logit, null: its place; logits of tokens from ``tokens`` on are passed over.
template <class T> float largest_logit(const T* logits, const int64_t* token, int64_t count, int64_t tokens) {
    constexpr int STEP = 64;
    float top[STEP];
    int unusable[STEP] = {};
    std::fill_n(top, STEP, -std::numeric_limits<float>::infinity());
    auto look = [&](float x, int l) {
        unusable[l] |= x != x;
        top[l] = x > top[l] ? x : top[l];
    };
    int64_t i = 0;
    if (!token)
        for (; i + STEP <= count; i += STEP)
            for (int l = 0; l < STEP; l++) look(to_float(logits[i + l]), l);
    for (; i < count; i++)
        if (!token || token[i] < tokens) look(to_float(logits[i]), 0);
    if (*std::max_element(unusable, unusable + STEP)) return std::numeric_limits<float>::quiet_NaN();
    return *std::max_element(top, top + STEP);
}

// e^((x - top) / T) of each logit as the mass of its token, and no mass of tokens that have no logit. ``token`` as above.
// The mass's sum; NaN for unusable logits, and then there is none.
template <class T>
double mass_of_logits(const Mass& mass, const T* logits, const int64_t* token, int64_t count, double temperature,
                      int threads) {
    count = token ? count : std::min(count, mass.tokens);
    float top = largest_logit(logits, token, count, mass.tokens);
    if (!std::isfinite(top)) return std::numeric_limits<double>::quiet_NaN();
    float per = float(1 / std::max(temperature, double(std::numeric_limits<float>::min())));
    if (token) {
        std::fill_n(mass.of, mass.tokens, 0.0f);
        float some[MASS_TILE];
        for (int64_t first = 0; first < count; first += MASS_TILE) {
            int64_t size = std::min(MASS_TILE, count - first);
            for (int64_t i = 0; i < size; i++) some[i] = exponential((to_float(logits[first + i]) - top) * per);
            for (int64_t i = 0; i < size; i++)
                if (token[first + i] < mass.tokens) mass.of[token[first + i]] = some[i];
        }
    }
    // what this thread wrote, it adds up faster by itself
    over_tiles(mass, token ? 1 : threads, [&](int64_t first, int64_t last) {
        for (int64_t t = first; t < last; t++) {
            if (!token) {
                int64_t i = t * MASS_TILE, end = std::min(mass.end(t), std::max(i, count));
                for (; i < end; i++) mass.of[i] = exponential((to_float(logits[i]) - top) * per);
                for (; i < mass.end(t); i++) mass.of[i] = 0;
            }
            mass.sum_tile(t);
        }
    });
    return mass.total();
}

// Probabilities that are given [tokens] as mass of their own; its sum.
inline double mass_of_probabilities(const Mass& mass, const float* given) {
    std::copy_n(given, mass.tokens, mass.of);
    for (int64_t t = 0; t < mass.tiles(); t++) mass.sum_tile(t);
    return mass.total();
}

// p / p_sum - q / q_sum where that is positive, as mass of the same tokens; its sum, NaN if there is one in p or q.
inline double mass_beyond(const Mass& beyond, const Mass& p, double p_sum, const Mass& q, double q_sum, int threads) {
    float per_p = float(1 / p_sum), per_q = float(1 / q_sum);
    over_tiles(beyond, threads, [&](int64_t first, int64_t last) {
        for (int64_t t = first; t < last; t++) {
            for (int64_t i = t * MASS_TILE; i < beyond.end(t); i++) {
                float more = p.of[i] * per_p - q.of[i] * per_q;
                beyond.of[i] = more < 0 ? 0 : more;
            }
            beyond.sum_tile(t);
        }
    });
    return beyond.total();
}

// Takes a token's mass, unless no other token has any; the sum of what is left.
inline double mass_without(const Mass& mass, int64_t token) {
    float own = mass.of[token];
    for (float kept : {0.0f, own}) {
        mass.of[token] = kept;
        mass.sum_tile(token / MASS_TILE);
        if (mass.total() > 0) break;
    }
    return mass.total();
}

// The first token whose cumulated mass exceeds ``uniform`` times the whole, never one of no mass. -1 without mass, or
// where it is no number.
inline int64_t drawn(const Mass& mass, double uniform) {
    double whole = mass.total();
    if (!(whole > 0 && std::isfinite(whole))) return -1;
    // the last that has mass, where rounding leaves nothing beyond the goal
    double goal = uniform * whole, before = 0, before_tile = 0;
    int64_t tile = 0;
    for (int64_t t = 0; t < mass.tiles() && before <= goal; before += mass.sums[t++])
        if (mass.sums[t] > 0) tile = t, before_tile = before;
    double inside = 0;
    int64_t token = tile * MASS_TILE;
    for (int64_t i = token; i < mass.end(tile) && inside <= goal - before_tile; inside += mass.of[i++])
        if (mass.of[i] > 0) token = i;
    return token;
}

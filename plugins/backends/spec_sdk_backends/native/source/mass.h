// What tokens are drawn from: a row's probabilities up to a factor, its mass, and the sums of its tiles.
//
// A tile is so small that its float32 sum loses nothing that shows; sums of tiles are added up in float64, one after the
// other, so that a row's mass depends neither on the number of threads nor on the rows beside it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "lanes.h"
#include "team.h"

constexpr int64_t MASS_TILE = 256;
constexpr int64_t LEAST_TILES = 64;  // of a thread: what it saves with fewer, handing them over takes

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

// f(first, end) of shares of the tiles, on as many threads as these are worth; on this one alone where others sleep
template <class F> void over_tiles(const Mass& mass, int threads, const F& f) {
    if (spins.load(std::memory_order_relaxed) < AWAKE_SPINS) threads = 1;
    int64_t tiles = mass.tiles(), shares = std::clamp<int64_t>(tiles / LEAST_TILES, 1, threads);
    if (shares == 1) return f(0, tiles);
#pragma omp parallel for num_threads(int(shares)) schedule(static)
    for (int64_t share = 0; share < shares; share++) f(tiles * share / shares, tiles * (share + 1) / shares);
}

// How logits become mass. Filters in the order top-k, top-p, min-p; 0, 1 and 0 where they are off.
extern "C" struct Shaping {
    double temperature;
    int64_t top_k;
    double top_p, min_p;
};

// Logits of some tokens: ``token`` names them, null: they are of 0 … count - 1. Those of tokens from ``tokens`` on are
// passed over.
template <class T> struct Logits {
    const T* of;
    const int64_t* token;
    int64_t count, tokens;

    float operator[](int64_t i) const {
        return !token || has(token[i]) ? to_float(of[i]) : -std::numeric_limits<float>::infinity();
    }

    // whether there is such a token
    bool has(int64_t named) const { return named >= 0 && named < tokens; }

    // the largest of those from ``i`` up to ``end``; NaN if there is one among them
    float largest(int64_t i, int64_t end) const {
        constexpr int WIDE = 64;
        float top[WIDE];
        int unusable[WIDE] = {};
        std::fill_n(top, WIDE, -std::numeric_limits<float>::infinity());
        auto look = [&](float x, int l) {
            unusable[l] |= x != x;
            top[l] = x > top[l] ? x : top[l];
        };
        if (!token)
            for (; i + WIDE <= end; i += WIDE)
                for (int l = 0; l < WIDE; l++) look(to_float(of[i + l]), l);
        for (; i < end; i++) look((*this)[i], 0);
        for (int width = WIDE / 2; width > 0; width /= 2)
            for (int l = 0; l < width; l++) {
                unusable[l] |= unusable[l + width];
                top[l] = top[l + width] > top[l] ? top[l + width] : top[l];
            }
        return unusable[0] ? std::numeric_limits<float>::quiet_NaN() : top[0];
    }
};

// the ``k``-th largest of all, without order among the others
inline float kth_largest(std::vector<float>& x, int64_t k) {
    std::nth_element(x.begin(), x.begin() + (k - 1), x.end(), std::greater<float>());
    return x[k - 1];
}

// The ``k``-th largest logit, none of which is NaN. That of the steps' largest ones is no larger, so that few steps need
// be looked into.
template <class T> float kth_logit(const Logits<T>& logits, int64_t k) {
    constexpr int64_t STEP = 256;
    std::vector<float> largest, some;
    for (int64_t i = 0; i < logits.count; i += STEP)
        largest.push_back(logits.largest(i, std::min(i + STEP, logits.count)));
    some = largest;
    float least = k < int64_t(some.size()) ? kth_largest(some, k) : -std::numeric_limits<float>::infinity();
    some.clear();
    for (int64_t i = 0; i < logits.count; i++) {
        if (largest[i / STEP] < least)
            i += STEP - 1;
        else if (logits[i] >= least)
            some.push_back(logits[i]);
    }
    return kth_largest(some, k);
}

// What top-p and min-p keep of a row whose largest mass is 1: more than ``least``, and of just as much the tokens up to
// ``last``.
struct Border {
    float least;
    int64_t last;
};

// The fewest most probable tokens whose sum reaches ``top_p``; of equals the first ones. Tokens of less than 1 - top_p
// shared by all lie outside. Others are sorted by their leading bits, and only those about the border wholly.
inline Border nucleus(const Mass& mass, double whole, double top_p) {
    constexpr int LEADING = 12, BUCKETS = 1 << LEADING;  // sign, exponent, and three bits of the fraction
    struct Found {
        float mass;
        int64_t token;
    };
    auto bucket_of = [](float x) {
        uint32_t bits;
        std::memcpy(&bits, &x, sizeof bits);
        return int(bits >> (32 - LEADING));
    };
    thread_local std::vector<Found> found;
    thread_local std::vector<double> sums;
    found.clear(), sums.assign(BUCKETS, 0.0);
    float least = float(std::min(1.0, (1 - top_p) * whole / mass.tokens));
    constexpr int STEP = 64;
    for (int64_t first = 0; first < mass.tokens; first += STEP) {
        int64_t end = std::min(first + STEP, mass.tokens);
        int any = 0;
        for (int64_t i = first; i < end; i++) any |= mass.of[i] >= least;
        if (any)
            for (int64_t i = first; i < end; i++)
                if (mass.of[i] >= least && mass.of[i] > 0) {
                    found.push_back({mass.of[i], i});
                    sums[bucket_of(mass.of[i])] += mass.of[i];
                }
    }
    double goal = top_p * whole, before = 0;
    int bucket = BUCKETS - 1;
    for (; bucket > 0 && before + sums[bucket] < goal; bucket--) before += sums[bucket];
    auto last = std::partition(found.begin(), found.end(), [&](const Found& x) { return bucket_of(x.mass) == bucket; });
    std::sort(found.begin(), last, [](const Found& a, const Found& b) {
        return a.mass != b.mass ? a.mass > b.mass : a.token < b.token;
    });
    Border border{least, mass.tokens};  // where rounding leaves the sum short of its goal
    for (auto x = found.begin(); x != last && before < goal; before += x->mass, x++) border = {x->mass, x->token};
    return border;
}

// The logits' mass, e^((x - top) / T) of what the filters keep, and none of all other tokens. Its sum; NaN for unusable
// logits, and then there is none: with NaN or +infinity among them, or nothing but -infinity.
template <class T> double mass_of_logits(const Mass& mass, Logits<T> logits, const Shaping& shaping, int threads) {
    if (!logits.token) logits.count = std::min(logits.count, mass.tokens);
    float top = logits.largest(0, logits.count), least = -std::numeric_limits<float>::infinity();
    if (!std::isfinite(top)) return std::numeric_limits<double>::quiet_NaN();
    if (0 < shaping.top_k && shaping.top_k < logits.count) least = kth_logit(logits, shaping.top_k);
    // never 0, with which -infinity would become NaN, nor infinite
    constexpr double LEAST = std::numeric_limits<float>::min();
    float per = float(std::max(1 / std::max(shaping.temperature, LEAST), LEAST));
    auto of = [=](float x) { return x >= least ? exponential((x - top) * per) : 0.0f; };
    if (logits.token) {
        std::fill_n(mass.of, mass.tokens, 0.0f);
        float some[MASS_TILE];
        for (int64_t first = 0; first < logits.count; first += MASS_TILE) {
            int64_t size = std::min(MASS_TILE, logits.count - first);
            for (int64_t i = 0; i < size; i++) some[i] = of(to_float(logits.of[first + i]));
            for (int64_t i = 0; i < size; i++)
                if (logits.has(logits.token[first + i])) mass.of[logits.token[first + i]] = some[i];
        }
        // what this thread wrote, it adds up faster by itself
        threads = 1;
    }
    auto sum = [&](const auto& make) {
        over_tiles(mass, threads, [&](int64_t first, int64_t last) {
            for (int64_t t = first; t < last; t++) make(t * MASS_TILE, mass.end(t)), mass.sum_tile(t);
        });
        return mass.total();
    };
    double whole = sum([&](int64_t first, int64_t end) {
        if (logits.token) return;
        int64_t known = std::clamp(logits.count, first, end);
        for (int64_t i = first; i < known; i++) mass.of[i] = of(to_float(logits.of[i]));
        for (int64_t i = known; i < end; i++) mass.of[i] = 0;
    });
    if (shaping.top_p >= 1 && shaping.min_p <= 0) return whole;
    Border border{0.0f, mass.tokens};
    if (shaping.top_p < 1) border = nucleus(mass, whole, shaping.top_p);
    if (float(shaping.min_p) > border.least) border = {float(shaping.min_p), mass.tokens};
    return sum([&](int64_t first, int64_t end) {
        for (int64_t i = first; i < end; i++) {
            float x = mass.of[i];
            mass.of[i] = x > border.least || (x == border.least && i <= border.last) ? x : 0;
        }
    });
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

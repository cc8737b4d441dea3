// The largest numbers of each row, and the logarithm of the sum of its exponentials, in one reading.
//
// A row is read in pieces of a fixed size, so that what it gets depends neither on the number of threads nor on the rows
// beside it. Of equal numbers the first is the largest.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lanes.h"

constexpr int64_t TOP_PIECE = 4096;  // numbers that stay in the first-level cache while they are read twice
constexpr int64_t TOP_STEP = 64;     // that are compared at once

struct Found {
    float value;
    int64_t place;
};

// NaN counts as the largest of all, as in torch
inline bool exceeds(float x, float other) { return !(x <= other) && other == other; }

inline void insert(Found* found, int64_t& size, int64_t most, float x, int64_t place) {
    if (size == most && !exceeds(x, found[size - 1].value)) return;
    int64_t at = size < most ? size++ : size - 1;
    for (; at > 0 && exceeds(x, found[at - 1].value); at--) found[at] = found[at - 1];
    found[at] = {x, place};
}

// the ``most`` largest of x[first … end - 1], the largest first: how many there are. ``sum``: that of their exponentials
// over the largest one's
template <class T>
int64_t top_of_piece(const T* x, int64_t first, int64_t end, int64_t most, Found* found, float& sum) {
    int64_t size = 0, i = first;
    for (; i < end && size < most; i++) insert(found, size, most, to_float(x[i]), i);
    for (; i + TOP_STEP <= end; i += TOP_STEP) {
        float least = found[size - 1].value;
        int larger = 0;
        for (int64_t l = 0; l < TOP_STEP; l++) larger |= !(to_float(x[i + l]) <= least);
        if (larger)
            for (int64_t l = 0; l < TOP_STEP; l++) insert(found, size, most, to_float(x[i + l]), i + l);
    }
    for (; i < end; i++) insert(found, size, most, to_float(x[i]), i);
    float top = found[0].value, lane[TOP_STEP] = {};
    sum = 0;
    if (top == -std::numeric_limits<float>::infinity()) return size;
    for (i = first; i + TOP_STEP <= end; i += TOP_STEP)
        for (int64_t l = 0; l < TOP_STEP; l++) lane[l] += exponential(to_float(x[i + l]) - top);
    for (int64_t l = 0; i < end; i++, l++) lane[l] += exponential(to_float(x[i]) - top);
    for (int64_t width = TOP_STEP / 2; width > 0; width /= 2)
        for (int64_t l = 0; l < width; l++) lane[l] += lane[l + width];
    // exponential takes NaN and differences of infinities for numbers
    sum = std::isfinite(top) ? lane[0] : std::numeric_limits<float>::quiet_NaN();
    return size;
}

// logprob [rows, most] and place [rows, most]; rows of x ``stride`` elements apart
template <class T>
void top_log_probabilities(const T* x, int64_t stride, int64_t rows, int64_t columns, int64_t most, float* logprob,
                           int64_t* place, int threads) {
    int64_t pieces = (columns + TOP_PIECE - 1) / TOP_PIECE, items = rows * pieces;
    thread_local std::vector<Found> kept_found;
    thread_local std::vector<float> kept_sums;
    thread_local std::vector<int64_t> kept_sizes;
    kept_found.resize(items * most), kept_sums.resize(items), kept_sizes.resize(items);
    Found* found = kept_found.data();
    float* sums = kept_sums.data();
    int64_t* sizes = kept_sizes.data();
#pragma omp parallel for num_threads(int(std::min<int64_t>(threads, items))) schedule(static)
    for (int64_t item = 0; item < items; item++) {
        int64_t first = item % pieces * TOP_PIECE, end = std::min(first + TOP_PIECE, columns);
        sizes[item] = top_of_piece(x + item / pieces * stride, first, end, most, found + item * most, sums[item]);
    }
    for (int64_t r = 0; r < rows; r++, logprob += most, place += most) {
        Found best[TOP_STEP];
        int64_t size = 0;
        for (int64_t item = r * pieces; item < (r + 1) * pieces; item++)
            for (int64_t i = 0; i < sizes[item]; i++)
                insert(best, size, most, found[item * most + i].value, found[item * most + i].place);
        float sum = 0;
        for (int64_t item = r * pieces; item < (r + 1) * pieces; item++)
            if (sums[item] != 0) sum += sums[item] * std::exp(found[item * most].value - best[0].value);
        float all = best[0].value + std::log(sum);
        for (int64_t i = 0; i < most; i++) logprob[i] = best[i].value - all, place[i] = best[i].place;
    }
}

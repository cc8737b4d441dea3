// Attention predicted from both ends of what is committed and from the tree, and the exact one, in one reading of the keys
// (ALSpec, Alg. 3). Ends first: the prediction may be gone on with while the keys between them are read.
#pragma once

#include "blocks.h"

extern "C" struct Ends {
    int64_t first, last;  // committed keys
    float* mean;          // [rows, H, D]: what they and the tree give, not rounded
    float* log_sum;       // [rows, H]
};

// Some of the committed keys of a pass of one request as if there were no others, the tree behind them if ``with_tree``
struct Excerpt {
    int32_t prefix, write_at;
    Pass pass;
    Sight sight;
    int64_t from;
    Room& room;

    Excerpt(const Pass& whole, int64_t from, int64_t count, bool with_tree, Room& room)
        : prefix(count),
          write_at(with_tree ? count + whole.write_at[0] - whole.prefix[0] : count - whole.live[0]),
          pass(of(whole)),
          sight(pass),
          from(from),
          room(room) {}

    Excerpt(const Excerpt&) = delete;

    template <class T, class C>
    Attention<T, C> attention(const Heads& heads, const T* q, int64_t stride, const Cache& cache) {
        room.make(sight, heads.queries, heads.dim);
        int64_t at = from * heads.dim;
        return {heads, sight, q, stride, (const C*)cache.keys + at, (const C*)cache.values + at, cache};
    }

  private:
    Pass of(Pass pass) const {
        pass.prefix = &prefix;
        pass.write_at = &write_at;
        return pass;
    }
};

// Attention by ends: o [rows, H, D] is the prediction
template <class T, class C>
void attend_to_ends(const Heads& heads, const Pass& pass, const Ends& ends, const T* q, int64_t stride,
                    const Cache& cache, T* o, int threads) {
    thread_local Room kept[2];
    Excerpt start(pass, 0, ends.first, false, kept[0]), end(pass, pass.prefix[0] - ends.last, ends.last, true, kept[1]);
    auto first = start.attention<T, C>(heads, q, stride, cache), last = end.attention<T, C>(heads, q, stride, cache);
    Team team;
#pragma omp parallel num_threads(threads)
    {
        attend_spans(first, heads.dim, start.room.spans.data(), start.room.sums.data());
        attend_spans(last, heads.dim, end.room.spans.data(), end.room.sums.data());
        team.meet();
        Team::Part part = Team::part_of(pass.width * heads.queries);
        for (int64_t i = part.first; i < part.end; i++) {
            int64_t row = i / heads.queries, h = i % heads.queries;
            float top = std::max(first.top(row, h, start.room.spans.data()), last.top(row, h, end.room.spans.data()));
            Joined joined(top, heads.dim);
            first.add(row, h, start.room.spans.data(), start.room.sums.data(), joined);
            last.add(row, h, end.room.spans.data(), end.room.sums.data(), joined);
            ends.log_sum[i] = joined.log_sum();
            for (int64_t d = 0; d < heads.dim; d++) {
                ends.mean[i * heads.dim + d] = joined.mean(d);
                o[i * heads.dim + d] = rounded<T>(joined.mean(d));
            }
        }
    }
}

// Attention by all keys: o [rows, H, D], 0 for padding. difference and norm [rows]: the squares of prediction - o, and of o, summed.
// With s the share of the keys between the ends, prediction - o = s (prediction - what these give): so no digits are lost
// where the two are close.
template <class T, class C>
void attend_between(const Heads& heads, const Pass& pass, const Ends& ends, const T* q, int64_t stride,
                    const Cache& cache, T* o, float* difference, float* norm, int threads) {
    thread_local Room kept;
    Excerpt middle(pass, ends.first, pass.prefix[0] - ends.first - ends.last, false, kept);
    auto attention = middle.attention<T, C>(heads, q, stride, cache);
    Team team;
#pragma omp parallel num_threads(threads)
    {
        attend_spans(attention, heads.dim, middle.room.spans.data(), middle.room.sums.data());
        team.meet();
        // a row's sums are in one order on any number of threads
        Team::Part part = Team::part_of(pass.width);
        for (int64_t row = part.first; row < part.end; row++) {
            difference[row] = norm[row] = 0;
            if (!middle.sight.live(row)) {
                std::fill_n(o + row * heads.queries * heads.dim, heads.queries * heads.dim, rounded<T>(0.0f));
                continue;
            }
            for (int64_t h = 0; h < heads.queries; h++) {
                int64_t i = row * heads.queries + h;
                Joined joined(attention.top(row, h, middle.room.spans.data()), heads.dim);
                attention.add(row, h, middle.room.spans.data(), middle.room.sums.data(), joined);
                float share = 1.0f / (1.0f + std::exp(ends.log_sum[i] - joined.log_sum()));
                for (int64_t d = 0; d < heads.dim; d++) {
                    float predicted = ends.mean[i * heads.dim + d], off = share * (predicted - joined.mean(d));
                    float exact = predicted - off;
                    difference[row] += off * off;
                    norm[row] += exact * exact;
                    o[i * heads.dim + d] = rounded<T>(exact);
                }
            }
        }
    }
}

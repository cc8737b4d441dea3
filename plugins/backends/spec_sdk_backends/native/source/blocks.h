// Consecutive blocks in one call, by all threads.
#pragma once

#include <vector>

#include "feed_forward.h"
#include "latents.h"

inline Heads heads_of(const Shape& shape, const Block& block) {
    return {shape.heads, shape.kv_heads, shape.dim, float(block.scale), float(block.cap), block.window, block.sinks};
}

// room for what spans leave, kept from call to call
struct Room {
    std::vector<Span> spans;
    std::vector<float> sums;

    void make(const Sight& sight, int64_t heads, int64_t dim) {
        size_t parts = size_t(sight.pass.requests * sight.pass.width * heads * Attention<float, float>::spans_of(sight));
        if (spans.size() < parts) spans.resize(parts);
        if (sums.size() < parts * dim) sums.resize(parts * dim);
    }
};

template <class T> struct Buffers {
    std::vector<T> qkv, attended, active, given, products, latent, entered;
    std::vector<float> scores;
    Room room;
};

// ``projected``: numbers of a row before attention, or what is in its place, if more
template <class T>
Work<T> work_of(const Shape& shape, int64_t rows, T* h, const void* const* cosines, const void* const* sines,
                const int32_t* position, Buffers<T>& buffers, Team& team, int64_t projected = 0) {
    buffers.qkv.resize(rows * std::max(projected, (shape.heads + 2 * shape.kv_heads) * shape.dim));
    buffers.attended.resize(rows * shape.heads * shape.dim);
    buffers.active.resize(rows * shape.mlp);
    buffers.given.resize(rows * shape.model);
    buffers.scores.resize(rows * shape.experts);
    buffers.products.resize(shape.experts ? rows * (shape.per_row + 1) * shape.model : 0);
    buffers.latent.resize(rows * shape.latent);
    Work<T> made{shape, rows, h, buffers.qkv.data(), buffers.attended.data(), buffers.active.data(), buffers.given.data(),
                 buffers.scores.data(), buffers.products.data(), (const T* const*)cosines, (const T* const*)sines,
                 position, &buffers.room.spans, &buffers.room.sums, &team};
    made.latent = buffers.latent.data();
    return made;
}

// attended [rows, H D] of one block, whose keys and values are written to cache layer ``layer``
template <class T>
void attend_in_block(const Block& block, const Sight& sight, const Cache& cache, int64_t layer, const Work<T>& work,
                     Own<T>& own) {
    if (block.latents)
        return attend_to_latents(block, heads_of(work.shape, block), sight, cache, layer, work, own);
    project_qkv(block, work, own);
    work.team->meet();
    normalise_all_heads(block, work);
    rotate_heads(block, work, [&](int64_t r, int64_t g) { write_cache(block, work, cache, layer, sight.pass, r, g); });
    work.team->meet();
    attend<T>(heads_of(work.shape, block), sight, work.qkv, block.qkv.outputs, cache, layer, *work.spans, *work.sums,
              *work.team, work.attended);
}

// what leaves a block, when all have met and before h changes
template <class T> void keep_rows(const Work<T>& work, T* to) {
    Team::Part part = Team::part_of(work.rows * work.shape.model);
    std::copy(work.h + part.first, work.h + part.end, to + part.first);
}

// ``group``: of each block the number of its group, whose attention reads what enters the group; null: of each its own.
// ``left``: where what leaves each block is kept [rows, model], or null; null: of none. ``ranks``: which have a part of
// every block each; once they are lost, h means nothing.
template <class T>
void blocks(const Shape& shape, const Block* of, int64_t first, int64_t count, const Pass& pass, const Cache& cache,
            T* h, const T* beside, const void* const* cosines, const void* const* sines, const int32_t* position,
            int threads, const int64_t* group = nullptr, void* const* left = nullptr, Ranks* ranks = nullptr) {
    thread_local Buffers<T> kept;
    Buffers<T>& buffers = kept;
    Sight sight(pass);
    buffers.room.make(sight, shape.heads, shape.dim);
    Team team;
    Work<T> work = work_of<T>(shape, pass.requests * pass.width, h, cosines, sines, position, buffers, team);
    work.beside = beside;
    work.pass = &pass;
    work.ranks = ranks;
    if (group) buffers.entered.resize(work.rows * shape.model), work.entered = buffers.entered.data();
#pragma omp parallel num_threads(threads)
    {
        thread_local Own<T> own;
        for (int64_t i = 0; i < count; i++) {
            const Block& block = of[i];
            if (group && (!i || group[i] != group[i - 1])) {
                keep_rows(work, buffers.entered.data());
                team.meet();
            }
            attend_in_block(block, sight, cache, first + i, work, own);
            team.meet();
            add_attention(block, work, own);
            team.meet();
            if (ranks && ranks->lost) break;
            add_feed_forward(block, work, own);
            team.meet();
            if (ranks && ranks->lost) break;
            if (left && left[i]) keep_rows(work, (T*)left[i]);
        }
    }
}

// Attention to latents (DeepSeek-V2, arXiv:2405.04434, §2.1): what makes K of a latent is applied to Q instead, and what
// makes V of it to what attention gives, so that attention is that of all heads to one KV head, whose values are its keys.
#pragma once

#include "block.h"

// Where a row's numbers are: entering, what qkv gives and behind it latent and shared key; Q as made of its latent; what
// attention gives.
template <class T> struct LatentRoom {
    T *entering, *queries, *seen;
    int64_t entered, query, given;  // how far rows are apart

    LatentRoom(const Block& block, const Work<T>& work) {
        const Latents& of = *block.latents;
        entered = block.qkv.outputs + of.cached();
        given = work.shape.heads * of.cached();
        entering = work.latent;
        seen = entering + work.rows * entered;
        query = of.has_queries() ? of.queries.outputs : entered;
        queries = of.has_queries() ? seen + work.rows * given : entering;
    }
};

// a row's query latent and its own latent under their norms, its shared key rotated, and both into the cache
template <class T>
void finish_latent(const Block& block, const LatentRoom<T>& room, const Cache& cache, int64_t layer, const Pass& pass,
                   const Work<T>& work, int64_t r) {
    const Latents& of = *block.latents;
    double epsilon = work.shape.epsilon;
    T* query = room.entering + r * room.entered;
    T *latent = query + block.qkv.outputs, *shared = latent + of.rank;
    if (of.has_queries()) normalise<T>(query, of.query_norm, block.qkv.outputs, epsilon, query);
    normalise<T>(latent, of.latent_norm, of.rank, epsilon, latent);
    int64_t place = work.position[r] * of.rotated, b = r / pass.width, n = r % pass.width;
    rotate_head(shared, shared, work.cosines[block.rope] + place, work.sines[block.rope] + place, of.rotated);
    if (n >= pass.live[b]) return;
    int64_t to = layer * cache.layer_stride + pass.slot[b] * cache.slot_stride + (pass.write_at[b] + n) * of.cached();
    auto put = [&](auto* keys) {
        using C = std::decay_t<decltype(*keys)>;
        for (int64_t d = 0; d < of.cached(); d++) keys[to + d] = rounded<C>(to_float(latent[d]));
    };
    if (cache.dtype)
        put((bf16*)cache.keys);
    else
        put((float*)cache.keys);
}

// to [rows, heads, outputs of a head], rows ``width`` and heads ``apart`` numbers from one another: each head's numbers
// under its own matrix, this thread's part of all outputs
template <class T>
void project_heads(const Matrix* of, const T* from, int64_t stride, int64_t step, T* to, int64_t width, int64_t apart,
                   const Work<T>& work, Own<T>& own) {
    int64_t blocks = blocks_of(of[0].outputs);
    Team::Part part = Team::part_of(work.shape.heads * blocks);
    for (int64_t h = part.first / blocks; h * blocks < part.end; h++) {
        Team::Part own_blocks{std::max(part.first - h * blocks, int64_t(0)), std::min(part.end - h * blocks, blocks)};
        Rows<T> rows = own.rows(from + h * step, stride, work.rows, of[h]);
        write_product(of[h], rows, own_blocks, to + h * apart, width, own);
    }
}

// attended [rows, heads * value] of one block, whose latents are written to cache layer ``layer``
template <class T>
void attend_to_latents(const Block& block, Heads heads, const Sight& sight, const Cache& cache, int64_t layer,
                       const Work<T>& work, Own<T>& own) {
    const Latents& of = *block.latents;
    LatentRoom<T> room(block, work);
    int64_t read = normalise_rows(own, work, block.input_norm, work.beside, work.entered);
    for (const Matrix* matrix : {&block.qkv, &of.latents}) {
        Rows<T> rows = own.rows(own.normal.data(), read, work.rows, *matrix);
        int64_t before = matrix == &block.qkv ? 0 : block.qkv.outputs;
        write_product(*matrix, rows, room.entering + before, room.entered, own);
    }
    work.team->meet();
    Team::Part part = Team::part_of(work.rows);
    for (int64_t r = part.first; r < part.end; r++) finish_latent(block, room, cache, layer, sight.pass, work, r);
    work.team->meet();
    if (of.has_queries()) {
        Rows<T> rows = own.rows(room.entering, room.entered, work.rows, of.queries);
        write_product(of.queries, rows, room.queries, room.query, own);
        work.team->meet();
    }
    T* q = work.qkv;
    project_heads(of.keys, room.queries, room.query, of.head(), q, room.given, of.cached(), work, own);
    part = Team::part_of(work.rows * heads.queries);
    for (int64_t i = part.first; i < part.end; i++) {
        int64_t r = i / heads.queries, h = i % heads.queries, place = work.position[r] * of.rotated;
        rotate_head(room.queries + r * room.query + h * of.head() + of.plain, q + r * room.given + h * of.cached() + of.rank,
                    work.cosines[block.rope] + place, work.sines[block.rope] + place, of.rotated);
    }
    work.team->meet();
    // as many heads to a key as the kernels take, all at the same keys
    Cache shared = cache;
    shared.head_stride = 0;
    while (heads.queries / heads.shared > MOST_SHARED || heads.queries % heads.shared) heads.shared++;
    attend<T>(heads, sight, q, room.given, shared, layer, *work.spans, *work.sums, *work.team, room.seen);
    work.team->meet();
    project_heads(of.values, room.seen, room.given, of.cached(), work.attended, block.output.inputs, of.value, work, own);
}

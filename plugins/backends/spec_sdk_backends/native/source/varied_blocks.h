// Consecutive blocks whose heads are of different shapes, in one call, by all threads. Some attend to keys and values of
// another block; some are given an input of their own.
#pragma once

#include <algorithm>
#include <vector>

#include "blocks.h"

extern "C" struct VariedBlock {
    Block block;
    int64_t kv_heads, dim;
    int64_t made;          // of keys and values: 0: neither, 1: keys, of which values are made too, 2: both
    int64_t cache, layer;  // which of the caches its keys and values are in, and which layer of that
    Gain value_norm;
    Matrix gate, out;  // h += norm(out(gelu(gate(h)) · input)); of no outputs: there is no input
    Gain input_norm_of_block;
    int64_t place;        // of its input among those of a row
    double factor;        // of what leaves it
    const Block* beside;  // of a mixture, which reads h as the MLP does; null: there is none
    Gain sum_norm;        // of what MLP and mixture give, each under its own norm

    bool has_input() const { return out.outputs; }
};

// what a pass has besides: a cache for each shape of heads, and of each row the inputs of all blocks, ``stride`` apart
extern "C" struct VariedPass {
    const Cache* caches;
    const void* inputs;
    int64_t stride;
};

// Q normalised and rotated in place; keys so, and values normalised, into the cache
template <class T>
void turn_and_keep(const VariedBlock& of, const Work<T>& work, const Cache& cache, const Pass& pass, Own<T>& own) {
    const Block& block = of.block;
    int64_t H = work.shape.heads, D = of.dim, G = of.made ? of.kv_heads : 0, width = block.qkv.outputs;
    const T *cosine = work.cosines[block.rope], *sine = work.sines[block.rope];
    own.gathered.resize(std::max<size_t>(own.gathered.size(), D));
    T* value = own.gathered.data();
    Team::Part part = Team::part_of(work.rows * (H + G));
    for (int64_t i = part.first; i < part.end; i++) {
        int64_t r = i / (H + G), head = i % (H + G), at = work.position[r] * D;
        T* x = work.qkv + r * width + head * D;
        if (head >= H) normalise<T>(of.made == 1 ? x : x + G * D, of.value_norm, D, work.shape.epsilon, value);
        normalise<T>(x, head < H ? block.q_norm : block.k_norm, D, work.shape.epsilon, x);
        rotate_head(x, x, cosine + at, sine + at, D);
        int64_t b = r / pass.width, n = r % pass.width;
        if (head < H || n >= pass.live[b]) continue;
        int64_t to = of.layer * cache.layer_stride + pass.slot[b] * cache.slot_stride + (head - H) * cache.head_stride +
                     (pass.write_at[b] + n) * D;
        if (cache.dtype)
            put(x, value, D, (bf16*)cache.keys + to, (bf16*)cache.values + to);
        else
            put(x, value, D, (float*)cache.keys + to, (float*)cache.values + to);
    }
}

template <class T>
void attend_in_varied(const VariedBlock& of, const Sight& sight, const VariedPass& more, const Work<T>& work,
                      Own<T>& own) {
    const Block& block = of.block;
    const Cache& cache = more.caches[of.cache];
    project_qkv(block, work, own);
    work.team->meet();
    turn_and_keep(of, work, cache, sight.pass, own);
    work.team->meet();
    Heads heads{work.shape.heads, of.kv_heads, of.dim, float(block.scale), float(block.cap), block.window, block.sinks};
    attend<T>(heads, sight, work.qkv, block.qkv.outputs, cache, of.layer, *work.spans, *work.sums, *work.team,
              work.attended);
}

// h += norm(out(gelu(gate(h)) · input))
template <class T>
void add_input(const VariedBlock& of, const VariedPass& more, const Work<T>& work, Own<T>& own) {
    int64_t size = of.gate.outputs;
    const T* inputs = (const T*)more.inputs + of.place * size;
    Rows<T> rows = own.rows(work.h, work.shape.model, work.rows, of.gate);
    multiply<T>(of.gate, rows, own.y.data(), [&](int64_t first, int64_t count, const float* y, int64_t stride) {
        for (int64_t r = 0; r < rows.count; r++)
            for (int64_t c = 0; c < count; c++) {
                float gate = to_float(rounded<T>(gelu_tanh(y[r * stride + c])));
                float input = to_float(inputs[r * more.stride + first + c]);
                work.active[r * size + first + c] = rounded<T>(gate * input);
            }
    });
    work.team->meet();
    add_output(of.out, of.input_norm_of_block, work.active, work, own);
}

// h += norm(mlp(h) + mixture(h)); ``sum`` [rows, model] is room for what is in the brackets
template <class T> void add_both(const VariedBlock& of, const Work<T>& work, T* sum, Own<T>& own) {
    Team::Part part = Team::part_of(work.rows * work.shape.model);
    std::fill(sum + part.first, sum + part.end, T());
    work.team->meet();
    Work<T> apart = work;
    apart.fed = work.h, apart.h = sum;
    add_mlp(of.block, apart, own);
    work.team->meet();
    add_experts(*of.beside, apart, own);
    work.team->meet();
    Work<T> whole = work;
    whole.given = sum;
    add_normalised(of.sum_norm, whole);
}

template <class T> void scale_rows(const Work<T>& work, double factor) {
    Team::Part part = Team::part_of(work.rows * work.shape.model);
    for (int64_t i = part.first; i < part.end; i++) work.h[i] = rounded<T>(to_float(work.h[i]) * float(factor));
}

// ``shape`` has the largest of all blocks' sizes; everything else as of blocks
template <class T>
void varied_blocks(const Shape& shape, const VariedBlock* of, int64_t count, const Pass& pass, const VariedPass& more,
                   T* h, const void* const* cosines, const void* const* sines, const int32_t* position,
                   void* const* left, int threads) {
    thread_local Buffers<T> buffers;
    Sight sight(pass);
    buffers.room.make(sight, shape.heads, shape.dim);
    Team team;
    Work<T> work = work_of<T>(shape, pass.requests * pass.width, h, cosines, sines, position, buffers, team);
    work.pass = &pass;
    buffers.entered.resize(work.rows * shape.model);
    T* sum = buffers.entered.data();
#pragma omp parallel num_threads(threads)
    {
        thread_local Own<T> own;
        for (int64_t i = 0; i < count; i++) {
            const VariedBlock& each = of[i];
            attend_in_varied(each, sight, more, work, own);
            team.meet();
            add_attention(each.block, work, own);
            team.meet();
            if (each.beside)
                add_both(each, work, sum, own);
            else
                add_feed_forward(each.block, work, own);
            team.meet();
            if (each.has_input()) add_input(each, more, work, own), team.meet();
            if (each.factor != 1.0) scale_rows(work, each.factor), team.meet();
            if (left && left[i]) keep_rows(work, (T*)left[i]);
        }
    }
}

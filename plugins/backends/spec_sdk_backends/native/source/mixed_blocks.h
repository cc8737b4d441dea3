// Consecutive blocks of which some carry a state in the place of attention, in one call, by all threads.
#pragma once

#include <algorithm>
#include <vector>

#include "blocks.h"
#include "state_space.h"

extern "C" struct MixedBlock {
    Block block;  // qkv and output are nothing without attention
    int64_t matrices;
    const Matrix* entering;  // [matrices]: what rows of one that carries a state go through first, outputs side by side
    const DeltaNet* delta;           // how it carries the state: one of these; all null for none
    const Convolution* convolution;
    const StateSpace* space;
    Matrix leaving;  // what they go through last
    int64_t gated;  // whether the queries' gates are outputs of qkv, behind the values

    bool carries() const { return delta || convolution || space; }
    bool attends() const { return block.output.outputs; }

    int64_t projected() const {
        int64_t outputs = 0;
        for (int64_t i = 0; i < matrices; i++) outputs += entering[i].outputs;
        return outputs;
    }
};

// qkv [rows, projected]
template <class T> void project_entering(const MixedBlock& of, const Work<T>& work, Own<T>& own) {
    int64_t read = normalise_rows(own, work, of.block.input_norm), width = of.projected(), before = 0;
    for (int64_t i = 0; i < of.matrices; before += of.entering[i++].outputs) {
        Rows<T> rows = own.rows(own.normal.data(), read, work.rows, of.entering[i]);
        write_product(of.entering[i], rows, work.qkv + before, width, own);
    }
}

// carried [rows, inputs of leaving]: what the rows of every request get of those before them; 0 for padding. ``gated`` is
// room for as many numbers
template <class T>
void carry_states(const MixedBlock& of, const Kept* kept, const std::vector<Paths>& paths, const Work<T>& work,
                  T* carried, float* gated) {
    int64_t width = of.projected(), given = of.leaving.inputs, rows = work.pass->width;
    for (size_t b = 0; b < paths.size(); b++) {
        const T* projected = work.qkv + b * rows * width;
        T* to = carried + b * rows * given;
        if (of.delta)
            gated_delta<T>(*of.delta, kept[b], paths[b], projected, width, to, given);
        else if (of.space)
            state_space<T>(*of.space, kept[b], paths[b], projected, width, gated, to, given, *work.team);
        else
            short_convolution<T>(*of.convolution, kept[b], paths[b], projected, width, to, given);
        int64_t live = paths[b].rows.count;
        Team::Part part = Team::part_of((rows - live) * given);
        std::fill(to + live * given + part.first, to + live * given + part.end, T());
    }
}

// attended under the sigmoids of its gates
template <class T> void apply_gates(const Block& block, const Work<T>& work) {
    int64_t given = block.output.inputs, width = block.qkv.outputs;
    Team::Part part = Team::part_of(work.rows * work.shape.heads);
    int64_t D = work.shape.dim;
    for (int64_t i = part.first; i < part.end; i++) {
        int64_t r = i / work.shape.heads, at = i % work.shape.heads * D;
        const T* gate = work.qkv + r * width + width - given + at;
        T* o = work.attended + r * given + at;
        for (int64_t d = 0; d < D; d++)
            o[d] = rounded<T>(to_float(o[d]) * to_float(rounded<T>(sigmoid(to_float(gate[d])))));
    }
}

inline std::vector<Paths> paths_of(const Pass& pass) {
    std::vector<Paths> made;
    for (int64_t b = 0; b < pass.requests; b++)
        made.emplace_back(NewRows{pass.prefix[b], pass.write_at[b], pass.live[b], pass.query_start + b * pass.row_stride,
                                  pass.key_start + b * pass.slot_stride, pass.key_end + b * pass.slot_stride});
    return made;
}

// ``count`` blocks, those with attention from cache layer ``layer`` on; ``kept`` [those that carry a state, requests];
// ``ranks``: which have parts of attention and MLP of every block, and each what carries a state whole; everything else
// as of blocks
template <class T>
void mixed_blocks(const Shape& shape, const MixedBlock* of, int64_t count, const Pass& pass, const Cache& cache,
                  int64_t layer, const Kept* kept, T* h, const void* const* cosines, const void* const* sines,
                  const int32_t* position, void* const* left, Ranks* ranks, int threads) {
    thread_local Buffers<T> buffers;
    thread_local std::vector<float> room;
    thread_local std::vector<T> carried;
    Sight sight(pass);
    buffers.room.make(sight, shape.heads, shape.dim);
    std::vector<Paths> paths = paths_of(pass);
    int64_t projected = 0, most = 0, rows = pass.requests * pass.width;
    for (int64_t i = 0; i < count; i++) {
        projected = std::max({projected, of[i].projected(), of[i].block.qkv.outputs});
        most = std::max(most, of[i].leaving.inputs);
    }
    room.resize(pass.width * most), carried.resize(rows * most);
    // what all threads share
    float* gated = room.data();
    T* given = carried.data();
    Team team;
    Work<T> work = work_of<T>(shape, rows, h, cosines, sines, position, buffers, team, projected);
    work.pass = &pass;
    const Work<T> whole = work;
    work.ranks = ranks;
#pragma omp parallel num_threads(threads)
    {
        thread_local Own<T> own;
        int64_t at = layer;
        const Kept* states = kept;
        for (int64_t i = 0; i < count; i++) {
            const Block& block = of[i].block;
            if (of[i].carries()) {
                project_entering(of[i], work, own);
                team.meet();
                carry_states(of[i], states, paths, work, given, gated);
                states += pass.requests;
                team.meet();
            }
            if (of[i].attends()) {
                attend_in_block(block, sight, cache, at++, work, own);
                if (of[i].gated) team.meet(), apply_gates(block, work);
                team.meet();
            }
            // both read h before either adds to it
            if (of[i].carries()) add_output(of[i].leaving, block.attention_output_norm, given, whole, own);
            if (of[i].attends()) add_attention(block, work, own);
            team.meet();
            if (ranks && ranks->lost) break;
            add_feed_forward(block, work, own);
            team.meet();
            if (ranks && ranks->lost) break;
            if (left && left[i]) keep_rows(work, (T*)left[i]);
        }
    }
}

// A pass in one call: tokens are looked up, go through all blocks, and some rows through the output head.
#pragma once

#include <algorithm>
#include <vector>

#include "blocks.h"
#include "lookup.h"
#include "product.h"

extern "C" struct Model {
    Shape shape;
    const Block* blocks;
    int64_t layers;
    Lookup embedding;
    int64_t tokens;         // its rows
    Gain final_norm;
    Matrix head;
};

extern "C" struct Scored {
    int64_t rows;          // that get logits
    const int32_t* row;    // their numbers; null: all in order
    void* logits;          // written: [rows, R]
};

// ``token`` [B * N], padding included; h [B * N, M] is written: what leaves the last block. ``left`` and
// ``ranks`` as of blocks. False, and nothing done, for a token that there is not.
template <class T>
bool forward(const Model& model, const Pass& pass, const Cache& cache, const int32_t* token, const void* const* cosines,
             const void* const* sines, T* h, void* const* left, const Scored& scored, Ranks* ranks, int threads) {
    int64_t M = model.shape.model, rows = pass.requests * pass.width;
    if (std::any_of(token, token + rows, [&](int32_t t) { return t < 0 || t >= model.tokens; })) return false;
    look_up<T>(model.embedding, token, rows, M, h);
    blocks<T>(model.shape, model.blocks, 0, model.layers, pass, cache, h, nullptr, cosines, sines, pass.position,
              threads, nullptr, left, ranks);
    if (ranks && ranks->lost) return true;
    thread_local std::vector<T> kept;
    kept.resize(scored.rows * M);
    T* normal = kept.data();
    for (int64_t r = 0; r < scored.rows; r++)
        normalise<T>(h + (scored.row ? scored.row[r] : r) * M, model.final_norm, M, model.shape.epsilon,
                     normal + r * M);
    if (scored.rows) product<T>(model.head, normal, M, scored.rows, (T*)scored.logits, threads);
    return true;
}

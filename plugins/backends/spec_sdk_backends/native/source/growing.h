// A token tree of the most probable paths in one call, or a chain of drawn tokens: what was committed is fed, then level
// after level of the tree.
//
// A model that drafts is small: between its passes Python would take as long as they do. The tree grows as the host
// would grow it, in float64 and with the same order of equal paths, so that it can be grown there once more.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "blocks.h"
#include "lookup.h"
#include "mass.h"
#include "product.h"
#include "top.h"

extern "C" struct DraftModel {
    Shape shape;
    const Block* blocks;
    int64_t layers;
    Lookup embedding;
    Gain embedding_norm;   // of a head whose attention reads embeddings beside hidden states; null: of no head
    Gain entering_norm;    // under which a feature enters that head's block; null: as it is
    Gain final_norm;
    int64_t feeds_normed;  // whether a head's children are fed what its output head reads
    double logit_scale;
};

extern "C" struct Growing {
    int64_t slot, prefix;      // of the cache
    int64_t rows;              // that are committed behind the prefix; the last one is the tree's root
    const int64_t* token;      // [rows]
    const void* feature;       // [rows, M] of a head, or null
    int64_t heads;             // whose outputs, side by side, are the logits: R of them
    const Matrix* head;
    const int64_t* token_of;   // [R]: the token of a logit; null: its place
    const void* const* cosines;  // as of blocks
    const void* const* sines;
    int64_t depth, width;      // levels of the tree, paths that are kept of each
    int64_t nodes;             // most nodes of the tree, the root included
    const int64_t* group;      // of each block, as blocks takes it, in passes of the tree's levels; null: of each its own
    double least_reach;        // a level that is reached less probably is not fed
    const double* uniform;     // [depth], where a chain is drawn, width 1: what each token is drawn with; or null
    const Shaping* shaping;    // of draws, as tokens:
    int64_t tokens;            // only those below can be drawn

    // written; X: the root and all nodes that are fed
    void* logits;              // [X, R]
    float* logprob;            // [X, width], as token_top: the most probable children, or the drawn one
    int64_t* token_top;        // -1: it cannot be drawn
    double* probability;       // [X], where a chain is drawn: that with which the child was
    void* state;               // [X, M] of a head: what the children are fed
    int64_t* node_token;       // [X - 1], as node_parent, whose numbers count from the root's 0
    int64_t* node_parent;
    int64_t* fed;              // [depth]: nodes of each level that were fed, 0 after the last
};

// Pre-order starts and ends of a tree's nodes in the order of creation, as whoever builds the tree numbers them
struct Intervals {
    std::vector<int32_t> start, end;

    explicit Intervals(const std::vector<int64_t>& parent) {
        size_t size = parent.size();
        std::vector<int32_t> subtree(size, 1), next(size, 1);
        for (size_t i = size - 1; i > 0; i--) subtree[parent[i]] += subtree[i];
        start.assign(size, 0);
        for (size_t i = 1; i < size; i++) {
            start[i] = next[parent[i]];
            next[parent[i]] += subtree[i];
            next[i] = start[i] + 1;
        }
        for (size_t i = 0; i < size; i++) end.push_back(start[i] + subtree[i]);
    }
};

// A pass of one request and the numbers that it points to.
struct OwnPass {
    int32_t slot, prefix, write_at, live;
    std::vector<int32_t> position, query, start, end, key_position;

    Pass pass() const {
        int64_t width = live, slots = start.size();
        return {1, width, slots, &slot, &prefix, &write_at, &live, position.data(), query.data(),
                start.data(), end.data(), key_position.data(), width, slots};
    }
};

inline OwnPass chain_pass(int64_t slot, int64_t prefix, int64_t rows) {
    OwnPass made{int32_t(slot), int32_t(prefix), int32_t(prefix), int32_t(rows)};
    for (int64_t i = 0; i < rows; i++) {
        made.position.push_back(prefix + i), made.key_position.push_back(prefix + i);
        made.query.push_back(i), made.start.push_back(i), made.end.push_back(rows);
    }
    return made;
}

// the ``count`` youngest nodes of a tree whose root is the last of ``prefix`` committed tokens
inline OwnPass level_pass(int64_t slot, int64_t prefix, const std::vector<int64_t>& parent,
                          const std::vector<int32_t>& depth, int64_t count) {
    int64_t size = parent.size();
    OwnPass made{int32_t(slot), int32_t(prefix), int32_t(prefix + size - 1 - count), int32_t(count)};
    Intervals seen(parent);
    for (int64_t node = 1; node < size; node++) {
        made.start.push_back(seen.start[node]), made.end.push_back(seen.end[node]);
        made.key_position.push_back(prefix - 1 + depth[node]);
        if (node < size - count) continue;
        made.position.push_back(prefix - 1 + depth[node]), made.query.push_back(seen.start[node]);
    }
    return made;
}

// A child that a level's node offers: the k-th node's w-th.
struct Offer {
    double joint;
    int64_t k, w;
};

// the ``most`` most probable ones, in the order of their parents
inline std::vector<Offer> kept_offers(std::vector<Offer> offers, int64_t most) {
    auto place = [](const Offer& a, const Offer& b) { return a.k != b.k ? a.k < b.k : a.w < b.w; };
    std::sort(offers.begin(), offers.end(), [&](const Offer& a, const Offer& b) {
        return a.joint != b.joint ? a.joint > b.joint : place(a, b);
    });
    if (int64_t(offers.size()) > most) offers.resize(std::max<int64_t>(most, 0));
    std::sort(offers.begin(), offers.end(), place);
    return offers;
}

// Feeds rows to a draft model, and finds the most probable children of those that are nodes of the tree.
template <class T> class Feeder {
  public:
    Feeder(const DraftModel& model, const Growing& growing, const Cache& cache, int threads)
        : _model(model), _growing(growing), _cache(cache), _threads(threads) {
        for (int64_t i = 0; i < growing.heads; i++) _columns += growing.head[i].outputs;
    }

    // The last ``nodes`` rows of a pass are nodes of the tree, from number ``first`` on. ``feature`` [rows, M] of a head.
    void feed(const OwnPass& of, const int64_t* token, const T* feature, int64_t nodes, int64_t first) {
        int64_t M = _model.shape.model, rows = of.live;
        double epsilon = _model.shape.epsilon;
        bool is_head = _model.embedding_norm.at;
        _embedded.resize(rows * M), _h.resize(rows * M), _normal.resize(nodes * M);
        look_up<T>(_model.embedding, token, rows, M, is_head ? _embedded.data() : _h.data());
        for (int64_t r = 0; is_head && r < rows; r++) {
            T *beside = &_embedded[r * M], *to = &_h[r * M];
            normalise<T>(beside, _model.embedding_norm, M, epsilon, beside);
            if (_model.entering_norm.at)
                normalise<T>(feature + r * M, _model.entering_norm, M, epsilon, to);
            else
                std::copy_n(feature + r * M, M, to);
        }
        blocks<T>(_model.shape, _model.blocks, 0, _model.layers, of.pass(), _cache, _h.data(),
                  is_head ? _embedded.data() : nullptr, _growing.cosines, _growing.sines, of.position.data(), _threads,
                  first ? _growing.group : nullptr);
        const T* last = &_h[(rows - nodes) * M];
        for (int64_t r = 0; r < nodes; r++)
            normalise<T>(last + r * M, _model.final_norm, M, epsilon, &_normal[r * M]);
        if (is_head) std::copy_n(_model.feeds_normed ? _normal.data() : last, nodes * M, (T*)_growing.state + first * M);
        find_children(nodes, first);
    }

  private:
    // of nodes whose hidden states are normalised: logits, and the most probable tokens
    void find_children(int64_t nodes, int64_t first) {
        T* logits = (T*)_growing.logits + first * _columns;
        for (int64_t i = 0, at = 0; i < _growing.heads; at += _growing.head[i++].outputs) {
            const Matrix& head = _growing.head[i];
            _some.resize(nodes * head.outputs);
            product<T>(head, _normal.data(), head.inputs, nodes, _some.data(), _threads);
            for (int64_t r = 0; r < nodes; r++)
                std::copy_n(&_some[r * head.outputs], head.outputs, logits + r * _columns + at);
        }
        if (_model.logit_scale != 1.0)
            for (int64_t i = 0; i < nodes * _columns; i++)
                logits[i] = rounded<T>(to_float(logits[i]) * float(_model.logit_scale));
        if (_growing.uniform) return draw_child(logits, first);
        int64_t width = _growing.width, *top = _growing.token_top + first * width;
        top_log_probabilities<T>(logits, _columns, nodes, _columns, width, _growing.logprob + first * width, top,
                                 _threads);
        for (int64_t i = 0; _growing.token_of && i < nodes * width; i++) top[i] = _growing.token_of[top[i]];
    }

    // in the order of tokens, whatever that of their logits is
    void draw_child(const T* logits, int64_t node) {
        thread_local std::vector<float> kept_mass, kept_sums;
        Mass mass{_growing.tokens};
        kept_mass.resize(mass.tokens), kept_sums.resize(mass.tiles());
        mass.of = kept_mass.data(), mass.sums = kept_sums.data();
        Logits<T> given{logits, _growing.token_of, _columns, mass.tokens};
        double whole = mass_of_logits(mass, given, *_growing.shaping, _threads);
        int64_t token = std::isnan(whole) ? -1 : drawn(mass, _growing.uniform[node]);
        double probability = token < 0 ? 0.0 : mass.of[token] / whole;
        _growing.token_top[node] = token, _growing.probability[node] = probability;
        _growing.logprob[node] = float(std::log(probability));
    }

    const DraftModel& _model;
    const Growing& _growing;
    const Cache& _cache;
    int _threads;
    int64_t _columns = 0;
    std::vector<T> _embedded, _h, _normal, _some;
};

template <class T>
void grow(const DraftModel& model, const Growing& growing, const Cache& cache, int threads) {
    Feeder<T> feeder(model, growing, cache, threads);
    int64_t M = model.shape.model, width = growing.width, prefix = growing.prefix + growing.rows;
    feeder.feed(chain_pass(growing.slot, growing.prefix, growing.rows), growing.token, (const T*)growing.feature, 1, 0);

    std::vector<int64_t> parent{-1};
    std::vector<int32_t> depth{0};
    std::vector<double> joint{0.0}, reached{1.0};
    std::vector<T> features;
    int64_t level = 0, first = 0;  // of the level whose children are known
    std::fill_n(growing.fed, growing.depth, 0);
    for (; level + 1 < growing.depth; level++) {
        int64_t size = parent.size();
        std::vector<Offer> offers;
        for (int64_t k = 0; k < size - first; k++)
            for (int64_t w = 0; w < width; w++) {
                double offered = joint[first + k] + double(growing.logprob[(first + k) * width + w]);
                if (offered > -std::numeric_limits<double>::infinity()) offers.push_back({offered, k, w});
            }
        // an equal share of the room for every level
        int64_t share = (growing.nodes - size) / (growing.depth - level);
        double reach = 0.0;
        for (const Offer& offer : kept_offers(std::move(offers), std::min(width, share))) {
            int64_t above = first + offer.k, place = above * width + offer.w;
            growing.node_token[parent.size() - 1] = growing.token_top[place];
            growing.node_parent[parent.size() - 1] = above;
            parent.push_back(above), depth.push_back(depth[above] + 1), joint.push_back(offer.joint);
            reached.push_back(reached[above] * std::exp(double(growing.logprob[place])));
            reach += reached.back();
        }
        int64_t count = int64_t(parent.size()) - size;
        if (!count || reach < growing.least_reach) return;
        if (growing.feature) {
            features.resize(count * M);
            for (int64_t i = 0; i < count; i++)
                std::copy_n((const T*)growing.state + parent[size + i] * M, M, &features[i * M]);
        }
        feeder.feed(level_pass(growing.slot, prefix, parent, depth, count), growing.node_token + size - 1,
                    features.data(), count, size);
        growing.fed[level] = count;
        first = size;
    }
}

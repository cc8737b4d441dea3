// The second half of a decoder block: a gated MLP, or a mixture of them of which every row has a few.
#pragma once

#include <numeric>

#include "block.h"

// active [rows, I] = relu(up)², this thread's part
template <class T> void square_positive(const Matrix& up, const Rows<T>& rows, Own<T>& own, T* active) {
    multiply<T>(up, rows, own.y.data(), [&](int64_t first, int64_t count, const float* y, int64_t stride) {
        for (int64_t r = 0; r < rows.count; r++)
            for (int64_t c = 0; c < count; c++) {
                float positive = std::max(y[r * stride + c], 0.0f);
                active[r * up.outputs + first + c] = rounded<T>(positive * positive);
            }
    });
}

// active [rows, I] = activation(gate) · up, this thread's part. A dense matrix has whole panels of gates.
template <class T>
void activate(const Matrix& gate_up, const Rows<T>& rows, const Work<T>& work, Own<T>& own, T* active) {
    if (work.shape.activation == 3) return square_positive(gate_up, rows, own, active);
    int64_t size = gate_up.outputs / 2;
    Team::Part part = Team::part_of(blocks_of(size));
    TileShapes shapes = rows.shapes(gate_up);
    auto use = [&](int64_t first, const float* gate, const float* up, int64_t stride) {
        int64_t count = std::min<int64_t>(BLOCK, size - first);
        auto by = [&](auto activation) {
            for (int64_t r = 0; r < rows.count; r++)
                for (int64_t c = 0; c < count; c++)
                    active[r * size + first + c] = rounded<T>(activation(gate[r * stride + c], up[r * stride + c]));
        };
        if (work.shape.activation == 2)
            by([](float gate, float up) { return clamped_swiglu(gate, up); });
        else if (work.shape.activation == 1)
            by([](float gate, float up) { return gelu_tanh(gate) * up; });
        else
            by([](float gate, float up) { return silu(gate) * up; });
    };
    if (!gate_up.bits) {
        // gates and the numbers that they multiply by turns
        int64_t lines = rows.packed.lines();
        auto panel = [&](int64_t i) { return part.first + i / 2 + i % 2 * (size / PANEL); };
        dense_outputs<T>(gate_up, rows.packed, 2 * (part.end - part.first), panel, own.y.data(),
                         [&](int64_t i, int64_t n, const float* y) {
                             for (int64_t b = 0; b < n; b += 2)
                                 use(panel(i + b) * PANEL, y + b * lines * PANEL, y + (b + 1) * lines * PANEL, PANEL);
                         });
        return;
    }
    own.up.resize(rows.count * Y_STRIDE);
    each_band(records_of(gate_up), part, rows.count, [&](int64_t block, int64_t blocks) {
        int64_t first = block * BLOCK, count = std::min(blocks * BLOCK, size - first);
        const float* gate = outputs_of<T>(gate_up, rows, first, count, own.y.data());
        const float* up = outputs_of<T>(gate_up, rows, size + first, count, own.up.data());
        for (int64_t c = 0; c < count; c += BLOCK) use(first + c, gate + c, up + c, Y_STRIDE);
    });
}

// h += down(activation(gate) · up) of the norm of h
template <class T> void add_mlp(const Block& block, const Work<T>& work, Own<T>& own) {
    normalise_rows<T>(own, work, block.post_norm, nullptr, work.fed);
    Rows<T> rows = own.rows(own.normal.data(), work.shape.model, work.rows, block.gate_up);
    activate(block.gate_up, rows, work, own, work.active);
    work.team->meet();
    rows = own.rows(work.active, block.down.inputs, work.rows, block.down);
    Giving<T> give(block.mlp_output_norm, work);
    multiply<T>(block.down, rows, own.y.data(), give);
    give.end();
}

// x · w in float32, in one order
template <class T, class W> float product_of(const T* x, const W* w, int64_t size) {
    Lanes sums[4] = {zeros(), zeros(), zeros(), zeros()};
    int64_t i = 0;
    for (; i + 4 * LANES <= size; i += 4 * LANES)
        UNROLLED for (int k = 0; k < 4; k++)
            sums[k] = fused(load(x + i + k * LANES), load(w + i + k * LANES), sums[k]);
    for (; i + LANES <= size; i += LANES) sums[0] = fused(load(x + i), load(w + i), sums[0]);
    if (i < size) sums[1] = fused(load(x + i, int(size - i)), load(w + i, int(size - i)), sums[1]);
    return sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Those of ``order`` with the most of ``value`` come first, ``most`` of them; of equal ones those with lower numbers. What
// is not a number is the most.
inline void best_first(std::vector<int32_t>& order, const float* value, int64_t most) {
    auto rank = [&](int32_t i) { return value[i] == value[i] ? value[i] : INFINITY; };
    std::partial_sort(order.begin(), order.begin() + most, order.end(), [&](int32_t a, int32_t b) {
        return rank(a) != rank(b) ? rank(a) > rank(b) : a < b;
    });
}

// The experts of a row by their logits, the best first, and their weights.
class Choice {
  public:
    void make(const Experts& experts, const float* logit, int32_t* chosen, float* weight) {
        int64_t E = experts.count, A = experts.per_row;
        score(experts, logit);
        _order.resize(E);
        std::iota(_order.begin(), _order.end(), 0);
        const float* value = experts.correction ? _biased.data() : _score.data();
        if (experts.groups > experts.groups_of_row) keep_best_groups(experts, value);
        best_first(_order, value, A);
        float sum = 0.0f;
        for (int64_t a = 0; a < A; a++) {
            chosen[a] = _order[a];
            sum += weight[a] = _score[_order[a]];
        }
        float least = float(experts.least_sum);
        sum = sum < least ? least : sum;
        for (int64_t a = 0; a < A; a++) {
            if (experts.normalised) weight[a] /= sum;
            weight[a] *= float(experts.scale);
            if (experts.weight) weight[a] *= experts.weight[chosen[a]];
        }
    }

  private:
    void score(const Experts& experts, const float* logit) {
        int64_t E = experts.count;
        _score.resize(E), _biased.resize(E);
        if (experts.by_sigmoid) {
            for (int64_t e = 0; e < E; e++) _score[e] = sigmoid(logit[e]);
        } else {
            float largest = *std::max_element(logit, logit + E), sum = 0.0f;
            for (int64_t e = 0; e < E; e++) sum += _score[e] = exponential(logit[e] - largest);
            for (int64_t e = 0; e < E; e++) _score[e] /= sum;
        }
        for (int64_t e = 0; experts.correction && e < E; e++) _biased[e] = _score[e] + experts.correction[e];
    }

    // only the experts of the best groups stay in the order
    void keep_best_groups(const Experts& experts, const float* value) {
        int64_t size = experts.count / experts.groups;
        _group.resize(experts.groups), _of_group.resize(experts.groups);
        std::iota(_group.begin(), _group.end(), 0);
        for (int64_t g = 0; g < experts.groups; g++) {
            auto first = _order.begin() + g * size;
            std::vector<int32_t> own(first, first + size);
            best_first(own, value, 2);
            _of_group[g] = value[own[0]] + value[own[1]];
        }
        best_first(_group, _of_group.data(), experts.groups_of_row);
        _order.clear();
        for (int64_t i = 0; i < experts.groups_of_row; i++)
            for (int64_t e = 0; e < size; e++) _order.push_back(_group[i] * size + e);
    }

    std::vector<float> _score, _biased, _of_group;
    std::vector<int32_t> _order, _group;
};

// From all scores, by each thread for itself. Padding has no experts.
template <class T> void route(const Experts& experts, const Work<T>& work, Own<T>& own) {
    thread_local std::vector<int32_t> chosen, next;
    thread_local Choice choice;
    Routing& to = own.routing;
    int64_t A = experts.per_row, E = experts.count;
    chosen.resize(work.rows * A), to.weight.resize(work.rows * A), to.pair.assign(work.rows * A, -1);
    to.first.assign(E + 1, 0), to.row.resize(work.rows * A), to.shared.assign(work.rows, 0.0f);
    for (int64_t r = 0; r < work.rows; r++) {
        if (work.is_padding(r)) continue;
        choice.make(experts, work.scores + r * E, &chosen[r * A], &to.weight[r * A]);
        for (int64_t a = 0; a < A; a++) to.first[chosen[r * A + a] + 1]++;
        to.shared[r] = 1.0f;
        if (!experts.shared_gate) continue;
        const T* x = own.normal.data() + r * work.shape.model;
        float logit = to_float(rounded<T>(product_of(x, (const T*)experts.shared_gate, work.shape.model)));
        to.shared[r] = to_float(rounded<T>(sigmoid(logit)));
    }
    std::partial_sum(to.first.begin(), to.first.end(), to.first.begin());
    next.assign(to.first.begin(), to.first.end());
    for (int64_t r = 0; r < work.rows; r++) {
        if (work.is_padding(r)) continue;
        for (int64_t a = 0; a < A; a++) {
            int32_t pair = to.pair[r * A + a] = next[chosen[r * A + a]]++;
            to.row[pair] = r;
        }
    }
}

// some rows of the norm of h, one behind the other
template <class T> Rows<T> gathered(const int32_t* row, int64_t count, const Matrix& matrix, Own<T>& own, int64_t M) {
    if (count == 1) return own.rows(own.normal.data() + row[0] * M, M, 1, matrix);
    own.gathered.resize(count * M);
    for (int64_t i = 0; i < count; i++) std::copy_n(own.normal.data() + row[i] * M, M, own.gathered.data() + i * M);
    return own.rows(own.gathered.data(), M, count, matrix);
}

// h += Σ weight · expert(norm of h), over the experts of each row
template <class T> void add_experts(const Block& block, const Work<T>& work, Own<T>& own) {
    const Experts& experts = *block.experts;
    int64_t M = work.shape.model, A = experts.per_row;
    normalise_rows<T>(own, work, experts.router_norm.at ? experts.router_norm : block.post_norm, nullptr, work.fed);
    Team::Part part = Team::part_of(experts.count);
    for (int64_t e = part.first; e < part.end; e++) {
        float bias = experts.router_bias ? experts.router_bias[e] : 0.0f;
        for (int64_t r = 0; r < work.rows; r++)
            work.scores[r * experts.count + e] = product_of(own.normal.data() + r * M, experts.router + e * M, M) + bias;
    }
    work.team->meet();
    route(experts, work, own);
    if (experts.router_norm.at) normalise_rows<T>(own, work, block.post_norm, nullptr, work.fed);

    const Routing& routing = own.routing;
    // ``use(e, pair, count, I)`` of every expert that has any rows
    auto each = [&](const auto& use) {
        for (int64_t e = 0; e < experts.count; e++)
            if (int64_t count = routing.first[e + 1] - routing.first[e])
                use(e, routing.first[e], count, experts.down[e].inputs);
    };
    T* active = work.active;
    each([&](int64_t e, int64_t pair, int64_t count, int64_t size) {
        const Matrix& matrix = experts.gate_up[e];
        activate(matrix, gathered(&routing.row[pair], count, matrix, own, M), work, own, active);
        active += count * size;
    });
    if (experts.has_shared())
        activate(experts.shared_gate_up, own.rows(own.normal.data(), M, work.rows, experts.shared_gate_up), work, own,
                 active);
    work.team->meet();

    auto multiply_to = [&](const Matrix& down, int64_t count, const T* from, T* to) {
        multiply<T>(down, own.rows(from, down.inputs, count, down), own.y.data(),
                    [&](int64_t first, int64_t width, const float* y, int64_t stride) {
                        for (int64_t r = 0; r < count; r++)
                            for (int64_t c = 0; c < width; c++) to[r * M + first + c] = rounded<T>(y[r * stride + c]);
                    });
    };
    active = work.active;
    each([&](int64_t e, int64_t pair, int64_t count, int64_t size) {
        multiply_to(experts.down[e], count, active, work.products + pair * M);
        active += count * size;
    });
    T* shared = work.products + int64_t(routing.row.size()) * M;
    if (experts.has_shared()) multiply_to(experts.shared_down, work.rows, active, shared);

    // this thread made these outputs of all products
    Giving<T> give(block.mlp_output_norm, work);
    Team::Part outputs = Team::part_of(blocks_of(M));
    own.y.resize(work.rows * BLOCK);
    for (int64_t first = outputs.first * BLOCK; first < std::min<int64_t>(outputs.end * BLOCK, M); first += BLOCK) {
        int64_t width = std::min<int64_t>(BLOCK, M - first);
        for (int64_t r = 0; r < work.rows; r++) {
            float* y = own.y.data() + r * BLOCK;
            std::fill_n(y, width, 0.0f);
            int64_t own_experts = work.is_padding(r) ? 0 : A;
            for (int64_t a = 0; a < own_experts; a++) {
                const T* product = work.products + routing.pair[r * A + a] * M + first;
                float weight = routing.weight[r * A + a];
                for (int64_t c = 0; c < width; c++) y[c] += weight * to_float(product[c]);
            }
            for (int64_t c = 0; c < width && experts.has_shared(); c++) {
                float besides = to_float(rounded<T>(routing.shared[r] * to_float(shared[r * M + first + c])));
                y[c] = to_float(rounded<T>(y[c])) + besides;
            }
        }
        give(first, width, own.y.data(), BLOCK);
    }
    give.end();
}

// the block's MLP or mixture, if any, whose result is added to h
template <class T> void add_feed_forward(const Block& block, const Work<T>& work, Own<T>& own) {
    if (block.experts)
        add_experts(block, work, own);
    else if (block.down.outputs)
        add_mlp(block, work, own);
}

// Gated delta nets: the rows of a token tree behind a state, as spec_sdk/ops/gated_delta.py has the arithmetic.
//
// A row's sums go over the rows of its own path alone, the oldest first. So its numbers do not depend on the rows
// beside it, nor on the number of threads, which take key heads.
//
// G key heads, H value heads (H/G to a key head), D key dim, V value dim, N new rows, S rows behind the state, new ones
// among them.
#pragma once

#include <cmath>
#include <vector>

#include "convolution.h"
#include "lanes.h"

extern "C" struct DeltaNet {
    Convolution convolution;  // of Q, K and V
    int64_t key_heads, value_heads, key_dim, value_dim;
    int64_t tiled;  // whether value heads h, h + G, ... share a key head, in the order of rows and gains; or neighbours
    double epsilon;
    const float *decay, *bias;  // [H]: -e^A, and what is added to a row's step
    const float* norm;          // [V]

    int64_t shared() const { return value_heads / key_heads; }
    int64_t keys() const { return key_heads * key_dim; }
    int64_t values() const { return value_heads * value_dim; }

    // the number that rows have for value head number i of a key head
    int64_t head(int64_t g, int64_t i) const { return tiled ? i * key_heads + g : g * shared() + i; }
};

// what one thread computes in
struct DeltaRoom {
    std::vector<float> both;        // [2N, D]: keys, then queries
    std::vector<float> value;       // [H/G, N, V]
    std::vector<float> score;       // [2N, S]: of ``both`` and all keys
    std::vector<float> from_state[MOST_MEMORIES];  // [2N, V]: of ``both`` and a state
    std::vector<float> weights;     // [2, S]: of earlier rows' u in a row's u, and in its o
    std::vector<float> sums;        // [2, V]
    PathBehind path;
};

inline int64_t in_tiles(int64_t outputs) { return (outputs + TILE_OUTPUTS - 1) / TILE_OUTPUTS * TILE_OUTPUTS; }

inline float dot(const float* a, const float* b, int64_t size) {
    Lanes sum = zeros();
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) sum = fused(load(a + i), load(b + i), sum);
    if (i < size) sum = fused(load(a + i, int(size - i)), load(b + i, int(size - i)), sum);
    return sum_of(sum);
}

constexpr int64_t AHEAD = 8;  // outputs whose weights are fetched before they are read

// into the cache soon, if there is such memory
inline void fetch(const float* from, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(from + i);
}

// y[r * in_tiles(outputs) + o] = w[o] · x[r], rows of both one behind the other
inline void dots(const float* w, int64_t outputs, const float* x, int64_t rows, int64_t size, float* y) {
    int64_t stride = in_tiles(outputs);
    for (int64_t o = 0; o < outputs; o += TILE_OUTPUTS) {
        const float* at[TILE_OUTPUTS];
        for (int64_t c = 0; c < TILE_OUTPUTS; c++) at[c] = w + std::min(o + c, outputs - 1) * size;
        fetch(w + (o + AHEAD) * size, TILE_OUTPUTS * size);
        for (int64_t r = 0; r < rows; r += TILE_ROWS)
            with_count(std::min<int64_t>(TILE_ROWS, rows - r), [&](auto count) {
                tile<float, decltype(count)::value>(at, x + r * size, size, size, y + r * stride + o, stride);
            });
    }
}

// two sums of rows x[place[j]] [size], each by weights of its own, B vectors of them
template <int B>
inline void weigh(const float* x, int64_t size, const int32_t* place, const float* first, const float* second,
                  int64_t count, float* sum, float* other) {
    Lanes a[B], b[B];
    UNROLLED for (int i = 0; i < B; i++) a[i] = b[i] = zeros();
    for (int64_t j = 0; j < count; j++) {
        const float* row = x + place[j] * size;
        Lanes by = all(first[j]), with = all(second[j]);
        UNROLLED for (int i = 0; i < B; i++) {
            Lanes part = load(row + i * LANES);
            a[i] = fused(part, by, a[i]), b[i] = fused(part, with, b[i]);
        }
    }
    UNROLLED for (int i = 0; i < B; i++) store(sum + i * LANES, a[i]), store(other + i * LANES, b[i]);
}

inline void weigh_rows(const float* x, int64_t size, const int32_t* place, const float* first, const float* second,
                       int64_t count, float* sum, float* other) {
    constexpr int WIDE = 8;
    int64_t v = 0;
    for (; v + WIDE * LANES <= size; v += WIDE * LANES)
        weigh<WIDE>(x + v, size, place, first, second, count, sum + v, other + v);
    for (; v + LANES <= size; v += LANES) weigh<1>(x + v, size, place, first, second, count, sum + v, other + v);
    for (; v < size; v++) {
        float a = 0.0f, b = 0.0f;
        for (int64_t j = 0; j < count; j++) {
            float part = x[place[j] * size + v];
            a += part * first[j], b += part * second[j];
        }
        sum[v] = a, other[v] = b;
    }
}

// log(1 + e^x)
inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// What one key head and its value heads make of rows [N, C + H V + 2 H] ``stride`` apart: given [N, H V], so far apart as
// ``given_stride`` says.
template <class T> class DeltaHeads {
  public:
    DeltaHeads(const DeltaNet& net, const Kept& kept, const Paths& paths, const T* projected, int64_t stride, T* given,
               int64_t given_stride, DeltaRoom& room)
        : _net(net), _kept(kept), _paths(paths), _projected(projected), _stride(stride), _given(given),
          _given_stride(given_stride), _room(room), _rows(paths.rows.count) {
        room.path.begin(kept, paths);
        _behind = room.path.behind;
        room.both.resize(2 * _rows * net.key_dim);
        room.value.resize(net.shared() * _rows * net.value_dim);
        room.score.resize(2 * _rows * in_tiles(_behind));
        _memories = 1;
        for (int64_t n = 0; n < _rows; n++) _memories = std::max(_memories, 1 + kept.memory_of(paths.position(n)));
        for (int64_t i = 0; i < _memories; i++) room.from_state[i].resize(2 * _rows * in_tiles(net.value_dim));
        room.weights.resize(2 * _behind);
        room.sums.resize(2 * net.value_dim);
    }

    void run(int64_t g) {
        int64_t D = _net.key_dim, V = _net.value_dim;
        float *k = _room.both.data(), *q = k + _rows * D;
        convolved(g * D, D, q);
        convolved(_net.keys() + g * D, D, k);
        float* keys = _kept.k + (g * _kept.room + _kept.lead) * D;
        for (int64_t n = 0; n < _rows; n++) {
            to_length(q + n * D, 1.0f / std::sqrt(float(D)));
            to_length(k + n * D, 1.0f);
            std::copy_n(k + n * D, D, keys + (_behind - _rows + n) * D);
        }
        dots(keys, _behind, k, 2 * _rows, D, _room.score.data());
        for (int64_t i = 0; i < _net.shared(); i++) {
            float* value = _room.value.data() + i * _rows * V;
            convolved(2 * _net.keys() + _net.head(g, i) * V, V, value);
            run_values(g * _net.shared() + i, _net.head(g, i), value);
        }
    }

  private:
    // to [N, count]: channels under convolution and SiLU; they are written to the state before that
    void convolved(int64_t first, int64_t count, float* to) const {
        int64_t C = _net.convolution.channels;
        for (int64_t n = 0; n < _rows; n++)
            std::copy_n(_projected + n * _stride + first, count,
                        (T*)_kept.x + _kept.index(_paths.rows.first + n) * C + first);
        for (int64_t n = 0; n < _rows; n++, to += count) {
            convolve<T>(_net.convolution, _kept, _paths, n, first, count, to);
            for (int64_t c = 0; c < count; c++) to[c] = silu(to[c]);
        }
    }

    void to_length(float* x, float length) const {
        float factor = length / std::sqrt(dot(x, x, _net.key_dim) + 1e-6f);
        for (int64_t d = 0; d < _net.key_dim; d++) x[d] *= factor;
    }

    // the rows of state h, which rows know by the number ``head``
    void run_values(int64_t h, int64_t head, const float* value) {
        int64_t D = _net.key_dim, V = _net.value_dim;
        int64_t stride = in_tiles(V), own = _behind - _rows;
        float* u = _kept.u + (h * _kept.room + _kept.lead) * V;
        fetch(u, (_behind - _rows) * V);
        for (int64_t i = 0; i < _memories; i++)
            dots(_kept.memory[i] + h * V * D, V, _room.both.data(), 2 * _rows, D, _room.from_state[i].data());
        double* path = _kept.path + h * _kept.room + _kept.lead;
        for (int64_t n = 0; n < _rows; n++) {
            const T* row = _projected + n * _stride + _net.convolution.channels;
            const T* gains = row + _net.values();
            float step = to_float(gains[_net.value_heads + head]) + _net.bias[head];
            int64_t count = _room.path.find(_paths, n), memory = _kept.memory_of(_paths.position(n)), first = memory * _kept.step;
            double before = _kept.memory_path[memory][h];
            double decay = _room.path.sum(count, path, before) + double(_net.decay[head] * softplus(step));
            path[own + n] = decay;
            weigh_path(n, first, count, path);
            float *sum = _room.sums.data(), *o = sum + V, *to = u + (own + n) * V, *weights = _room.weights.data();
            weigh_rows(u, V, _room.path.place.data() + first, weights + first, weights + _behind + first, count - first, sum,
                       o);
            float left = exponential(float(decay - before)), gain = sigmoid(to_float(gains[head]));
            const float* state = _room.from_state[memory].data();
            float with_itself = _room.score[(_rows + n) * in_tiles(_behind) + own + n];
            const float *of_key = state + n * stride, *of_query = state + (_rows + n) * stride, *v = value + n * V;
            for (int64_t i = 0; i < V; i++) {
                to[i] = gain * (v[i] - left * of_key[i] - sum[i]);
                o[i] = left * of_query[i] + o[i] + with_itself * to[i];
            }
            give(o, row + head * V, _given + n * _given_stride + head * V);
        }
    }

    // what is left of each of them, from the one with this number on, times its scores
    void weigh_path(int64_t n, int64_t from, int64_t count, const double* path) {
        int64_t stride = in_tiles(_behind), own = _behind - _rows + n;
        const float *by_key = _room.score.data() + n * stride, *by_query = by_key + _rows * stride;
        float *first = _room.weights.data(), *second = first + _behind;
        double decay = path[own];
        for (int64_t j = from; j < _room.path.pending; j++) {
            float left = exponential(float(decay - path[j]));
            first[j] = left * by_key[j], second[j] = left * by_query[j];
        }
        for (int64_t j = _room.path.pending; j < count; j++) {
            int64_t at = _room.path.place[j];
            float left = exponential(float(decay - path[at]));
            first[j] = left * by_key[at], second[j] = left * by_query[at];
        }
    }

    // o under its norm, times the SiLU of its gate
    void give(const float* o, const T* gate, T* to) const {
        int64_t V = _net.value_dim;
        float factor = 1.0f / std::sqrt(dot(o, o, V) / float(V) + float(_net.epsilon));
        for (int64_t i = 0; i < V; i++) to[i] = rounded<T>(o[i] * factor * _net.norm[i] * silu(to_float(gate[i])));
    }

    const DeltaNet& _net;
    const Kept& _kept;
    const Paths& _paths;
    const T* _projected;
    int64_t _stride;
    T* _given;
    int64_t _given_stride;
    DeltaRoom& _room;
    int64_t _rows, _behind, _memories;
};

// this thread's key heads
template <class T>
void gated_delta(const DeltaNet& net, const Kept& kept, const Paths& paths, const T* projected, int64_t stride, T* given,
                 int64_t given_stride) {
    thread_local DeltaRoom room;
    Team::Part part = Team::part_of(net.key_heads);
    if (part.first == part.end) return;
    DeltaHeads<T> heads(net, kept, paths, projected, stride, given, given_stride, room);
    for (int64_t g = part.first; g < part.end; g++) heads.run(g);
}

// Mamba-2's layers: the rows of a token tree behind a state, as spec_sdk/model/recurrent/state_space.py has the arithmetic.
//
// Few groups share keys b and queries c, so that threads take heads. A row's sums go over the rows of its own path alone,
// as those of gated delta nets do.
//
// G groups, H heads, D state dim, V head dim, Y = H V, N new rows, S rows behind the state, new ones among them.
#pragma once

#include "gated_delta.h"

extern "C" struct StateSpace {
    DeltaNet net;  // sizes, convolution, decay and bias as a delta net has them; norm [Y]
    const float* skip;  // [H]: what a row's own x is added times
    double least_step, most_step;
    double gate_scale, step_scale;  // of gates, and of steps before their bias
    int64_t normed;  // whether there is a norm, or net.norm alone is what outputs are multiplied by
};

// what one thread computes in
struct SpaceRoom {
    std::vector<float> query;  // [N, D]
    std::vector<float> value;  // [N, V]
    std::vector<float> score;  // [N, S]
    std::vector<float> from_state[MOST_MEMORIES];  // [N, V]
    std::vector<float> weights, sums;              // [S], and [2, V]
    PathBehind path;
};

// Rows [N, Y + C + H] ``stride`` apart: given [N, Y], so far apart as ``given_stride`` says. ``gated`` [N, Y] is room
// that all threads share; they call all stages in turn, and meet between them.
template <class T> class SpaceHeads {
  public:
    SpaceHeads(const StateSpace& space, const Kept& kept, const Paths& paths, const T* projected, int64_t stride,
               float* gated, T* given, int64_t given_stride, SpaceRoom& room)
        : _space(space), _net(space.net), _kept(kept), _paths(paths), _projected(projected), _stride(stride),
          _gated(gated), _given(given), _given_stride(given_stride), _room(room), _rows(paths.rows.count),
          _memories(1) {
        room.path.begin(kept, paths);
        _behind = room.path.behind;
        int64_t V = _net.value_dim;
        for (int64_t n = 0; n < _rows; n++) _memories = std::max(_memories, 1 + kept.memory_of(paths.position(n)));
        for (int64_t i = 0; i < _memories; i++) room.from_state[i].resize(_rows * in_tiles(V));
        room.query.resize(_rows * _net.key_dim);
        room.value.resize(_rows * V);
        room.score.resize(_rows * in_tiles(_behind));
        room.weights.resize(_behind);
        room.sums.resize(2 * V);
    }

    // x of the rows to the state
    void keep_channels() const {
        int64_t C = _net.convolution.channels;
        Team::Part part = Team::part_of(C);
        for (int64_t n = 0; n < _rows; n++) {
            const T* x = _projected + n * _stride + _net.values();
            std::copy(x + part.first, x + part.end, (T*)_kept.x + _kept.index(_paths.rows.first + n) * C + part.first);
        }
    }

    // their keys, too
    void keep_keys() const {
        int64_t D = _net.key_dim;
        Team::Part part = Team::part_of(_net.key_heads);
        for (int64_t g = part.first; g < part.end; g++)
            convolved(_net.values() + g * D, D, keys(g) + (_behind - _rows) * D);
    }

    // this thread's heads: ``gated`` o under the SiLU of its gate
    void run() {
        int64_t D = _net.key_dim, last = -1;
        Team::Part part = Team::part_of(_net.value_heads);
        for (int64_t h = part.first; h < part.end; h++) {
            int64_t g = h / _net.shared();
            if (g != last) {
                convolved(_net.values() + _net.keys() + g * D, D, _room.query.data());
                dots(keys(g), _behind, _room.query.data(), _rows, D, _room.score.data());
                last = g;
            }
            run_head(h);
        }
    }

    // ``given``: all heads of a group under one norm, if there is one
    void give() const {
        int64_t G = _net.key_heads, Y = _net.values(), size = Y / G;
        Team::Part part = Team::part_of(_rows * G);
        for (int64_t i = part.first; i < part.end; i++) {
            int64_t n = i / G, first = i % G * size;
            const float *o = _gated + n * Y + first, *gain = _net.norm + first;
            float factor = 1.0f;
            if (_space.normed) factor = 1.0f / std::sqrt(dot(o, o, size) / float(size) + float(_net.epsilon));
            T* to = _given + n * _given_stride + first;
            for (int64_t c = 0; c < size; c++) to[c] = rounded<T>(o[c] * factor * gain[c]);
        }
    }

  private:
    float* keys(int64_t g) const { return _kept.k + (g * _kept.room + _kept.lead) * _net.key_dim; }

    // to [N, count]: channels under convolution and SiLU
    void convolved(int64_t first, int64_t count, float* to) const {
        for (int64_t n = 0; n < _rows; n++, to += count) {
            convolve<T>(_net.convolution, _kept, _paths, n, first, count, to);
            for (int64_t c = 0; c < count; c++) to[c] = silu(to[c]);
        }
    }

    void run_head(int64_t h) {
        int64_t D = _net.key_dim, V = _net.value_dim, stride = in_tiles(V), own = _behind - _rows;
        float* u = _kept.u + (h * _kept.room + _kept.lead) * V;
        fetch(u, own * V);
        for (int64_t i = 0; i < _memories; i++)
            dots(_kept.memory[i] + h * V * D, V, _room.query.data(), _rows, D, _room.from_state[i].data());
        convolved(h * V, V, _room.value.data());
        double* path = _kept.path + h * _kept.room + _kept.lead;
        for (int64_t n = 0; n < _rows; n++) {
            const T* row = _projected + n * _stride;
            float given = to_float(row[_net.values() + _net.convolution.channels + h]);
            float step = softplus(given * float(_space.step_scale) + _net.bias[h]);
            step = std::min(std::max(step, float(_space.least_step)), float(_space.most_step));
            int64_t count = _room.path.find(_paths, n), memory = _kept.memory_of(_paths.position(n)), first = memory * _kept.step;
            double before = _kept.memory_path[memory][h];
            double decay = _room.path.sum(count, path, before) + double(_net.decay[h] * step);
            path[own + n] = decay;
            const float *score = _room.score.data() + n * in_tiles(_behind), *value = _room.value.data() + n * V;
            float *weights = _room.weights.data(), *o = _room.sums.data(), *to = u + (own + n) * V;
            for (int64_t j = first; j < count; j++) {
                int64_t at = _room.path.place[j];
                weights[j] = exponential(float(decay - path[at])) * score[at];
            }
            weigh_rows(u, V, _room.path.place.data() + first, weights + first, weights + first, count - first, o, o + V);
            float left = exponential(float(decay - before)), with_itself = score[own + n], skip = _space.skip[h];
            const float* of_query = _room.from_state[memory].data() + n * stride;
            float* gated = _gated + n * _net.values() + h * V;
            for (int64_t i = 0; i < V; i++) {
                to[i] = step * value[i];
                float sum = left * of_query[i] + o[i] + with_itself * to[i];
                gated[i] = (sum + skip * value[i]) * silu(to_float(row[h * V + i]) * float(_space.gate_scale));
            }
        }
    }

    const StateSpace& _space;
    const DeltaNet& _net;
    const Kept& _kept;
    const Paths& _paths;
    const T* _projected;
    int64_t _stride;
    float* _gated;
    T* _given;
    int64_t _given_stride;
    SpaceRoom& _room;
    int64_t _rows, _behind, _memories;
};

// all threads of the team call it; they have met when it returns
template <class T>
void state_space(const StateSpace& space, const Kept& kept, const Paths& paths, const T* projected, int64_t stride,
                 float* gated, T* given, int64_t given_stride, Team& team) {
    thread_local SpaceRoom room;
    SpaceHeads<T> heads(space, kept, paths, projected, stride, gated, given, given_stride, room);
    heads.keep_channels();
    team.meet();
    heads.keep_keys();
    team.meet();
    heads.run();
    team.meet();
    heads.give();
    team.meet();
}

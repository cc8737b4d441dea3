// A decoder block of the Llama or Gemma kind, and the stages of its attention: RMS norm, fused QKV, norms of Q and K,
// rotary positions, cache, attention, output projection, maybe a norm of what that gives. Between matrices float32 is
// rounded once to the model's dtype.
#pragma once

#include "attention.h"
#include "matrix.h"
#include "ranks.h"

// What a norm multiplies by, in the model's dtype, or in float32 if it is ``wide``; null: there is no norm.
extern "C" struct Gain {
    const void* at;
    int64_t wide;
};

// A mixture in the place of an MLP: for every row a router chooses ``per_row`` of ``count`` gated MLPs.
extern "C" struct Experts {
    int64_t count, per_row;
    int64_t by_sigmoid;   // whether a score is the sigmoid of a logit; or a probability among all
    int64_t normalised;   // whether weights are scores by the sum of the row's; or scores
    double least_sum;     // what weights are divided by at least
    double scale;         // of weights
    int64_t groups;         // of neighbours, of as many experts, two at least where there are several groups
    int64_t groups_of_row;  // in which a row's are: those with the most in their two best
    const float* router;  // [count, M]
    const float* router_bias;  // [count]; or null
    const float* correction;   // [count]: added to scores for the choice; or null
    const void* shared_gate;  // [M]: the logit of the shared expert's weight, or null: it has none
    const Matrix *gate_up, *down;        // of each
    Matrix shared_gate_up, shared_down;  // of the expert that every row has besides, or nothing
    Gain router_norm;     // of what the router reads; of none: it reads what experts do
    const float* weight;  // [count]: what weights are multiplied by in the end; or null

    bool has_shared() const { return shared_down.outputs; }
};

// Attention to latents: of a token the cache has a vector of ``rank`` numbers, of which all heads' K and V are made, and a
// key of ``rotated`` dims that all heads share. A head of Q has ``plain`` and ``rotated`` dims, one of V ``value``.
extern "C" struct Latents {
    Matrix latents;                // M -> rank + rotated
    Matrix queries;                // of what qkv gives, under a norm: Q; of no outputs: qkv gives Q
    const Matrix *keys, *values;   // [heads]: plain -> rank, rank -> value
    Gain query_norm, latent_norm;
    int64_t rank, plain, rotated, value;

    bool has_queries() const { return queries.outputs; }
    int64_t head() const { return plain + rotated; }
    int64_t cached() const { return rank + rotated; }
};

extern "C" struct Block {
    Matrix qkv, output, gate_up, down;  // up alone where there are no gates
    const Experts* experts;  // null: gate_up and down are an MLP's, or nothing
    Gain input_norm, q_norm, k_norm, post_norm;
    Gain attention_output_norm, mlp_output_norm;
    double scale, cap;  // of scores; 0: no cap
    int64_t window;     // 0: none
    int64_t rope;       // which rotation
    const float* sinks;  // [heads], as Heads has them; or null
    const Latents* latents;  // attention is to latents, and qkv gives Q or its latent; null: as usual
};

extern "C" struct Shape {
    int64_t model, heads, kv_heads, dim;
    int64_t mlp;      // between the two matrices of a row's MLP, or of all its experts: of the block with most
    int64_t experts;  // of the block with most; 0: there are none
    int64_t per_row;  // experts of a row, of the block with most
    double epsilon;
    int64_t activation;  // of gates and what they multiply: 0 SiLU, 1 GELU in its tanh form, 2 SwiGLU within limits,
                         // 3: squared ReLU, and there are no gates
    int64_t wide_qk_norm;  // whether norms of Q and K are of all heads together
    int64_t latent;  // numbers of a row beside Q, of the block with most; 0: none attends to latents
};

// What all threads work on. h: [rows, model]; cosines and sines: for every rotation a table [positions, rotated dims].
template <class T> struct Work {
    Shape shape;
    int64_t rows;
    T* h;
    T* qkv;  // [rows, (H + 2G) D]; of a block that attends to latents [rows, H D], Q alone
    T* attended;  // [rows, H D]
    T* active;  // rows * mlp: rows of a gate's activation · up
    T* given;   // [rows, model]: what a sub-layer gives, where that is normalised before it is added
    float* scores;  // [rows, experts]: the router's
    T* products;    // [rows * per_row + rows, model]: what experts give, the shared one last
    const T* const* cosines;
    const T* const* sines;
    const int32_t* position;  // [rows]
    std::vector<Span>* spans;
    std::vector<float>* sums;
    Team* team;
    const T* beside = nullptr;  // [rows, model]: what the attention reads before each row of h; null: nothing
    const T* entered = nullptr;  // [rows, model]: what the attention reads in place of h; null: h
    const T* fed = nullptr;  // [rows, model]: what the MLP or mixture reads in place of h; null: h
    const Pass* pass = nullptr;  // which rows are padding; null: none
    Ranks* ranks = nullptr;  // which have parts of the heads and of the MLP each; null: all is here
    T* latent = nullptr;  // rows * latent: what a block that attends to latents has beside Q

    bool is_padding(int64_t r) const { return pass && r % pass->width >= pass->live[r / pass->width]; }
};

// Which experts rows have. A pair is a row and one of its experts; pairs are in the order of experts, then of rows.
struct Routing {
    std::vector<float> weight;   // [rows, per_row], the heaviest first
    std::vector<int32_t> pair;   // the same
    std::vector<int32_t> first;  // [experts + 1]: where an expert's pairs begin
    std::vector<int32_t> row;    // [pairs]
    std::vector<float> shared;   // [rows]: the weight of the shared expert
};

// What one thread works on.
template <class T> struct Own {
    std::vector<T> normal, gathered;
    std::vector<float> sums, y, up;
    Routing routing;
    std::vector<typename Packed<T>::Input> packed;
    RoundedRows rounded;

    Rows<T> rows(const T* x, int64_t stride, int64_t count, const Matrix& matrix) {
        Rows<T> made{x, stride, count, &sums, &packed, &rounded};
        made.prepare(matrix);
        y.resize(matrix.bits ? count * Y_STRIDE : (count + RowTiles::MOST) * PANEL * MOST_PANELS);
        return made;
    }
};

template <class T> void normalise(const T* x, const Gain& gain, int64_t size, double epsilon, T* to) {
    Lanes sum = zeros();
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) sum = fused(load(x + i), load(x + i), sum);
    if (i < size) sum = fused(load(x + i, int(size - i)), load(x + i, int(size - i)), sum);
    float factor = 1.0f / std::sqrt(sum_of(sum) / float(size) + float(epsilon));
    auto by = [&](auto* of) {
        for (int64_t d = 0; d < size; d++) to[d] = rounded<T>(to_float(x[d]) * factor * to_float(of[d]));
    };
    if (gain.wide)
        by((const float*)gain.at);
    else
        by((const T*)gain.at);
}

// the norm of all rows of ``read``, or of h, each behind its row of ``beside``, which every thread makes for itself;
// returns how wide they are
template <class T>
int64_t normalise_rows(Own<T>& own, const Work<T>& work, const Gain& gain, const T* beside = nullptr,
                       const T* read = nullptr) {
    int64_t M = work.shape.model, width = beside ? 2 * M : M;
    if (!read) read = work.h;
    own.normal.resize(work.rows * width);
    for (int64_t r = 0; r < work.rows; r++) {
        T* to = own.normal.data() + r * width;
        if (beside) to = std::copy_n(beside + r * M, M, to);
        if (gain.at)
            normalise<T>(read + r * M, gain, M, work.shape.epsilon, to);
        else
            std::copy_n(read + r * M, M, to);
    }
    return width;
}

// this thread's part of the outputs, block by block: ``use(first, count, y, stride)``
template <class T, class Use> void multiply(const Matrix& matrix, const Rows<T>& rows, float* y, const Use& use) {
    multiply<T>(matrix, rows, Team::part_of(blocks_of(matrix.outputs)), y, use);
}

// to [rows, outputs], rows ``width`` apart: blocks ``part`` of the outputs
template <class T>
void write_product(const Matrix& matrix, const Rows<T>& rows, Team::Part part, T* to, int64_t width, Own<T>& own) {
    multiply<T>(matrix, rows, part, own.y.data(), [&](int64_t first, int64_t count, const float* y, int64_t stride) {
        for (int64_t r = 0; r < rows.count; r++)
            for (int64_t c = 0; c < count; c++) to[r * width + first + c] = rounded<T>(y[r * stride + c]);
    });
}

// the same of this thread's part
template <class T> void write_product(const Matrix& matrix, const Rows<T>& rows, T* to, int64_t width, Own<T>& own) {
    write_product(matrix, rows, Team::part_of(blocks_of(matrix.outputs)), to, width, own);
}

template <class T> void project_qkv(const Block& block, const Work<T>& work, Own<T>& own) {
    int64_t read = normalise_rows(own, work, block.input_norm, work.beside, work.entered);
    Rows<T> rows = own.rows(own.normal.data(), read, work.rows, block.qkv);
    write_product(block.qkv, rows, work.qkv, block.qkv.outputs, own);
}

// norms of Q and K in place, where they are of all heads together
template <class T> void normalise_all_heads(const Block& block, const Work<T>& work) {
    const Shape& s = work.shape;
    if (!s.wide_qk_norm || !block.q_norm.at) return;
    Team::Part part = Team::part_of(2 * work.rows);
    for (int64_t i = part.first; i < part.end; i++) {
        bool keys = i % 2;
        T* x = work.qkv + i / 2 * block.qkv.outputs + (keys ? s.heads * s.dim : 0);
        normalise<T>(x, keys ? block.k_norm : block.q_norm, (keys ? s.kv_heads : s.heads) * s.dim, s.epsilon, x);
    }
    work.team->meet();
}

// ``dim`` numbers, rotated, maybe in place
template <class T> void rotate_head(const T* x, T* to, const T* cosine, const T* sine, int64_t dim) {
    int64_t half = dim / 2;
    for (int64_t d = 0; d < half; d++) {
        float a = to_float(x[d]), b = to_float(x[d + half]);
        to[d] = rounded<T>(a * to_float(cosine[d]) - b * to_float(sine[d]));
        to[d + half] = rounded<T>(b * to_float(cosine[d + half]) + a * to_float(sine[d + half]));
    }
}

// norms of single heads of Q and K, and rotations, head by head in place; ``use(r, g)`` when KV head g of row r is done
template <class T, class Use> void rotate_heads(const Block& block, const Work<T>& work, const Use& use) {
    const Shape& s = work.shape;
    int64_t turned = s.heads + s.kv_heads, width = block.qkv.outputs;
    Team::Part part = Team::part_of(work.rows * turned);
    for (int64_t i = part.first; i < part.end; i++) {
        int64_t r = i / turned, head = i % turned, place = work.position[r] * s.dim;
        T* x = work.qkv + r * width + head * s.dim;
        const Gain& gain = head < s.heads ? block.q_norm : block.k_norm;
        if (gain.at && !s.wide_qk_norm) normalise<T>(x, gain, s.dim, s.epsilon, x);
        rotate_head(x, x, work.cosines[block.rope] + place, work.sines[block.rope] + place, s.dim);
        if (head >= s.heads) use(r, head - s.heads);
    }
}

// a key and its value into the cache
template <class T, class C> void put(const T* key, const T* value, int64_t dim, C* keys, C* values) {
    for (int64_t d = 0; d < dim; d++) keys[d] = rounded<C>(to_float(key[d])), values[d] = rounded<C>(to_float(value[d]));
}

// KV head g of row r, unless that is padding
template <class T> void write_cache(const Block& block, const Work<T>& work, const Cache& cache, int64_t layer,
                                    const Pass& pass, int64_t r, int64_t g) {
    const Shape& s = work.shape;
    int64_t D = s.dim, b = r / pass.width, n = r % pass.width;
    if (n >= pass.live[b]) return;
    int64_t to = layer * cache.layer_stride + pass.slot[b] * cache.slot_stride + g * cache.head_stride +
                 (pass.write_at[b] + n) * D;
    const T* k = work.qkv + r * block.qkv.outputs + (s.heads + g) * D;
    if (cache.dtype)
        put(k, k + s.kv_heads * D, D, (bf16*)cache.keys + to, (bf16*)cache.values + to);
    else
        put(k, k + s.kv_heads * D, D, (float*)cache.keys + to, (float*)cache.values + to);
}

template <class T> void attend_spans(const Attention<T, float>& attention, int64_t dim, Span* spans, float* sums) {
    attention.run(VectorSpan<T, float>(dim), spans, sums);
}

template <class T> void attend_spans(const Attention<T, bf16>& attention, int64_t dim, Span* spans, float* sums) {
#if WITH_AMX
    if (amx.load(std::memory_order_relaxed)) {
        TileShapes shapes(true, TILE_QUERIES, STEP / 2);
        return attention.run(AmxSpan<T>(dim), spans, sums);
    }
#endif
#if WITH_PAIRS
    attention.run(PairSpan<T>(dim), spans, sums);
#else
    attention.run(VectorSpan<T, bf16>(dim), spans, sums);
#endif
}

// q: [rows, H, D], rows so far apart; o: [rows, H, D]; the cache's numbers are C
template <class T, class C>
void attend_to(const Heads& heads, const Sight& sight, const T* q, int64_t q_stride, const Cache& cache, int64_t layer,
               std::vector<Span>& spans, std::vector<float>& sums, Team& team, T* o) {
    Attention<T, C> attention(heads, sight, q, q_stride, (const C*)cache.keys + layer * cache.layer_stride,
                              (const C*)cache.values + layer * cache.layer_stride, cache);
    attend_spans(attention, heads.dim, spans.data(), sums.data());
    team.meet();
    Team::Part part = Team::part_of(sight.pass.requests * sight.pass.width * heads.queries);
    for (int64_t i = part.first; i < part.end; i++)
        attention.join(i / heads.queries, i % heads.queries, spans.data(), sums.data(), o + i * heads.dim);
}

template <class T>
void attend(const Heads& heads, const Sight& sight, const T* q, int64_t q_stride, const Cache& cache, int64_t layer,
            std::vector<Span>& spans, std::vector<float>& sums, Team& team, T* o) {
    if constexpr (sizeof(T) == sizeof(float))
        if (!cache.dtype) return attend_to<T, float>(heads, sight, q, q_stride, cache, layer, spans, sums, team, o);
    attend_to<T, bf16>(heads, sight, q, q_stride, cache, layer, spans, sums, team, o);
}

// h += y, each rounded, as separate operations would
template <class T>
void add_rounded(T* h, int64_t h_stride, int64_t rows, int64_t count, const float* y, int64_t stride) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < count; c++) {
            T& to = h[r * h_stride + c];
            to = rounded<T>(to_float(to) + to_float(rounded<T>(y[r * stride + c])));
        }
}

// h += norm(given), row by row, each rounded
template <class T> void add_normalised(const Gain& norm, const Work<T>& work) {
    int64_t M = work.shape.model;
    Team::Part part = Team::part_of(work.rows);
    for (int64_t r = part.first; r < part.end; r++) {
        T *given = work.given + r * M, *h = work.h + r * M;
        normalise<T>(given, norm, M, work.shape.epsilon, given);
        for (int64_t i = 0; i < M; i++) h[i] = rounded<T>(to_float(h[i]) + to_float(given[i]));
    }
}

// the sum of all ranks' messages, in the order of ranks on each of them, into ``given``, or added to h without it
template <class T> void sum_messages(const Work<T>& work, T* given) {
    Ranks& ranks = *work.ranks;
    work.team->meet();
    if (!omp_get_thread_num()) ranks.exchange();
    work.team->meet();
    if (ranks.lost) return;
    Team::Part part = Team::part_of(work.rows * work.shape.model);
    for (int64_t i = part.first; i < part.end; i++) {
        T sum = ranks.message_of<T>(0, ranks.number)[i];
        for (int64_t rank = 1; rank < ranks.size; rank++)
            sum = rounded<T>(to_float(sum) + to_float(ranks.message_of<T>(rank, ranks.number)[i]));
        if (given)
            given[i] = sum;
        else
            work.h[i] = rounded<T>(to_float(work.h[i]) + to_float(sum));
    }
}

// What a sub-layer gives, added to h: the sum of all ranks' parts where there are several, under ``norm`` if there is one.
template <class T> class Giving {
  public:
    Giving(const Gain& norm, const Work<T>& work) : _norm(norm), _work(work), _given(norm.at ? work.given : nullptr) {
        _to = work.ranks ? work.ranks->template next<T>() : _given;
    }

    // some outputs of all rows
    void operator()(int64_t first, int64_t count, const float* y, int64_t stride) const {
        int64_t M = _work.shape.model;
        if (!_to) return add_rounded(_work.h + first, M, _work.rows, count, y, stride);
        for (int64_t r = 0; r < _work.rows; r++)
            for (int64_t c = 0; c < count; c++) _to[r * M + first + c] = rounded<T>(y[r * stride + c]);
    }

    // when this thread's outputs are there
    void end() const {
        if (_work.ranks) sum_messages(_work, _given);
        if (!_norm.at) return;
        _work.team->meet();
        add_normalised(_norm, _work);
    }

  private:
    const Gain& _norm;
    const Work<T>& _work;
    T *_given, *_to;
};

// h += output(attended), under ``norm`` if there is one
template <class T>
void add_output(const Matrix& output, const Gain& norm, const T* attended, const Work<T>& work, Own<T>& own) {
    Rows<T> rows = own.rows(attended, output.inputs, work.rows, output);
    Giving<T> give(norm, work);
    multiply<T>(output, rows, own.y.data(), give);
    give.end();
}

template <class T> void add_attention(const Block& block, const Work<T>& work, Own<T>& own) {
    add_output(block.output, block.attention_output_norm, work.attended, work, own);
}

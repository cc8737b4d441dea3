// What Python calls. dtype: 0 float32, 1 bfloat16. Nothing is checked here: the callers know their tensors.
#include "blocks.h"
#include "folding.h"
#include "forward.h"
#include "gated_delta.h"
#include "growing.h"
#include "laying.h"
#include "mass.h"
#include "mixed_blocks.h"
#include "product.h"
#include "speculative.h"
#include "top.h"
#include "varied_blocks.h"

namespace {

// Rows ``row`` of weights, or all up to ``count``, in floating point
template <class T> void expand_rows(const Matrix& matrix, const int64_t* row, int64_t first, int64_t count, T* to,
                                    int threads) {
    Records records = records_of(matrix);
#pragma omp parallel num_threads(threads)
    {
        Team::Part part = Team::part_of(count);
        for (int64_t i = part.first; i < part.end; i++)
            expand<T>(records, row ? row[i] : first + i, to + i * matrix.inputs);
    }
}

template <class T>
void attend_layer(const Heads& heads, const Pass& pass, const T* q, int64_t stride, const Cache& cache, int64_t layer,
                  T* o, int threads) {
    thread_local Room kept;
    Room& room = kept;
    Sight sight(pass);
    room.make(sight, heads.queries, heads.dim);
    Team team;
#pragma omp parallel num_threads(threads)
    attend<T>(heads, sight, q, stride, cache, layer, room.spans, room.sums, team, o);
}

template <class T>
void before(const Shape& shape, const Block& block, int64_t rows, T* h, const void* const* cosines,
            const void* const* sines, const int32_t* position, T* qkv, int threads) {
    Team team;
    Work<T> work{shape, rows, h, qkv, nullptr, nullptr, nullptr, nullptr, nullptr, (const T* const*)cosines,
                 (const T* const*)sines, position, nullptr, nullptr, &team};
#pragma omp parallel num_threads(threads)
    {
        thread_local Own<T> own;
        project_qkv(block, work, own);
        team.meet();
        normalise_all_heads(block, work);
        rotate_heads(block, work, [](int64_t, int64_t) {});
    }
}

template <class T>
void after(const Shape& shape, const Block& block, int64_t rows, T* h, const T* a, int threads) {
    thread_local Buffers<T> buffers;
    Team team;
    Work<T> work = work_of<T>(shape, rows, h, nullptr, nullptr, nullptr, buffers, team);
#pragma omp parallel num_threads(threads)
    {
        thread_local Own<T> own;
        Team::Part part = Team::part_of(rows * shape.model);
        bool normed = block.attention_output_norm.at;
        for (int64_t i = part.first; i < part.end; i++)
            if (normed)
                work.given[i] = a[i];
            else
                h[i] = rounded<T>(to_float(h[i]) + to_float(a[i]));
        team.meet();
        if (normed) add_normalised(block.attention_output_norm, work), team.meet();
        add_feed_forward(block, work, own);
    }
}

// ``use`` of a number as rows have them, and of one as the cache has
template <class Use> void in_types(int dtype, const Cache& cache, const Use& use) {
    if (dtype)
        use(bf16(), bf16());
    else if (cache.dtype)
        use(float(), bf16());
    else
        use(float(), float());
}

}  // namespace

extern "C" {

// how often a thread that waits for others looks for them before it sleeps
void spec_wait(int turns) { spins.store(turns, std::memory_order_relaxed); }

// whether products use AMX's tiles
int spec_uses_amx() { return amx.load(std::memory_order_relaxed); }

// Products use AMX's tiles from now on if they are ``wanted``, the compiler knew them and the system lends them; returns
// whether they do.
int spec_amx(int wanted) {
    amx.store(wanted && ask_for_amx(), std::memory_order_relaxed);
    return spec_uses_amx();
}

// y [rows, O] = x Wᵀ + b, rows of x ``stride`` elements apart
void spec_product(int dtype, const Matrix* matrix, const void* x, int64_t stride, int64_t rows, void* y, int threads) {
    if (dtype)
        product<bf16>(*matrix, (const bf16*)x, stride, rows, (bf16*)y, threads);
    else
        product<float>(*matrix, (const float*)x, stride, rows, (float*)y, threads);
}

// ``count`` matrices [outputs, steps] of dwords, to panels
void spec_lay_in_panels(const void* from, int64_t count, int64_t outputs, int64_t steps, void* to, int threads) {
    lay_in_panels((const char*)from, count, outputs, steps, (uint32_t*)to, threads);
}

// Rows [rows, steps] of dwords, to panels that are there, as their outputs from ``first`` on
void spec_lay_rows(const void* from, int64_t first, int64_t rows, int64_t steps, void* panels) {
    lay_rows((const char*)from, first, rows, steps, (uint32_t*)panels);
}

// Codes of ``bits`` [outputs, bytes], scales and offsets (or null) [outputs, scales of a row], to records
void spec_lay_side_by_side(int64_t bits, const void* codes, const void* scale, const void* offset, int64_t outputs,
                           int64_t groups, void* to, int threads) {
    Records records{bits, offset != nullptr, groups, blocks_of(outputs), (const char*)to, nullptr};
    lay_side_by_side(records, (const char*)codes, (const uint16_t*)scale, (const uint16_t*)offset, outputs, threads);
}

// to [blocks, groups]: which of a matrix's records is that of a block and a group
void spec_places_of_records(int64_t groups, int64_t blocks, int64_t* to) {
    // of any form: where a record lies among the others hangs on none
    Records records{8, false, groups, blocks, (const char*)to, nullptr};
    for (int64_t b = 0; b < blocks; b++)
        each_record(records, b, [&](const char* record, int64_t) { *to++ = (record - records.first) / records.size(); });
}

// to [count, I]: weights of the quantised rows that ``row`` names, or of those from ``first`` on if it is null
void spec_expand(int dtype, const Matrix* matrix, const int64_t* row, int64_t first, int64_t count, void* to,
                 int threads) {
    if (dtype)
        expand_rows<bf16>(*matrix, row, first, count, (bf16*)to, threads);
    else
        expand_rows<float>(*matrix, row, first, count, (float*)to, threads);
}

// to [rows, size]: the RMS norm of each row of x
void spec_norm(int dtype, const void* x, int64_t rows, int64_t size, const Gain* gain, double epsilon, void* to,
               int threads) {
    for (int64_t r = 0; r < rows; r++)
        if (dtype)
            normalise<bf16>((const bf16*)x + r * size, *gain, size, epsilon, (bf16*)to + r * size);
        else
            normalise<float>((const float*)x + r * size, *gain, size, epsilon, (float*)to + r * size);
}

// logprob and place [rows, most] of the ``most`` largest of each row of logits [rows, columns], rows ``stride`` elements
// apart: at most TOP_STEP, and no more than there are
void spec_top(int dtype, const void* logits, int64_t stride, int64_t rows, int64_t columns, int64_t most,
              float* logprob, int64_t* place, int threads) {
    if (dtype)
        top_log_probabilities<bf16>((const bf16*)logits, stride, rows, columns, most, logprob, place, threads);
    else
        top_log_probabilities<float>((const float*)logits, stride, rows, columns, most, logprob, place, threads);
}

// o [rows, H, D]: attention of a pass over one layer's cache; rows of q ``stride`` elements apart
void spec_attention(int dtype, int64_t heads, int64_t kv_heads, int64_t dim, double scale, double cap, int64_t window,
                    const float* sinks, const Pass* pass, const Cache* cache, int64_t layer, const void* q, int64_t stride, void* o,
                    int threads) {
    Heads of{heads, kv_heads, dim, float(scale), float(cap), window, sinks};
    if (dtype)
        attend_layer<bf16>(of, *pass, (const bf16*)q, stride, *cache, layer, (bf16*)o, threads);
    else
        attend_layer<float>(of, *pass, (const float*)q, stride, *cache, layer, (float*)o, threads);
}

// Attention of a pass of one request by the ends of its committed keys, as speculative.h says; the cache is of one layer
// and slot, its numbers float32 beside rows in float32, or bfloat16
void spec_attend_to_ends(int dtype, const Heads* heads, const Pass* pass, const Cache* cache, const Ends* ends,
                         const void* q, int64_t stride, void* o, int threads) {
    in_types(dtype, *cache, [&](auto row, auto kept) {
        using T = decltype(row);
        attend_to_ends<T, decltype(kept)>(*heads, *pass, *ends, (const T*)q, stride, *cache, (T*)o, threads);
    });
}

// the rest of it: o by all keys, and how far it is from the prediction
void spec_attend_between(int dtype, const Heads* heads, const Pass* pass, const Cache* cache, const Ends* ends,
                         const void* q, int64_t stride, void* o, float* difference, float* norm, int threads) {
    in_types(dtype, *cache, [&](auto row, auto kept) {
        using T = decltype(row);
        attend_between<T, decltype(kept)>(*heads, *pass, *ends, (const T*)q, stride, *cache, (T*)o, difference, norm,
                                          threads);
    });
}

// ``count`` blocks from cache layer ``first`` on, h [rows, model] in place; ``beside`` [rows, model], or null;
// cosines and sines: of every rotation a table [positions, D], in which row r is at ``position`` [rows];
// ``left``: for each block where what leaves it is written, or null; null: for none
void spec_blocks(int dtype, const Shape* shape, const Block* blocks_of, int64_t first, int64_t count, const Pass* pass,
                 const Cache* cache, void* h, const void* beside, const void* const* cosines,
                 const void* const* sines, const int32_t* position, void* const* left, int threads) {
    if (dtype)
        blocks<bf16>(*shape, blocks_of, first, count, *pass, *cache, (bf16*)h, (const bf16*)beside, cosines, sines,
                     position, threads, nullptr, left);
    else
        blocks<float>(*shape, blocks_of, first, count, *pass, *cache, (float*)h, (const float*)beside, cosines, sines,
                      position, threads, nullptr, left);
}

// the same of blocks of which some carry a state, as mixed_blocks.h says; nothing is read beside h
void spec_mixed_blocks(int dtype, const Shape* shape, const MixedBlock* of, int64_t count, const Pass* pass,
                       const Cache* cache, int64_t layer, const Kept* kept, void* h, const void* const* cosines,
                       const void* const* sines, const int32_t* position, void* const* left, Ranks* ranks,
                       int threads) {
    if (dtype)
        mixed_blocks<bf16>(*shape, of, count, *pass, *cache, layer, kept, (bf16*)h, cosines, sines, position, left,
                           ranks, threads);
    else
        mixed_blocks<float>(*shape, of, count, *pass, *cache, layer, kept, (float*)h, cosines, sines, position, left,
                            ranks, threads);
}

// the same of blocks whose heads are of different shapes, as varied_blocks.h says
void spec_varied_blocks(int dtype, const Shape* shape, const VariedBlock* of, int64_t count, const Pass* pass,
                        const VariedPass* more, void* h, const void* const* cosines, const void* const* sines,
                        const int32_t* position, void* const* left, int threads) {
    if (dtype)
        varied_blocks<bf16>(*shape, of, count, *pass, *more, (bf16*)h, cosines, sines, position, left, threads);
    else
        varied_blocks<float>(*shape, of, count, *pass, *more, (float*)h, cosines, sines, position, left, threads);
}

// a whole pass, as forward.h says, of these ranks or, where null, of this process alone; whether it was made
int spec_forward(int dtype, const Model* model, const Pass* pass, const Cache* cache, const int32_t* token,
                  const void* const* cosines, const void* const* sines, void* h, void* const* left,
                  const Scored* scored, Ranks* ranks, int threads) {
    if (dtype)
        return forward<bf16>(*model, *pass, *cache, token, cosines, sines, (bf16*)h, left, *scored, ranks, threads);
    return forward<float>(*model, *pass, *cache, token, cosines, sines, (float*)h, left, *scored, ranks, threads);
}

// what tokens are drawn from, and drawing, as mass.h says
double spec_mass_of_logits(int dtype, const Mass* mass, const void* logits, const int64_t* token, int64_t count,
                           const Shaping* shaping, int threads) {
    if (dtype) return mass_of_logits<bf16>(*mass, {(const bf16*)logits, token, count, mass->tokens}, *shaping, threads);
    return mass_of_logits<float>(*mass, {(const float*)logits, token, count, mass->tokens}, *shaping, threads);
}

double spec_mass_of_probabilities(const Mass* mass, const float* given) { return mass_of_probabilities(*mass, given); }

double spec_mass_beyond(const Mass* beyond, const Mass* p, double p_sum, const Mass* q, double q_sum, int threads) {
    return mass_beyond(*beyond, *p, p_sum, *q, q_sum, threads);
}

double spec_mass_without(const Mass* mass, int64_t token) { return mass_without(*mass, token); }

int64_t spec_draw(const Mass* mass, double uniform) { return drawn(*mass, uniform); }

// given [N, H V]: what one request's rows [N, X] get of a gated delta net, as gated_delta.h says; they are written to
// what is kept of it
void spec_gated_delta(int dtype, const DeltaNet* net, const Kept* kept, const NewRows* rows, const void* projected,
                      int64_t stride, void* given, int threads) {
    Paths paths(*rows);
    int64_t apart = net->values();
#pragma omp parallel num_threads(threads)
    if (dtype)
        gated_delta<bf16>(*net, *kept, paths, (const bf16*)projected, stride, (bf16*)given, apart);
    else
        gated_delta<float>(*net, *kept, paths, (const float*)projected, stride, (float*)given, apart);
}

// to [H, V, D] and to_path [H]: a state behind ``count`` more rows, as folding.h says
void spec_fold(const DeltaNet* net, const Kept* kept, const float* from, const double* from_path, int64_t first,
               int64_t count, float* to, double* to_path, int threads) {
#pragma omp parallel num_threads(threads)
    fold(*net, *kept, from, from_path, first, count, to, to_path);
}

// the rows behind the first ``count`` move up
void spec_drop_rows(int dtype, const DeltaNet* net, const Kept* kept, int64_t count, int64_t reach, int threads) {
#pragma omp parallel num_threads(threads)
    if (dtype)
        drop_rows<bf16>(*net, *kept, count, reach);
    else
        drop_rows<float>(*net, *kept, count, reach);
}

// given [N, Y]: the same of a state space, as state_space.h says
void spec_state_space(int dtype, const StateSpace* space, const Kept* kept, const NewRows* rows, const void* projected,
                      int64_t stride, void* given, int threads) {
    Paths paths(*rows);
    int64_t apart = space->net.values();
    std::vector<float> room(rows->count * apart);
    Team team;
#pragma omp parallel num_threads(threads)
    if (dtype)
        state_space<bf16>(*space, *kept, paths, (const bf16*)projected, stride, room.data(), (bf16*)given, apart, team);
    else
        state_space<float>(*space, *kept, paths, (const float*)projected, stride, room.data(), (float*)given, apart,
                           team);
}

// given [N, M]: the same of a short convolution, as convolution.h says
void spec_short_convolution(int dtype, const Convolution* by, const Kept* kept, const NewRows* rows,
                            const void* projected, int64_t stride, void* given, int threads) {
    Paths paths(*rows);
    int64_t apart = by->channels;
#pragma omp parallel num_threads(threads)
    if (dtype)
        short_convolution<bf16>(*by, *kept, paths, (const bf16*)projected, stride, (bf16*)given, apart);
    else
        short_convolution<float>(*by, *kept, paths, (const float*)projected, stride, (float*)given, apart);
}

// a token tree of the most probable paths, or a drawn chain, behind what is committed, as growing.h says
void spec_grow(int dtype, const DraftModel* model, const Growing* growing, const Cache* cache, int threads) {
    if (dtype)
        grow<bf16>(*model, *growing, *cache, threads);
    else
        grow<float>(*model, *growing, *cache, threads);
}

// qkv [rows, (H + 2G) D] of one block, Q and K normalised and rotated to ``position`` [rows]
void spec_before(int dtype, const Shape* shape, const Block* block, int64_t rows, void* h, const void* const* cosines,
                 const void* const* sines, const int32_t* position, void* qkv, int threads) {
    if (dtype)
        before<bf16>(*shape, *block, rows, (bf16*)h, cosines, sines, position, (bf16*)qkv, threads);
    else
        before<float>(*shape, *block, rows, (float*)h, cosines, sines, position, (float*)qkv, threads);
}

// h [rows, model] in place: the attention output a is added, then the MLP
void spec_after(int dtype, const Shape* shape, const Block* block, int64_t rows, void* h, const void* a, int threads) {
    if (dtype)
        after<bf16>(*shape, *block, rows, (bf16*)h, (const bf16*)a, threads);
    else
        after<float>(*shape, *block, rows, (float*)h, (const float*)a, threads);
}
}

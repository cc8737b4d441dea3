// Intel's AMX: eight tiles of up to 16 rows of 64 bytes, and products of two of them that are added to a third.
//
// A system lends a process the room to keep tiles only if it is asked. Nothing is done with them before that.
#pragma once

#include <atomic>

#include "lanes.h"

#if WITH_AVX512 && defined(__linux__) && defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__) && \
    defined(__AVX512BF16__) && defined(__AVX512VBMI__) && defined(__AVX512VNNI__)
#define WITH_AMX 1
#include <sys/syscall.h>
#include <unistd.h>
#else
#define WITH_AMX 0
#endif

// Whether products use tiles; changed between calls only. Static: another library of these sources has its own.
static std::atomic<bool> amx{false};

// Rows in tiles of equally many, at most 16. Tiles may have more rows than there are: those behind the last.
struct RowTiles {
    static constexpr int64_t MOST = 16;
    int64_t count, rows;

    explicit RowTiles(int64_t of) : count((of + MOST - 1) / MOST), rows(count ? (of + count - 1) / count : 0) {}
    int64_t all() const { return count * rows; }
};

#if WITH_AMX

constexpr int TILE_BYTES = 64;  // of a tile's row

// whether the system lets this process use tiles
inline bool ask_for_amx() {
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

// The shapes of this thread's tiles, as long as it lives: 0 to 3 are sums, 4 and 5 rows of ``depth`` times four bytes,
// 6 and 7 weights. Other libraries shape them for themselves, so nothing may be left from one product to the next.
class TileShapes {
  public:
    TileShapes(bool used, int64_t rows, int depth) : _used(used && rows > 0) {
        if (!_used) return;
        struct {
            uint8_t palette = 1, unused[15] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } shapes;
        static_assert(sizeof shapes == 64, "as the processor reads it");
        for (int tile = 0; tile < 8; tile++) {
            shapes.bytes[tile] = uint16_t(tile == 4 || tile == 5 ? 4 * depth : TILE_BYTES);
            shapes.rows[tile] = uint8_t(tile < 6 ? rows : depth);
        }
        asm volatile("ldtilecfg %0" ::"m"(shapes));
    }
    ~TileShapes() {
        if (_used) asm volatile("tilerelease");
    }
    TileShapes(const TileShapes&) = delete;
    TileShapes& operator=(const TileShapes&) = delete;

  private:
    bool _used;
};

// Not the compiler's intrinsics: g++ 12 does not know that those read memory.
template <int TILE> inline void load_tile(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE> inline void store_tile(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE> inline void zero_tile() { asm volatile("tilezero %%tmm%c0" ::"i"(TILE)); }
// sums of products of bytes with signs, exactly
template <int SUM, int ROWS, int WEIGHTS> inline void add_bytes() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(ROWS), "i"(WEIGHTS));
}
template <int SUM, int ROWS, int WEIGHTS> inline void add_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(ROWS), "i"(WEIGHTS));
}

#else

inline bool ask_for_amx() { return false; }

struct TileShapes {
    TileShapes(bool, int64_t, int) {}
    ~TileShapes() {}
};

#endif

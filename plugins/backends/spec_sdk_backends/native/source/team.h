// The threads of one call: they meet by spinning, however torch's threads wait between calls.
#pragma once

#include <omp.h>
#include <sched.h>

#include <atomic>
#include <cstdint>

class Team {
  public:
    // wait until all threads of the call are here
    void meet() {
        int size = omp_get_num_threads();
        if (size == 1) return;
        int round = _round.load(std::memory_order_relaxed);
        if (_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
            _arrived.store(0, std::memory_order_relaxed);
            _round.store(round + 1, std::memory_order_release);
            return;
        }
        for (int turn = 0; _round.load(std::memory_order_acquire) == round; turn++) {
            // a thread that others keep from its core must get it back
            if (turn < SPINS)
                pause();
            else
                sched_yield();
        }
    }

    struct Part {
        int64_t first, end;
    };

    // this thread's share of ``count`` things
    static Part part_of(int64_t count) {
        int64_t thread = omp_get_thread_num(), size = omp_get_num_threads();
        return {count * thread / size, count * (thread + 1) / size};
    }

  private:
    static constexpr int SPINS = 20000;

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    alignas(64) std::atomic<int> _arrived{0};
    alignas(64) std::atomic<int> _round{0};
};

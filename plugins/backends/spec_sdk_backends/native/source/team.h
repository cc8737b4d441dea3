// The threads of one call: one that waits for the others looks for them for a while, then sleeps.
#pragma once

#include <omp.h>
#include <sched.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <atomic>
#include <climits>
#include <cstdint>

// how often a waiting thread looks before it sleeps
inline std::atomic<int> spins{20000};
constexpr int AWAKE_SPINS = 1000;  // threads that look less often sleep when a call begins

class Team {
  public:
    // wait until all threads of the call are here
    void meet() {
        int size = omp_get_num_threads();
        if (size == 1) return;
        int round = _round.load(std::memory_order_relaxed);
        if (_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
            _arrived.store(0, std::memory_order_relaxed);
            // in one order with what a sleeper does: either it is seen here, or it sees the new round
            _round.store(round + 1);
            if (_sleepers.load()) wake();
            return;
        }
        for (int turn = spins.load(std::memory_order_relaxed); turn > 0; turn--) {
            if (_round.load(std::memory_order_acquire) != round) return;
            pause();
        }
        _sleepers.fetch_add(1);
        while (_round.load() == round) sleep(round);
        _sleepers.fetch_sub(1);
    }

    struct Part {
        int64_t first, end;
    };

    // this thread's share of ``count`` things
    static Part part_of(int64_t count) {
        int64_t thread = omp_get_thread_num(), size = omp_get_num_threads();
        return {count * thread / size, count * (thread + 1) / size};
    }

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

  private:
#if defined(__linux__)
    static_assert(sizeof(std::atomic<int>) == sizeof(int), "a futex is an int");

    void sleep(int round) { syscall(SYS_futex, &_round, FUTEX_WAIT_PRIVATE, round, nullptr, nullptr, 0); }

    void wake() { syscall(SYS_futex, &_round, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }
#else
    void sleep(int) { sched_yield(); }

    void wake() {}
#endif

    alignas(64) std::atomic<int> _arrived{0};
    alignas(64) std::atomic<int> _round{0};
    alignas(64) std::atomic<int> _sleepers{0};
};

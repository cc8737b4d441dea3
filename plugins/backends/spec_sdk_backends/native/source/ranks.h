// What several processes of one machine have parts of, exchanged through memory that they share: one writes its message
// and then its number, and who has read that number may read the message. As shared_memory.py does, with which messages
// may go by turns.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#include "team.h"

constexpr int LOOKS = 20000;       // of one who waits, before it lets others run in between
constexpr double AWAKE_S = 0.02;   // how long it waits before it sleeps in between
constexpr double NAP_S = 0.0001;

struct Ranks {
    int64_t rank, size;
    int64_t* number_of;  // of every rank, ``line`` of them apart: that of its last message
    char* messages;      // [2, size, capacity]
    int64_t line, capacity;
    int64_t number;              // of this rank's last message
    double look_s;               // how often one who waits looks whether the others are there
    int (*look)(double waited);  // seconds; not 0: they will not come
    int64_t lost;                // they will not

    template <class T> const T* message_of(int64_t rank, int64_t number) const {
        return (const T*)(messages + (number % 2 * size + rank) * capacity);
    }

    // where this rank's next message is written
    template <class T> T* next() const { return (T*)message_of<T>(rank, number + 1); }

    // send what was written, and wait for the others' messages; one thread alone
    void exchange() {
        number++;
        __atomic_store_n(number_of + rank * line, number, __ATOMIC_RELEASE);
        for (int64_t other = 0; other < size && !lost; other++) wait_for(other);
    }

  private:
    bool has_sent(int64_t other) const {
        return __atomic_load_n(number_of + other * line, __ATOMIC_ACQUIRE) >= number;
    }

    void wait_for(int64_t other) {
        for (int turn = 0; turn < LOOKS; turn++) {
            if (has_sent(other)) return;
            Team::pause();
        }
        using Clock = std::chrono::steady_clock;
        auto waited = [begin = Clock::now()] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
        for (double look_at = look_s; !has_sent(other);) {
            double now = waited();
            if (now < AWAKE_S) {
                std::this_thread::yield();
                continue;
            }
            std::this_thread::sleep_for(std::chrono::duration<double>(NAP_S));
            if (now < look_at) continue;
            if (look(now)) {
                lost = 1;
                return;
            }
            look_at = now + look_s;
        }
    }
};

// Numbers as tensors store them, and the functions of single numbers that a block needs.
#pragma once

#include <cstdint>
#include <cstring>

struct bf16 {
    uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(int8_t x) { return x; }

inline float to_float(bf16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T> T rounded(float x);

template <> inline float rounded<float>(float x) { return x; }

// to nearest, ties to even; NaN stays NaN
template <> inline bf16 rounded<bf16>(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    uint32_t nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    return {uint16_t(x != x ? 0x7FC0 : nearest)};
}

inline float half_to_float(uint16_t half) {
    uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 1023;
    uint32_t bits;
    if (exponent == 31) {
        bits = sign | 0x7F800000 | fraction << 13;
    } else if (exponent != 0) {
        bits = sign | (exponent + 112) << 23 | fraction << 13;
    } else {
        // subnormal: fraction * 2^-24
        float value = float(fraction) * 5.9604644775390625e-8f;
        std::memcpy(&bits, &value, sizeof bits);
        bits |= sign;
    }
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// e^x within 2 units in the last place; 0 below -87, where the result would be subnormal. Written without branches, so
// that loops over it are vectorised.
inline float exponential(float x) {
    float clamped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
    // adding and subtracting 1.5 * 2^23 rounds to a whole number
    float turns = clamped * 1.44269504f + 12582912.0f;
    uint32_t bits;
    std::memcpy(&bits, &turns, sizeof bits);
    float whole = turns - 12582912.0f;
    float rest = clamped - whole * 0.693359375f;
    rest = rest + whole * 2.12194440e-4f;
    float sum = 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    uint32_t power_bits = (bits + 127u) << 23;
    float power;
    std::memcpy(&power, &power_bits, sizeof power);
    float result = sum * power;
    return x < -87.0f ? 0.0f : result;
}

// c tanh(x / c), as 1 - 2 / (e^2x/c + 1)
inline float capped(float x, float c) { return c * (1 - 2 / (exponential(2 * x / c) + 1)); }

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

inline float silu(float x) { return x / (1.0f + exponential(-x)); }

// of a gate and what it multiplies, both within limits
inline float clamped_swiglu(float gate, float up) {
    constexpr float LIMIT = 7.0f, GAIN = 1.702f;
    if (gate > LIMIT) gate = LIMIT;
    up = up > LIMIT ? LIMIT : up < -LIMIT ? -LIMIT : up;
    return gate / (1.0f + exponential(-GAIN * gate)) * (up + 1.0f);
}

// x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), as x / (1 + e^-2u)
inline float gelu_tanh(float x) { return x / (1.0f + exponential(-1.5957691f * x * (1.0f + 0.044715f * x * x))); }

// How dense weights lie in panels of 16 outputs.
//
// A panel lies step by step, [steps][16 outputs][DEPTH inputs]: 64 bytes a step. Inputs and outputs that fill up the last
// step and panel are zeros.
#pragma once

#include <algorithm>
#include <type_traits>

#include "lanes.h"

constexpr int PANEL = 16;
constexpr int MOST_PANELS = 4;           // that are multiplied at once
constexpr int STEP_BYTES = 64;
constexpr int PARTS = PANEL / LANES;     // vectors of sums for a row and a panel
constexpr int CHUNK = 512;               // steps of a panel that all rows go through before the next ones
template <class T> constexpr int DEPTH = 4 / int(sizeof(T));

inline int64_t panels_of(int64_t outputs) { return (outputs + PANEL - 1) / PANEL; }
template <class T> int64_t steps_of(int64_t inputs) { return (inputs + DEPTH<T> - 1) / DEPTH<T>; }

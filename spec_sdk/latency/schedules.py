"""ALSpec's three scenarios (§3.3, Fig. 4) as the time of one token, with any number of device groups.

All times are microseconds. A layer is its attention, then the rest of it (f, ``per_layer``). Attention takes a = SFD_S;
after p = SFD_R another group has the prediction and may do the rest meanwhile.

**Implemented** (Scenario 3, §4.2) is a schedule of two groups that meet at every attention: a hit takes max(a, p + f).
That is :func:`spec_sdk.latency.model.speculative_us`. **Pipelined** is what Scenarios 1 and 2 ask for, and nobody has
built: a group that has a prediction goes on into the next layer before the last one is verified, while the group that
attends is busy for a. With m groups a hit then takes max(p + f, (a + f)/m) in the long run:

- Scenario 3: a ≤ p + f. Attention is the faster part, and two groups are enough in either schedule.
- Scenario 1: attention is the slower part, and there are groups enough that none is waited for.
- Scenario 2: attention is the slower part, and predictions wait for a free group.

A miss is found when attention is done: all work on what followed is lost, all groups are free, and the layer's rest is
done on exact attention. It costs a + f, as without speculation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from spec_sdk.latency.model import NEGLIGIBLE, StepTimes


def groups_needed(times: StepTimes) -> int:
    """Device groups with which no prediction waits for a free one: ⌈(a + f)/(p + f)⌉, at least 2."""
    busy, between = times.sender + times.per_layer, times.receiver + times.per_layer
    return 2 if between <= 0 else max(2, math.ceil(busy / between - NEGLIGIBLE))


def scenario(times: StepTimes, groups: int) -> int:
    """Which of the paper's scenarios it is: 1, 2 or 3."""
    if times.sender <= (times.receiver + times.per_layer) * (1 + NEGLIGIBLE):
        return 3
    return 1 if groups >= groups_needed(times) else 2


def pipelined_us(times: StepTimes, layers: int, hit_rate: float, groups: int) -> float:
    """The mean time of a token on ``groups`` device groups, pipelined, where every prediction hits independently with
    ``hit_rate``. Raises ValueError for fewer than two groups.

    A miss leaves nothing under way, so a token is a chain of runs of hits, each ended by a miss or the last layer: the
    mean over all places of the misses is a recursion over the layers, and is exact.
    """
    if groups < 2:
        raise ValueError(f"{groups} group: a prediction needs another one to go on with it")
    starts = _starts(times, layers, groups)
    missed = times.sender + times.per_layer
    # of the layers from i on; behind the last one nothing is left
    rest = [0.0] * (layers + 1)
    for i in range(layers - 1, -1, -1):
        left = layers - i
        mean, probability = 0.0, 1.0
        for hits in range(left):
            mean += probability * (1 - hit_rate) * (starts[hits] + missed + rest[i + hits + 1])
            probability *= hit_rate
        # the last token is certain once its last attention is verified
        verified = starts[left - 1] + times.sender
        rest[i] = mean + probability * max(starts[left], verified)
    return times.fixed + rest[0]


def _starts(times: StepTimes, layers: int, groups: int) -> Sequence[float]:
    """When attention of the layers 0 … ``layers`` of a run of hits begins, all groups being free at the first.

    The groups attend in turn, and who attended in layer j + 1 − m is who goes on from layer j's prediction.
    """
    starts = [0.0]
    for j in range(layers):
        free = starts[j + 1 - groups] + times.sender if j + 1 >= groups else 0.0
        starts.append(max(starts[j] + times.receiver, free) + times.per_layer)
    return starts

"""What an event tells of a cycle."""

from __future__ import annotations

from spec_sdk.advice.cycles import Cycle, cycles_of


def test_an_event_becomes_a_cycle() -> None:
    event = {"event": "cycle", "prefix": 7, "budget": 3, "tree_nodes": 5, "accepted_ranks": [2], "level_sizes": [2, 2]}
    event |= {"tokens": [4, 9], "draft_s": 1.0, "verify_s": 2.0, "recover_s": 0.5}
    (found,) = cycles_of([{"event": "prefill"}, event])
    assert found == Cycle(7, 3, 5, (2,), (2, 2), 2, 1.0, 2.5)
    assert (found.drafted, found.seconds) == (2, 3.5)

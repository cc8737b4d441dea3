"""What a stop string cuts off a step is counted nowhere: not as accepted, not for a drafter's part, not as forced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spec_sdk import Engine
from spec_sdk.api.cut_cycle import cut_cycle
from tests.api.conftest import OVERRIDES

FREELY = ("policy=fixed", "sampling.repetition_penalty=1.0")
"""An answer that repeats itself, and drafts of the same length at every step."""


def cycle(taken: int = 0, accepted: int = 0, added: int = 0, ending: int = 0) -> dict[str, Any]:
    """One whose tokens are numbered: forced ones, the tree's accepted drafted and added ones, the bonus token, and
    forced ones with which the answer ends.
    """
    count = taken + accepted + added + 1 + ending
    event = {
        "event": "cycle",
        "tokens": [*range(count)],
        "drafted": accepted + 1,
        "accepted": accepted,
        "level_sizes": [2] * (accepted + 1),
        "accepted_ranks": [1, 2, 1, 1][:accepted],
        # the root, the drafter's own, and what was added or taken
        "tree_nodes": 1 + 2 * (accepted + 1) + (added + 1) + taken,
        "logprobs": [(token, -1.0, []) for token in range(count)],
        "parts": {"m/a": (4, accepted), "m/b": (3, min(1, accepted))},
        "accepted_parts": [["m/a", "m/b"], ["m/a"], ["m/a"], ["m/a"]][:accepted],
    }
    constraint = {"seconds": 0.1, "pruned": 1, "taken": taken + ending, "added": added + 1, "added_accepted": added}
    return event | ({"constraint": constraint} if taken or added or ending else {})


def test_a_step_that_is_kept_whole_is_left_as_it_is() -> None:
    event = cycle(taken=1, accepted=2)
    assert cut_cycle(event, 4) is event


@pytest.mark.parametrize(
    ("kept", "accepted", "of_parts"), [(1, 1, (1, 1)), (2, 2, (2, 1)), (3, 3, (3, 1)), (4, 3, (3, 1))]
)
def test_drafted_tokens(kept: int, accepted: int, of_parts: tuple[int, int]) -> None:
    event = cycle(accepted=3)
    cut = cut_cycle(event, kept)
    assert cut["tokens"] == [*range(kept)] and len(cut["logprobs"]) == kept
    assert cut["accepted"] == len(cut["accepted_ranks"]) == len(cut["accepted_parts"]) == accepted
    assert [tuple(count) for count in cut["parts"].values()] == [(4, of_parts[0]), (3, of_parts[1])]
    # what was drafted was drafted
    assert (cut["drafted"], cut["tree_nodes"]) == (event["drafted"], event["tree_nodes"])
    assert "constraint" not in cut


@pytest.mark.parametrize(
    ("kept", "taken", "accepted", "added"),
    [(1, 1, 0, 0), (2, 2, 0, 0), (3, 2, 1, 0), (5, 2, 3, 0), (6, 2, 3, 1), (7, 2, 3, 1), (8, 3, 3, 1), (9, 4, 3, 1)],
)
def test_forced_tokens(kept: int, taken: int, accepted: int, added: int) -> None:
    cut = cut_cycle(cycle(taken=2, accepted=3, added=1, ending=2), kept)
    told = cut["constraint"]
    assert (told["taken"], cut["accepted"], told["added_accepted"]) == (taken, accepted, added)
    assert (told["pruned"], told["added"]) == (1, 2)


def test_parts_of_an_answer_have_accepted_what_the_answer_has(checkpoint: Path) -> None:
    engine = Engine.from_pipeline("mixed", target=checkpoint, overrides=[*OVERRIDES, *FREELY])
    letters = {token: 9.0 for token in engine.tokenizer.encode("abc")}
    asked: dict[str, Any] = {"max_new_tokens": 48, "logit_bias": letters}
    [whole] = engine.generate("abcabcabc", **asked)
    cut = 0
    for end in range(1, len(whole.text)):
        stop = whole.text[max(0, end - 6) : end]
        [answer] = engine.generate("abcabcabc", stop=stop, **asked)
        told = answer.metrics
        assert sum(part["accepted"] for part in told.get("parts", {}).values()) == told["accepted"]
        cut += told["accepted"] > 0 and told["accepted"] + told["steps"] > told["new_tokens"]
    assert cut

"""What is told of a cycle: an event for each request that had a part in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

from spec_sdk.engine.time_shares import TimeShares
from spec_sdk.engine.turn import Turn


@dataclass(frozen=True)
class StageSeconds:
    """What the stages of a cycle took, all requests together."""

    draft: float
    score: float
    verdict: float
    recover: float


def cycle_events(
    turns: Sequence[Turn], seconds: StageSeconds, time_shares: TimeShares, reads: int
) -> Iterator[dict[str, Any]]:
    """The event of each turn. A stage's seconds are divided so that those of requests add up to what it took: by rows,
    but for the target's pass. ``reads``: how often the host waited for the device.
    """
    rows, started_s = sum(turn.size for turn in turns), sum(turn.start_s for turn in turns)
    drafted = sum(turn.size for turn in turns if turn.budget.depth)
    scored = time_shares.divided(seconds.score, [turn.size for turn in turns])
    for turn, scored_s in zip(turns, scored, strict=True):
        state, size, tree, path = turn.active.state, turn.size, turn.drafted, turn.drafted_path
        share = size / rows
        draft_share = (size if turn.budget.depth else 0) / drafted if drafted else share
        report = turn.attention
        yield {
            "event": "cycle",
            "step": state.step,
            "prefix": turn.prefix,
            "budget": turn.budget.depth,
            # the start of one is no time of those beside it
            "draft_s": turn.start_s + max(0.0, seconds.draft - started_s) * draft_share,
            "verify_s": scored_s + seconds.verdict * share,
            "verdict_s": seconds.verdict * share,
            "recover_s": seconds.recover * share,
            "tree_nodes": size,
            "drafted": tree.depth,
            "accepted": len(path) - 1,
            "level_sizes": turn.level_ranks.sizes,
            "accepted_ranks": turn.level_ranks.along(path),
            "tokens": turn.emitted,
            "host_reads": reads,
            "attention": None if report is None else report.event(),
            **({"parts": parts, "accepted_parts": turn.accepted_parts} if (parts := turn.parts) else {}),
            **({} if state.constraint is None else {"constraint": turn.told_of_constraint()}),
            **({} if turn.logprobs is None else {"logprobs": [astuple(told) for told in turn.logprobs]}),
            **({} if turn.trace is None else {"trace": asdict(turn.trace)}),
        }

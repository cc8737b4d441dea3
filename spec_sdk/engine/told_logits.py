"""What requests are told of the target's own logits: log-probabilities of their tokens, and traces of their trees.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from spec_sdk.engine.step_trace import Traced, read_traces
from spec_sdk.engine.token_logprobs import Asked, read_logprobs
from spec_sdk.engine.turn import Active, Turn

SCORED_CHUNK = 256
"""Tokens of a prompt whose logits are in memory together."""
OwnLogits = Mapping[int, torch.Tensor]
"""The target's by slot, [N, V]."""


def own_logits(turns: Sequence[Turn]) -> OwnLogits:
    """Those of requests that are to be told of them: copies, as what follows may write to the logits."""
    return {turn.active.slot: turn.scores.logits_NV.clone() for turn in turns if turn.active.asks_for_logits}


def tell_logprobs(turns: Sequence[Turn], own: OwnLogits) -> None:
    """Give these turns the log-probabilities of what they emit."""
    asked = [Asked(own[turn.active.slot][turn.rows], turn.emitted, turn.active.state.logprobs or 0) for turn in turns]
    for turn, logprobs in zip(turns, read_logprobs(asked) if asked else (), strict=True):
        turn.logprobs = logprobs


def tell_prompt_logprobs(active: Active, following: Sequence[int], logits_NV: torch.Tensor) -> None:
    """Give a request the log-probabilities of N more tokens of its prompt, which follow the rows of these logits."""
    [told] = read_logprobs([Asked(logits_NV, following, active.state.prompt_logprobs or 0)])
    active.prompt_logprobs += told


def tell_traces(turns: Sequence[Turn], own: OwnLogits) -> None:
    """Give these turns what their requests are told of the trees."""
    asked = [Traced(t.scored, t.scored_verdict, own[t.active.slot], len(t.emitted)) for t in turns]
    for turn, trace in zip(turns, read_traces(asked) if asked else (), strict=True):
        turn.trace = trace

"""Decisions on several trees with one read: what each still needs of the device is queued first, then read together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from spec_sdk.ops.draws import DrawnTree
from spec_sdk.ops.host_reads import BegunRead, read
from spec_sdk.ops.rows import Decision, Rows, Uniforms

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class ScoredTree:
    """What a rule of acceptance is given: a drawn tree, its distributions, and where its random numbers come from."""

    tree: DrawnTree
    rows: Rows
    uniforms: Uniforms


@dataclass(frozen=True)
class PendingDecision:
    """A decision whose work on the device is queued.

    ``tensors``: what is to be read of it, wherever that lies, or is being read. ``decide``: the decision from those
    tensors in host memory; raises what the rule raises.
    """

    tensors: Sequence[torch.Tensor | BegunRead]
    decide: Callable[[Sequence[torch.Tensor]], Decision]

    @staticmethod
    def begun(begin: Callable[[], PendingDecision]) -> PendingDecision:
        """What ``begin`` returns; or one that raises what ``begin`` raised, when its turn comes."""
        begun = attempt(begin)
        return PendingDecision.failed(begun) if isinstance(begun, Exception) else begun

    @staticmethod
    def failed(error: Exception) -> PendingDecision:
        def decide(host: Sequence[torch.Tensor]) -> Decision:
            raise error

        return PendingDecision((), decide)


def read_decisions(pending: Sequence[PendingDecision]) -> list[Decision | Exception]:
    """All of them with one read of the device; an exception in the place of each that failed."""
    distinct = {id(tensor): tensor for decision in pending for tensor in decision.tensors}
    host = dict(zip(distinct, read(*distinct.values()), strict=True)) if distinct else {}
    return [attempt(decision.decide, [host[id(tensor)] for tensor in decision.tensors]) for decision in pending]


def attempt(call: Callable[..., Answer], *arguments: object) -> Answer | Exception:
    """What the call returns, or the exception that it raises: a request's fault is not its neighbours'."""
    try:
        return call(*arguments)
    except Exception as error:
        return error

"""How blocks run on TT-NN: what block runners declare, carried out on a pass.

Legend: R rows of the pass, M model dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.model.block_runner import AttentionReport, BlockRunner
from spec_sdk_backends.ttnn.attention_speculation import attention_speculative
from spec_sdk_backends.ttnn.forward import TtnnPass
from spec_sdk_backends.ttnn.operations import DeviceTensor

Reports = Sequence[AttentionReport | None]
Run = Callable[[TtnnPass, DeviceTensor], tuple[DeviceTensor, Reports]]
"""Hidden states [R, M] that enter block 0 → those that leave the last block, and what was measured of every request."""


def run_of(runner: BlockRunner, layers: int) -> Run:
    """What carries out ``runner`` on a model of so many layers. Raises UserError, by name, if nothing does."""
    declaration = runner.declaration()
    name = declaration["name"]
    if name not in RUNNERS:
        raise UserError(f"runner '{name}': backend ttnn cannot execute it{did_you_mean(name, list(RUNNERS))}")
    return RUNNERS[name](declaration, layers)


def sequential(declaration: Mapping[str, Any], layers: int) -> Run:
    """Block after block."""
    return grouped([[layer] for layer in range(layers)])


def layer_parallel(declaration: Mapping[str, Any], layers: int) -> Run:
    """The attention sub-layers of a group all on the hidden state that enters the group."""
    return grouped(declaration["groups"])


def layer_skip(declaration: Mapping[str, Any], layers: int) -> Run:
    """Only some blocks, in order; what would enter another goes on as it is."""
    kept = frozenset(declaration["layers"])

    def run(work: TtnnPass, h_RM: DeviceTensor) -> tuple[DeviceTensor, Reports]:
        for layer in range(layers):
            if layer in kept:
                a_RM = work.model.project(layer, work.attend(layer, work.queries(layer, h_RM)))
                h_RM = work.model.post_attention(layer, h_RM, a_RM)
            work.record(layer + 1, h_RM)
        return h_RM, [None] * len(work.bands)

    return run


def grouped(groups: Sequence[Sequence[int]]) -> Run:
    """Group after group, see :func:`layer_parallel`."""

    def run(work: TtnnPass, h_RM: DeviceTensor) -> tuple[DeviceTensor, Reports]:
        for group in groups:
            attended = [work.attend(layer, work.queries(layer, h_RM)) for layer in group]
            for layer, o_RHE in zip(group, attended, strict=True):
                h_RM = work.model.post_attention(layer, h_RM, work.model.project(layer, o_RHE))
                work.record(layer + 1, h_RM)
        return h_RM, [None] * len(work.bands)

    return run


RUNNERS: dict[str, Callable[[Mapping[str, Any], int], Run]] = {
    "sequential": sequential,
    "layer_parallel": layer_parallel,
    "layer_skip": layer_skip,
    "attention_speculative": attention_speculative,
}
"""By the name that a runner declares."""

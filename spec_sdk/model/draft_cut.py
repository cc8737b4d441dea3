"""Draft models cut out of the target: a subset of its layers, with its embedding and head.

Which layers to keep is a measurement (benchmarks/cut_draft.py finds them); named results stand here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spec_sdk.errors import UserError, did_you_mean

NAMED_CUTS: dict[str, tuple[int, ...]] = {
    "smollm2-135m-26": (0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 27, 28, 29),
    "smollm2-135m-24": (0, 1, 2, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 27, 28, 29),
    "smollm2-135m-22": (0, 1, 2, 7, 8, 9, 10, 11, 13, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 27, 28, 29),
    "smollm2-135m-20": (0, 1, 2, 8, 9, 10, 11, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 27, 28, 29),
}
"""Measured cuts by name. Share of positions at which the cut's first choice is SmolLM2-135M-Instruct's (640 tokens of
answers to 10 Spec-Bench prompts, bfloat16): 0.69 with 26 of the 30 layers, 0.61 with 24, 0.57 with 22, 0.48 with 20."""

DEFAULT_CUT = {"SmolLM2-135M-Instruct": "smollm2-135m-24"}
"""Which named cut ``auto`` means, by target."""


def resolve_cut(
    layers: str | Sequence[int], target_name: str, target_layers: int, needed: Collection[int] = ()
) -> list[int]:
    """The layers to keep, in order, of a target with ``target_layers`` layers.

    ``layers`` is an explicit list, the name of a measured cut, or ``auto``: the measured cut of this target if there is
    one, else two of every three layers, the first and the last always kept, and those that are ``needed``: others
    attend to their K and V. Raises UserError for anything else.
    """
    if layers == "auto":
        layers = DEFAULT_CUT.get(target_name, "two_thirds")
    if layers == "two_thirds":
        return [i for i in range(target_layers) if i % 3 != 2 or i == target_layers - 1 or i in needed]
    if isinstance(layers, str):
        if layers not in NAMED_CUTS:
            raise UserError(
                f"model.draft_layers: unknown cut {layers!r}{did_you_mean(layers, [*NAMED_CUTS, 'auto', 'two_thirds'])}"
            )
        layers = NAMED_CUTS[layers]
    chosen = list(layers)
    if not chosen or chosen != sorted(set(chosen)) or not 0 <= chosen[0] <= chosen[-1] < target_layers:
        raise UserError(
            f"model.draft_layers: {chosen} must be increasing layers between 0 and {target_layers - 1} of {target_name}"
        )
    return chosen

"""Whether a checkpoint can have as many layers and experts as it says, before anything is made for each of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.files import shortened
from spec_sdk.model.weight_table import Shape

LAYERS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "block_count")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "expert_count")
"""In config.json, and behind the architecture's name in GGUF files."""
PLAUSIBLE = 1000
"""So many layers are not refused here: a head's config.json may have copied its target's."""


def check_counts(values: Mapping[str, Any], shapes: Mapping[str, Shape], where: str) -> None:
    """Raise UserError for more layers than ``shapes`` has tensors, or more experts in them than it has numbers.

    Values of other types are left to those who read them.
    """
    numbers = sum(math.prod(shape) for shape in shapes.values())
    for section in (values, *(value for value in values.values() if isinstance(value, Mapping))):
        layers = list(_counts(section, LAYERS))
        for key, count in layers:
            if count > max(len(shapes), PLAUSIBLE):
                raise UserError(f"{where}: {key} is {shortened(str(count))}, and the files hold {len(shapes)} tensors")
        most = max((count for _, count in layers), default=1)
        for key, count in _counts(section, EXPERTS):
            if count * most > max(numbers, PLAUSIBLE):
                raise UserError(
                    f"{where}: {key} is {shortened(str(count))} in {most} layers, and the files hold {numbers} numbers"
                )


def _counts(values: Mapping[str, Any], keys: Sequence[str]) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        if str(key).rpartition(".")[2] in keys and isinstance(value, int | float) and not isinstance(value, bool):
            yield str(key), value

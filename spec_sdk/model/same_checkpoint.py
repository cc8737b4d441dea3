"""Whether the processes of a run have the same checkpoint: a path may be another disk on another machine.

What is compared is what the model is made of, and not its files, which may be divided otherwise.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import Checkpoint
from spec_sdk.ranks import Ranks


def check_same_checkpoint(checkpoint: Checkpoint, ranks: Ranks) -> None:
    """Raise UserError on a rank whose checkpoint is another model than the leader's: by its configuration, and by name,
    shape, type and some numbers of every tensor. The leader may call it alone.
    """
    if ranks.size == 1:
        return
    own = facts_of(checkpoint)
    leaders = json.loads(ranks.told_by_leader(f"checkpoint {checkpoint.reference}", lambda: json.dumps(own)))
    for key in {**own, **leaders}:
        here, there = own.get(key), leaders.get(key)
        if here != there:
            differs = f"{key} is {here or 'missing'} here and {there or 'missing'} there"
            raise UserError(
                f"process {ranks.rank} of {ranks.size} has another checkpoint at {checkpoint.reference} than the "
                f"leader: {differs}"
            )


def facts_of(checkpoint: Checkpoint) -> Mapping[str, str]:
    """What tells a model from another one: its configuration, field by field, and then its tensors."""
    fields, shapes = dataclasses.fields(checkpoint.config), checkpoint.shapes()
    config = {field.name: repr(getattr(checkpoint.config, field.name)) for field in fields}
    return {**config, **{name: _digest(checkpoint, name, shapes[name]) for name in sorted(shapes)}}


def _digest(checkpoint: Checkpoint, name: str, shape: Sequence[int]) -> str:
    """Of the first, the middle and the last row: another training changes some of them, and few bytes are read."""
    digest = hashlib.sha256(str(list(shape)).encode())
    for row in sorted({0, shape[0] // 2, shape[0] - 1}):
        part = checkpoint.part(name, 0, row, row + 1)
        digest.update(
            str(part.dtype).encode()
            + part.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()[:12]

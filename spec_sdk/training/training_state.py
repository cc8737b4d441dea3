"""Where a training stands, in one file that is whole or not there: weights, optimiser, random numbers, curve."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from spec_sdk.errors import UserError, message_of
from spec_sdk.training.sample_shards import save_whole

STATE = "state.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class Progress:
    """``step``: steps done, from which the batches to come follow. ``curve``: evaluations so far, as plain data."""

    step: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)


def save_state(
    directory: Path,
    identity: Mapping[str, Any],
    progress: Progress,
    parameters: Sequence[tuple[str, nn.Parameter]],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Keep a training of this ``identity``: what its steps follow from, as plain data. Raises OSError."""
    tensors = {"torch_random": torch.get_rng_state()}
    for name, parameter in parameters:
        tensors[f"weight.{name}"] = parameter.detach()
        for moment in _MOMENTS:
            tensors[f"{moment}.{name}"] = optimizer.state[parameter][moment]
    about = {"identity": dict(identity), "step": progress.step, "curve": progress.curve}
    directory.mkdir(parents=True, exist_ok=True)
    save_whole(directory / STATE, tensors, {"training": json.dumps(about)})


def restore_state(
    directory: Path,
    identity: Mapping[str, Any],
    parameters: Sequence[tuple[str, nn.Parameter]],
    optimizer: torch.optim.Optimizer,
) -> Progress:
    """Put a kept training back, to the bit; a new one if nothing was kept.

    Raises UserError for one of another identity, naming what differs, and for a damaged file.
    """
    path = directory / STATE
    if not path.is_file():
        return Progress()
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["training"])
            _check_same(about["identity"], json.loads(json.dumps(dict(identity))), path)
            torch.set_rng_state(file.get_tensor("torch_random"))
            with torch.no_grad():
                for name, parameter in parameters:
                    parameter.copy_(file.get_tensor(f"weight.{name}"))
                    kept = {moment: file.get_tensor(f"{moment}.{name}").to(parameter.device) for moment in _MOMENTS}
                    optimizer.state[parameter] = {"step": torch.tensor(float(about["step"])), **kept}
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
        raise UserError(f"{path}: is damaged ({message_of(error)[:120]}); remove it to begin anew") from error
    return Progress(about["step"], about["curve"])


def _check_same(found: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    for key in {**wanted, **found}:
        if found.get(key) != wanted.get(key):
            raise UserError(
                f"task.{key}: the training kept in {path} was begun with {found.get(key)!r}, this run has "
                f"{wanted.get(key)!r}; use what it was begun with, or another task.work"
            )

"""State spaces as config.json and GGUF files tell of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import StateSpaces
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_reader import GGUFFile


def read_state_spaces(fields: Fields, layers: Sequence[int], inner: int) -> StateSpaces:
    """Those of these layers, by the keys ``mamba_…``. ``inner``: the width of all heads together.

    Raises UserError for heads that do not make that up, and for what is not computed.
    """
    heads, groups = fields.size("mamba_n_heads", 128), fields.size("mamba_n_groups", 1)
    head_dim = inner // heads if fields.get("mamba_d_head") in (None, "auto") else fields.size("mamba_d_head")
    if heads * head_dim != inner or heads % groups:
        raise UserError(
            f"{fields.where}: {heads} heads of {head_dim} in {groups} groups do not make up a state space of {inner}"
        )
    if fields.flag("mamba_proj_bias", False):
        raise UserError(f"{fields.where}: biases of state spaces' projections (mamba_proj_bias) are not supported")
    return StateSpaces(
        tuple(layers),
        tokens=fields.size("mamba_d_conv", 4),
        groups=groups,
        heads=heads,
        state_dim=fields.size("mamba_d_state", 256),
        head_dim=head_dim,
        convolution_bias=fields.flag("mamba_conv_bias", True),
        step_limit=_step_limit(fields),
    )


def _step_limit(fields: Fields) -> tuple[float, float]:
    limit = fields.get("time_step_limit") or (0.0, float("inf"))
    # as transformers spells it where JSON has no word for it
    listed = limit if isinstance(limit, list | tuple) else []
    ends = [float("inf") if end == {"__float__": "Infinity"} else end for end in listed]
    if len(ends) != 2 or not all(type(end) in (int, float) for end in ends):
        raise UserError(f"{fields.where}: time_step_limit is {limit!r}, not two numbers")
    return float(ends[0]), float(ends[1])


def gguf_state_spaces(gguf: GGUFFile, architecture: str) -> dict[str, Any]:
    """What config.json would say of those of a GGUF file. Raises UserError for a file that lacks a size."""
    meta = Fields(gguf.metadata, gguf.where)

    def size(name: str) -> int:
        return meta.size(f"{architecture}.ssm.{name}")

    heads = size("time_step_rank")
    return {
        "mamba_n_heads": heads,
        "mamba_n_groups": size("group_count"),
        "mamba_d_state": size("state_size"),
        "mamba_d_head": size("inner_size") // heads,
        "mamba_d_conv": size("conv_kernel"),
        "mamba_conv_bias": any(name.endswith("ssm_conv1d.bias") for name in gguf.tensors),
    }

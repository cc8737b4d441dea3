"""What the kernels are given of a block's MLP or mixture of experts.

Legend: E experts, A experts of a row, M model dim.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from spec_sdk.ops.feed_forward import Activation, FeedForward, GatedMLP
from spec_sdk.ops.linear import Projection
from spec_sdk_backends.native.panels import OUTPUTS
from spec_sdk_backends.native.products import NativeProjection
from spec_sdk_backends.native.quantized import NativeQuantizedProjection
from spec_sdk_backends.native.structures import Experts, Matrix, in_a_row


def is_native(part: Projection) -> bool:
    """Whether the kernels know how the weights of a linear layer lie."""
    return isinstance(part, NativeProjection | NativeQuantizedProjection)


def matrix_of(part: Projection) -> Matrix:
    """A linear layer for the kernels, which know it (:func:`is_native`)."""
    assert isinstance(part, NativeProjection | NativeQuantizedProjection)
    return part.matrix


def unknown_feed_forward(part: FeedForward, dtype: torch.dtype) -> str | None:
    """What of it the native kernels do not run beside rows in ``dtype``; None if they run it."""
    mlps = mlps_of(part)
    if not all(is_native(projection) for mlp in mlps for projection in mlp.projections):
        return "linear layers of another kind"
    if len({mlp.activation for mlp in mlps}) > 1:
        return "experts of different activations"
    for mlp in mlps:
        if isinstance(mlp.gate_up, NativeProjection) and mlp.down.inputs % OUTPUTS:
            return f"an MLP of {mlp.down.inputs} dims, which are not whole panels of {OUTPUTS}"
    if isinstance(part, GatedMLP):
        return None
    if part.router_EM.dtype != torch.float32 or (
        part.shared_gate_1M is not None and part.shared_gate_1M.dtype != dtype
    ):
        return "a router in another dtype"
    return None


def activation_of(part: FeedForward) -> Activation:
    """That of all its MLPs."""
    return mlps_of(part)[0].activation


def mlps_of(part: FeedForward) -> Sequence[GatedMLP]:
    """An MLP, or those of a mixture, the shared one last."""
    if isinstance(part, GatedMLP):
        return [part]
    return part.experts if part.shared is None else [*part.experts, part.shared]


def feed_forward_sizes(part: FeedForward) -> tuple[int, int, int]:
    """The most numbers that a row has between the two matrices of its MLPs; then E and A, 0 where it is one MLP."""
    if isinstance(part, GatedMLP):
        return part.down.inputs, 0, 0
    widths = sorted((mlp.down.inputs for mlp in part.experts), reverse=True)
    shared = 0 if part.shared is None else part.shared.down.inputs
    return sum(widths[: part.per_token]) + shared, len(part.experts), part.per_token


def feed_forward_of(part: FeedForward) -> tuple[Matrix, Matrix, Any]:
    """Gate and up, and down, of an MLP; of a mixture nothing in their places, and a pointer to its :class:`Experts`.

    They are there as long as ``part`` lives.
    """
    if isinstance(part, GatedMLP):
        return matrix_of(part.gate_up), matrix_of(part.down), None
    router_EM, shared, shared_gate_1M = in_a_row(part.router_EM), part.shared, part.shared_gate_1M
    matrices = Matrix * len(part.experts)
    made = Experts(
        len(part.experts),
        part.per_token,
        part.normalized,
        router_EM.data_ptr(),
        matrices(*(matrix_of(expert.gate_up) for expert in part.experts)),
        matrices(*(matrix_of(expert.down) for expert in part.experts)),
    )
    made.tensors = [router_EM]
    if shared is not None and shared_gate_1M is not None:
        made.shared_gate_up, made.shared_down = matrix_of(shared.gate_up), matrix_of(shared.down)
        made.tensors.append(in_a_row(shared_gate_1M))
        made.shared_gate = made.tensors[-1].data_ptr()
    # what is a pointer keeps what it points to
    return Matrix(), Matrix(), ctypes.pointer(made)

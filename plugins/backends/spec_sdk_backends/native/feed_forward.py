"""What the kernels are given of a block's MLP or mixture of experts.

Legend: E experts, A experts of a row, M model dim.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from spec_sdk.ops.feed_forward import MLP, Activation, FeedForward, GatedMLP, MixtureOfExperts
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
        if isinstance(mlp, GatedMLP) and isinstance(mlp.gate_up, NativeProjection) and mlp.down.inputs % OUTPUTS:
            return f"an MLP of {mlp.down.inputs} dims, which are not whole panels of {OUTPUTS}"
    if not isinstance(part, MixtureOfExperts):
        return None
    for tensor, known in zip(_small(part), (*[torch.float32] * 3, dtype), strict=True):
        if tensor is not None and tensor.dtype != known:
            return "a router in another dtype"
    return None


def activation_of(part: FeedForward) -> Activation:
    """That of all its MLPs."""
    return mlps_of(part)[0].activation


def mlps_of(part: FeedForward) -> Sequence[MLP]:
    """An MLP, or those of a mixture, the shared one last."""
    if not isinstance(part, MixtureOfExperts):
        return [part]
    return part.experts if part.shared is None else [*part.experts, part.shared]


def feed_forward_sizes(part: FeedForward) -> tuple[int, int, int]:
    """The most numbers that a row has between the two matrices of its MLPs; then E and A, 0 where it is one MLP."""
    if not isinstance(part, MixtureOfExperts):
        return part.down.inputs, 0, 0
    widths = sorted((mlp.down.inputs for mlp in part.experts), reverse=True)
    shared = 0 if part.shared is None else part.shared.down.inputs
    per_token = part.routing.per_token
    return sum(widths[:per_token]) + shared, len(part.experts), per_token


def feed_forward_of(part: FeedForward | None) -> tuple[Matrix, Matrix, Any]:
    """Gate and up, or up alone, and down, of an MLP; of a mixture nothing in their places, and a pointer to its
    :class:`Experts`; nothing at all for None.

    They are there as long as ``part`` lives.
    """
    if part is None:
        return Matrix(), Matrix(), None
    if not isinstance(part, MixtureOfExperts):
        up, down = map(matrix_of, part.projections)
        return up, down, None
    how, matrices = part.routing, Matrix * len(part.experts)
    small = [None if tensor is None else in_a_row(tensor) for tensor in _small(part)]
    shared = [] if part.shared is None else map(matrix_of, part.shared.projections)
    made = Experts(
        len(part.experts),
        how.per_token,
        how.scored_by == "sigmoid",
        how.normalized,
        how.least_sum,
        how.scale,
        how.groups,
        how.groups_of_token,
        *(None if tensor is None else tensor.data_ptr() for tensor in small),
        *(matrices(*map(matrix_of, each)) for each in zip(*(mlp.projections for mlp in part.experts), strict=True)),
        *shared,
    )
    if part.weight_E is not None:
        small.append(weight_E := in_a_row(part.weight_E))
        made.weight = weight_E.data_ptr()
    made.tensors = small
    # what is a pointer keeps what it points to
    return Matrix(), Matrix(), ctypes.pointer(made)


def _small(part: MixtureOfExperts) -> tuple[torch.Tensor | None, ...]:
    """What a mixture has beside matrices, in the order in which the kernels are given it."""
    return part.router_EM, part.router_bias_E, part.correction_E, part.shared_gate_1M

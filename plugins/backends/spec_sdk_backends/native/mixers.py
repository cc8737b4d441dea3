"""Recurrent layers between their projections, in one native call for a request's rows.

Legend: N rows, K tokens that a convolution sees, C channels of it, H value heads, V value dim, X outputs of the input
projection, Y those of the mixer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

import torch

from spec_sdk.model.recurrent.layers import GatedDeltaNet, RecurrentMixer, ShortConvolution
from spec_sdk.model.recurrent.paths import RowPaths
from spec_sdk.model.recurrent.state import RecurrentState
from spec_sdk.model.recurrent.state_space import StateSpace
from spec_sdk.ops import Ops
from spec_sdk_backends.native import recurrent_structures as structures
from spec_sdk_backends.native.folding import NativeState
from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.recurrent_structures import Convolution, DeltaNet, Kept, NewRows
from spec_sdk_backends.native.structures import DTYPES, address


def native_mixer(mixer: RecurrentMixer) -> RecurrentMixer:
    """The same whose rows the kernels compute; itself where they do not."""
    if type(mixer) is ShortConvolution and mixer.convolution.weight_CK.dtype in DTYPES:
        return NativeShortConvolution(mixer.convolution)
    if type(mixer) is GatedDeltaNet and mixer.decay_H.dtype == torch.float32:
        return NativeDeltaNet(**{field.name: getattr(mixer, field.name) for field in fields(mixer)})
    if type(mixer) is StateSpace and mixer.decay_H.dtype == torch.float32:
        return NativeStateSpace(**{field.name: getattr(mixer, field.name) for field in fields(mixer)})
    return mixer


@dataclass(frozen=True)
class NativeShortConvolution(ShortConvolution):
    """Of rows in the dtype of its weights."""

    @cached_property
    def native(self) -> Convolution:
        """What the kernels are given of it."""
        return Convolution.of(self.convolution)

    def rows(self, projected_NX: torch.Tensor, state: RecurrentState, paths: RowPaths, ops: Ops) -> torch.Tensor:
        if not _takes(projected_NX, state) or projected_NX.dtype != self.convolution.weight_CK.dtype:
            return super().rows(projected_NX, state, paths, ops)
        return _given(library().spec_short_convolution, self, projected_NX, state, paths)


@dataclass(frozen=True)
class NativeDeltaNet(GatedDeltaNet):
    """Of rows in a dtype that the kernels know, beside a state in float32."""

    @cached_property
    def native(self) -> DeltaNet:
        """What the kernels are given of it."""
        return DeltaNet.of(self)

    def new_state(self, device: torch.device, dtype: torch.dtype) -> RecurrentState:
        made = super().new_state(device, dtype)
        return NativeState(self.native, made.lead, made.rows, made.memory)

    def rows(self, projected_NX: torch.Tensor, state: RecurrentState, paths: RowPaths, ops: Ops) -> torch.Tensor:
        if not _takes(projected_NX, state):
            return super().rows(projected_NX, state, paths, ops)
        state.look_ahead(paths.prefix, paths.last_position)
        return _given(library().spec_gated_delta, self, projected_NX, state, paths, self.key_heads)


@dataclass(frozen=True)
class NativeStateSpace(StateSpace):
    """The same."""

    @cached_property
    def native(self) -> structures.StateSpace:
        """What the kernels are given of it."""
        return structures.StateSpace.of(self)

    def new_state(self, device: torch.device, dtype: torch.dtype) -> RecurrentState:
        made = super().new_state(device, dtype)
        return NativeState(self.native.net, made.lead, made.rows, made.memory)

    def rows(self, projected_NX: torch.Tensor, state: RecurrentState, paths: RowPaths, ops: Ops) -> torch.Tensor:
        if not _takes(projected_NX, state):
            return super().rows(projected_NX, state, paths, ops)
        state.look_ahead(paths.prefix, paths.last_position)
        return _given(library().spec_state_space, self, projected_NX, state, paths)


def _given(
    kernel: Callable[..., object],
    mixer: NativeShortConvolution | NativeDeltaNet | NativeStateSpace,
    projected_NX: torch.Tensor,
    state: RecurrentState,
    paths: RowPaths,
    most_threads: int | None = None,
) -> torch.Tensor:
    """What a kernel gives the rows [N, Y]."""
    given_NY = projected_NX.new_empty((len(projected_NX), mixer.outputs))
    kept, rows, threads = Kept.of(state), NewRows.of(paths), torch.get_num_threads()
    kernel(
        DTYPES[projected_NX.dtype],
        address(mixer.native),
        address(kept),
        address(rows),
        projected_NX.data_ptr(),
        projected_NX.stride(0),
        given_NY.data_ptr(),
        threads if most_threads is None else min(threads, most_threads),
    )
    return given_NY


def _takes(projected_NX: torch.Tensor, state: RecurrentState) -> bool:
    """Whether the kernels compute these rows."""
    return (
        projected_NX.dtype in DTYPES
        and projected_NX.stride(1) == 1
        and not projected_NX.requires_grad
        and Kept.suits(state, projected_NX.dtype)
    )

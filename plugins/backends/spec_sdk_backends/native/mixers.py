"""Recurrent layers between their projections, in one native call for a request's rows.

Legend: N rows, K tokens that a convolution sees, C channels of it, H value heads, V value dim, M model dim, X outputs
of the input projection, Y those of a delta net or a state space.
"""

from __future__ import annotations

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
        given_NM = projected_NX.new_empty((len(projected_NX), self.outputs))
        kept, rows = Kept.of(state), NewRows.of(paths)
        library().spec_short_convolution(
            DTYPES[projected_NX.dtype],
            address(self.native),
            address(kept),
            address(rows),
            projected_NX.data_ptr(),
            projected_NX.stride(0),
            given_NM.data_ptr(),
            torch.get_num_threads(),
        )
        return given_NM


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
        given_NY = projected_NX.new_empty((len(projected_NX), self.outputs))
        state.look_ahead(paths.prefix, paths.last_position)
        kept, rows = Kept.of(state), NewRows.of(paths)
        library().spec_gated_delta(
            DTYPES[projected_NX.dtype],
            address(self.native),
            address(kept),
            address(rows),
            projected_NX.data_ptr(),
            projected_NX.stride(0),
            given_NY.data_ptr(),
            min(torch.get_num_threads(), self.key_heads),
        )
        return given_NY


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
        given_NY = projected_NX.new_empty((len(projected_NX), self.outputs))
        state.look_ahead(paths.prefix, paths.last_position)
        kept, rows = Kept.of(state), NewRows.of(paths)
        library().spec_state_space(
            DTYPES[projected_NX.dtype],
            address(self.native),
            address(kept),
            address(rows),
            projected_NX.data_ptr(),
            projected_NX.stride(0),
            given_NY.data_ptr(),
            torch.get_num_threads(),
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

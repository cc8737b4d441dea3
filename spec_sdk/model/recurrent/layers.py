"""The two kinds of recurrent layers, between their input and output projections.

Legend: N rows, K tokens that a convolution sees, C channels of it, G key heads, H value heads, D key dim, V value dim,
M model dim, X outputs of the input projection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from spec_sdk.model.recurrent.paths import RowPaths
from spec_sdk.model.recurrent.state import RecurrentState, state_with_memory
from spec_sdk.ops import Ops

CHUNK = 64
"""Rows of a chain that are computed together."""


class RecurrentMixer(ABC):
    """What a layer's rows get of those before them."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Width of what a row gets."""

    @abstractmethod
    def new_state(self, device: torch.device, dtype: torch.dtype) -> RecurrentState:
        """The state before a text, with room for no rows."""

    def __call__(self, projected_NX: torch.Tensor, state: RecurrentState, paths: RowPaths, ops: Ops) -> torch.Tensor:
        """What one request's rows get [N, outputs]; their own rows are written to the state."""
        if not paths.is_prompt:
            return self._settled_rows(projected_NX, state, paths, ops)
        mixed = [
            self._settled_rows(projected_NX[first : first + CHUNK], state, paths.chunk(first, end), ops)
            for first in range(0, paths.count, CHUNK)
            for end in (min(first + CHUNK, paths.count),)
        ]
        state.settle(paths.end)
        state.mark()
        return torch.cat(mixed)

    def _settled_rows(
        self, projected_NX: torch.Tensor, state: RecurrentState, paths: RowPaths, ops: Ops
    ) -> torch.Tensor:
        state.go_on(paths.prefix, paths.end)
        return self.rows(projected_NX, state, paths, ops)

    @abstractmethod
    def rows(self, projected_NX: torch.Tensor, state: RecurrentState, paths: RowPaths, ops: Ops) -> torch.Tensor:
        """The same of a tree's rows, or of a few of a chain, for which there is room."""


@dataclass(frozen=True)
class CausalConvolution:
    """A convolution of every channel over the last K tokens of a row's path. ``weight_CK``: that of the row itself is
    the last.
    """

    weight_CK: torch.Tensor
    bias_C: torch.Tensor | None = None

    @property
    def seen(self) -> int:
        """Tokens K that it sees."""
        return self.weight_CK.shape[1]

    def __call__(self, x_NC: torch.Tensor, state: RecurrentState, paths: RowPaths) -> torch.Tensor:
        """Of rows that it writes to the state, where they are the first kind."""
        state.write(0, paths.first, x_NC)
        index_NK = paths.columns_NK(self.seen) + state.index(0)
        y_NC = torch.einsum("nkc,ck->nc", state.rows[0][index_NK].to(self.weight_CK.dtype), self.weight_CK)
        return y_NC if self.bias_C is None else y_NC + self.bias_C


@dataclass(frozen=True)
class ShortConvolution(RecurrentMixer):
    """LFM2's (Liquid AI 2025, arXiv:2511.23404): y = c ⊙ conv(b ⊙ x), of an input projection to b, c and x."""

    convolution: CausalConvolution

    @property
    def outputs(self) -> int:
        return self.convolution.weight_CK.shape[0]

    def new_state(self, device: torch.device, dtype: torch.dtype) -> RecurrentState:
        lead = self.convolution.seen - 1
        return RecurrentState(lead, [torch.zeros((lead, self.outputs), device=device, dtype=dtype)])

    def rows(self, projected_NX: torch.Tensor, state: RecurrentState, paths: RowPaths, ops: Ops) -> torch.Tensor:
        b_NM, c_NM, x_NM = projected_NX.chunk(3, -1)
        return c_NM * self.convolution(b_NM * x_NM, state, paths)


@dataclass(frozen=True)
class GatedDeltaNet(RecurrentMixer):
    """Qwen 3 Next's and 3.5's (Yang et al. 2024, arXiv:2412.06464), of an input projection to q, k and v under the
    convolution, an output gate z, and what log decay and gain of a row are made of.

    ``decay_H`` is −e^A, ``bias_H`` that of its steps, ``norm_V`` the gain of the heads' norm before the gate, all in
    float32. ``tiled``: as :class:`~spec_sdk.model.config.GatedDeltaNets` has it.
    """

    convolution: CausalConvolution
    key_heads: int
    key_dim: int
    decay_H: torch.Tensor
    bias_H: torch.Tensor
    norm_V: torch.Tensor
    epsilon: float
    tiled: bool = False

    @property
    def outputs(self) -> int:
        return self.decay_H.shape[0] * self.norm_V.shape[0]

    def new_state(self, device: torch.device, dtype: torch.dtype) -> RecurrentState:
        lead, channels = self.convolution.seen - 1, self.convolution.weight_CK.shape[0]
        keys, values = (self.key_heads, self.key_dim), (len(self.decay_H), len(self.norm_V))
        return state_with_memory(lead, channels, keys, values, device, dtype, self.decay_H.dtype)

    def rows(self, projected_NX: torch.Tensor, state: RecurrentState, paths: RowPaths, ops: Ops) -> torch.Tensor:
        (N, _), H, V = projected_NX.shape, self.decay_H.shape[0], self.norm_V.shape[0]
        keys = self.key_heads * self.key_dim
        C = 2 * keys + H * V
        x_NC, z_NY, gain_NH, step_NH = projected_NX.tensor_split((C, C + H * V, C + H * V + H), -1)
        x_NC = F.silu(self.convolution(x_NC, state, paths))
        q_NY, k_NY, v_NY = x_NC.tensor_split((keys, 2 * keys), -1)
        log_decay_NH = self.decay_H * F.softplus(step_NH.to(self.bias_H.dtype) + self.bias_H)
        assert state.memory is not None
        earlier = [state.until(kind, paths.first) for kind in (1, 2, 3)]
        o_HNV, u_HNV, path_HN = ops.gated_delta(
            state.memory.state_HVD,
            state.memory.path_H,
            (earlier[0], earlier[1], earlier[2][..., 0]),
            self._heads(q_NY) * self.key_dim**-0.5,
            k_GND := self._heads(k_NY),
            self._grouped(v_NY.view(N, H, V)),
            self._grouped(torch.sigmoid(gain_NH.to(self.decay_H.dtype))[..., None])[..., 0],
            self._grouped(log_decay_NH[..., None])[..., 0],
            paths.visible_NS(state.length),
        )
        for kind, new in enumerate((k_GND, u_HNV, path_HN[..., None]), start=1):
            state.write(kind, paths.first, new)
        normed_NHV = F.rms_norm(self._in_order(o_HNV), self.norm_V.shape, self.norm_V, self.epsilon)
        gated_NY = normed_NHV.reshape(N, H * V) * F.silu(z_NY.to(normed_NHV.dtype))
        return gated_NY.to(projected_NX.dtype)

    def _heads(self, x_NY: torch.Tensor) -> torch.Tensor:
        """Heads of Q or of K, each of length one [G, N, D]."""
        x_GND = x_NY.view(len(x_NY), self.key_heads, self.key_dim).transpose(0, 1)
        return x_GND * torch.rsqrt(x_GND.square().sum(-1, keepdim=True) + 1e-6)

    def _grouped(self, x_NHV: torch.Tensor) -> torch.Tensor:
        """Value heads by the key heads that they share [H, N, V]."""
        if not self.tiled:
            return x_NHV.transpose(0, 1)
        N, H, V = x_NHV.shape
        return x_NHV.reshape(N, -1, self.key_heads, V).permute(2, 1, 0, 3).reshape(H, N, V)

    def _in_order(self, x_HNV: torch.Tensor) -> torch.Tensor:
        """The inverse of :meth:`_grouped` [N, H, V]."""
        if not self.tiled:
            return x_HNV.transpose(0, 1)
        H, N, V = x_HNV.shape
        return x_HNV.reshape(self.key_heads, -1, N, V).permute(2, 1, 0, 3).reshape(N, H, V)

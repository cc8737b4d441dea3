"""The blocks of a Llama-family model in NumPy, on the live rows of one request.

Legend: n live rows, M model dim, H query heads, G KV heads, R = H/G, D head dim, V vocabulary, S keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from spec_sdk.model.architectures import weights_of
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import TensorSource
from tests.executors.numpy_cache import Array

LAYER_ROLES = ("input_norm", "q", "k", "v", "o", "q_norm", "k_norm", "post_norm", "gate", "up", "down")


@dataclass(frozen=True)
class NumpyModel:
    """Weights by role, those of the layers a mapping for each, and the arithmetic of a block's stages."""

    config: ModelConfig
    layers: Sequence[Mapping[str, Array]]
    embedding_VM: Array
    final_norm_M: Array
    head_VM: Array

    @staticmethod
    def load(source: TensorSource) -> NumpyModel:
        """Read a checkpoint as float32."""
        assert source.config.experts is None, "a mixture of experts is not computed"
        table = weights_of(source.config)

        def read(role: str, layer: int = 0) -> Array:
            array: Array = source.tensor(table.name(role, layer)).to(torch.float32).numpy()
            return array

        roles = [role for each in LAYER_ROLES for role in (each, f"{each}_bias") if role in table]
        embedding_VM = read("embedding")
        return NumpyModel(
            source.config,
            [{role: read(role, layer) for role in roles} for layer in range(source.config.num_layers)],
            embedding_VM,
            read("final_norm"),
            read("head") if "head" in table else embedding_VM,
        )

    def subset(self, layers: Sequence[int]) -> NumpyModel:
        """The model made of only these layers; weights are shared."""
        chosen = [self.layers[i] for i in layers]
        return NumpyModel(self.config, chosen, self.embedding_VM, self.final_norm_M, self.head_VM)

    def rotation(self, position_n: npt.NDArray[np.int32]) -> tuple[Array, Array]:
        """Cosines and sines [n, 1, D]."""
        angle_nD = np.tile(np.outer(position_n.astype(np.float32), inverse_frequencies(self.config)), 2)[:, None]
        return np.cos(angle_nD), np.sin(angle_nD)

    def qkv(self, layer: int, h_nM: Array, rotation: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        """Input norm, projections, QK norm, rotation: q [n, H, D], k and v [n, G, D]."""
        w, x_nM = self.layers[layer], self._norm(h_nM, self.layers[layer]["input_norm"])
        q, k, v = (_linear(w, role, x_nM).reshape(len(h_nM), -1, self.config.head_dim) for role in "qkv")
        if self.config.qk_norm:
            q, k = self._norm(q, w["q_norm"]), self._norm(k, w["k_norm"])
        return _rotate(q, *rotation), _rotate(k, *rotation), v

    def project(self, layer: int, o_nHD: Array) -> Array:
        """Output projection of the attention sub-layer [n, M]."""
        return _linear(self.layers[layer], "o", o_nHD.reshape(len(o_nHD), -1))

    def post_attention(self, layer: int, h_nM: Array, a_nM: Array) -> Array:
        """Add the attention output, then the MLP sub-layer (SwiGLU)."""
        w, h_nM = self.layers[layer], h_nM + a_nM
        x_nM = self._norm(h_nM, w["post_norm"])
        gate = _linear(w, "gate", x_nM)
        return h_nM + _linear(w, "down", gate / (1 + np.exp(-gate)) * _linear(w, "up", x_nM))

    def logits(self, h_nM: Array) -> Array:
        """Final norm and output head [n, V]."""
        return self._norm(h_nM, self.final_norm_M) @ self.head_VM.T

    def _norm(self, x: Array, gain: Array) -> Array:
        scale = np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(self.config.rms_norm_eps))
        return x / scale * gain


def attention(q_nHD: Array, k_GSD: Array, v_GSD: Array, seen_nS: npt.NDArray[np.bool_]) -> Array:
    """Attention [n, H, D] of every row over the keys that it sees; H/G query heads share a KV head."""
    n, H, D = q_nHD.shape
    q_GRnD = q_nHD.swapaxes(0, 1).reshape(len(k_GSD), -1, n, D)
    score_GRnS = np.where(seen_nS, q_GRnD @ k_GSD[:, None].swapaxes(-1, -2) * np.float32(D**-0.5), -np.inf)
    weight_GRnS = np.exp(score_GRnS - score_GRnS.max(-1, keepdims=True))
    o_GRnD = weight_GRnS @ v_GSD[:, None] / weight_GRnS.sum(-1, keepdims=True)
    return o_GRnD.reshape(H, n, D).swapaxes(0, 1)


def inverse_frequencies(config: ModelConfig) -> Array:
    """Rotation speed of each pair of dimensions [D/2], with the checkpoint's rope scaling."""
    frequency = config.rope_theta ** -(np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim)
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "linear":
        frequency = frequency / scaling.factor
    elif scaling is not None:
        assert scaling.kind == "llama3", f"rope scaling '{scaling.kind}' is not computed"
        turns = scaling.original_max_position * frequency / (2 * math.pi)
        kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        kept = kept.clip(0, 1)
        frequency = kept * frequency + (1 - kept) * frequency / scaling.factor
    return frequency.astype(np.float32)


def _linear(weights: Mapping[str, Array], role: str, x: Array) -> Array:
    y: Array = x @ weights[role].T
    return y + weights[f"{role}_bias"] if f"{role}_bias" in weights else y


def _rotate(x_nHD: Array, cos_n1D: Array, sin_n1D: Array) -> Array:
    first, second = np.split(x_nHD, 2, axis=-1)
    return x_nHD * cos_n1D + np.concatenate((-second, first), -1) * sin_n1D

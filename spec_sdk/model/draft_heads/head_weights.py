"""A head's tensors as what it computes with: a backend's linear layers, gains, blocks, embedding and output head.

Legend: V target vocabulary, W draft vocabulary, M model dim of the head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_sdk.model.decoder import BlockWeights
from spec_sdk.model.draft_heads.draft_vocabulary import draft_tokens
from spec_sdk.model.draft_heads.head_files import HeadTensors
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.ops import Ops
from spec_sdk.ops.embedding import Embedding, QuantizedEmbedding
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.quantized import GROUP, QuantizedMatrix
from spec_sdk.ops.quantizing import quantize
from spec_sdk.ops.reduced_vocabulary import ReducedVocabularyHead

LAYER = "layers.0"
"""What the names of a head's first layer begin with."""


class HeadWeights:
    """A head's tensors on a device, as a backend's linear layers and gains. ``bits``: of the matrices of linear layers
    whose inputs are whole groups of 32: 8, 4, or None for ``dtype``. ``keeps``: whether one that is stored in so many
    bits stays as it is.
    """

    def __init__(
        self,
        tensors: HeadTensors,
        device: torch.device,
        dtype: torch.dtype,
        ops: Ops,
        bits: int | None = None,
        keeps: Callable[[int], bool] = lambda stored: True,
    ) -> None:
        self.tensors = tensors
        self.device, self.dtype = device, dtype
        self.ops, self.bits, self._keeps = ops, bits, keeps

    def read(self, name: str) -> torch.Tensor:
        """One tensor. Raises KeyError if it is not there."""
        return self.tensors.tensor(name).to(device=self.device, dtype=self.dtype)

    def read_if_any(self, name: str) -> torch.Tensor | None:
        return self.read(name) if name in self.tensors else None

    def in_few_bits(self, name: str) -> QuantizedMatrix | None:
        """A matrix that is stored in few bits and stays so, where it is stored; None for another one."""
        matrix = self.tensors.quantized(name)
        return matrix if matrix is not None and self._keeps(matrix.bits) else None

    def projection(self, *names: str) -> Projection:
        """The linear layers ``{name}.weight`` of one input, one below the other, with their biases if they have any."""
        biased = f"{names[0]}.bias" in self.tensors
        bias_O = torch.cat([self.read(f"{name}.bias") for name in names]) if biased else None
        parts = [matrix for name in names if (matrix := self.in_few_bits(f"{name}.weight")) is not None]
        if len(parts) == len(names) and (whole := QuantizedMatrix.below(parts)) is not None:
            return self.ops.quantized_projection(whole.to(self.device), bias_O)
        weight_OI = torch.cat([self.read(f"{name}.weight") for name in names])
        return self.linear(weight_OI, bias_O)

    def linear(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> Projection:
        """A linear layer of this weight."""
        if self.bits is None or weight_OI.shape[1] % GROUP:
            return self.ops.projection(weight_OI.to(self.dtype), bias_O)
        return self.ops.quantized_projection(quantize(weight_OI, self.bits), bias_O)

    def block(
        self, input_norm_M: torch.Tensor | None, layer: str = LAYER, qkv: Projection | None = None
    ) -> BlockWeights:
        """A decoder layer. ``qkv``: in the place of Q, K and V in one linear layer."""
        attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        return BlockWeights(
            input_norm_M=input_norm_M,
            qkv=qkv or self.projection(*(f"{attention}.{part}_proj" for part in "qkv")),
            q_norm_D=self.read_if_any(f"{attention}.q_norm.weight"),
            k_norm_D=self.read_if_any(f"{attention}.k_norm.weight"),
            output=self.projection(f"{attention}.o_proj"),
            post_norm_M=self.read(f"{layer}.post_attention_layernorm.weight"),
            mlp=GatedMLP(self.projection(f"{mlp}.gate_proj", f"{mlp}.up_proj"), self.projection(f"{mlp}.down_proj")),
        )

    def embedding(self, target: TargetEnds) -> Embedding:
        """The head's own, or the target's where the head has none or the same."""
        name = "embed_tokens.weight"
        if name in self.tensors and (matrix := self.in_few_bits(name)) is not None:
            return QuantizedEmbedding(matrix.to(self.device), self.dtype)
        own_VM = self.read_if_any(name)
        if own_VM is None or (type(target.embedding) is Embedding and torch.equal(own_VM, target.embedding.weight_VM)):
            return target.embedding
        return Embedding(own_VM)

    def output_head(self, target: TargetEnds) -> Projection:
        """The head's own, over the tokens that ``d2t`` names if it does, or the target's."""
        own = self.projection("lm_head") if "lm_head.weight" in self.tensors else None
        d2t_W, t2d_V = self.tensors.tensor_if_any("d2t"), self.tensors.tensor_if_any("t2d")
        if d2t_W is None:
            return own or target.output_head
        token_W = draft_tokens(d2t_W, t2d_V, target.vocabulary, self.tensors.where).to(self.device)
        if own is None:
            rows_WM = target.output_head.weight_OI.to(self.device)[token_W]
            own = self.linear(rows_WM)
        return ReducedVocabularyHead(own, token_W, target.vocabulary)

"""From a checkpoint's weights to a decoder: each is found by its role in the table of its architecture.

Legend: L layers, M model dim, V vocabulary.
"""

from __future__ import annotations

import torch

from spec_sdk.model.architectures import weights_of
from spec_sdk.model.attention_stack import AttentionStack
from spec_sdk.model.decoder import BlockWeights, Decoder, TensorSource
from spec_sdk.ops import Ops


def load_decoder(
    source: TensorSource,
    device: torch.device,
    dtype: torch.dtype,
    ops: Ops | None = None,
    embedding_VM: torch.Tensor | None = None,
) -> Decoder:
    """Read a checkpoint's weights onto ``device`` as ``dtype``, fusing QKV and gate-up; ``ops`` decides how they lie.

    An embedding that is loaded already is used in place of the checkpoint's.

    The attention weights of all layers go, tensor by tensor, into one :class:`AttentionStack`. As plain matrices no
    weight is ever held twice.
    """
    config, ops = source.config, ops or Ops()
    weights = _Weights(source, device, dtype)
    stack = AttentionStack(
        input_norm_LM=weights.stacked("input_norm"),
        qkv_projections=ops.projections(
            weights.stacked("q", "k", "v"), weights.stacked_if_any("q_bias", "k_bias", "v_bias")
        ),
        q_norm_LD=weights.stacked_if_any("q_norm"),
        k_norm_LD=weights.stacked_if_any("k_norm"),
        output_projections=ops.projections(weights.stacked("o"), weights.stacked_if_any("o_bias")),
    )
    blocks = [
        BlockWeights(
            input_norm_M=stack.input_norm_LM[i],
            qkv=stack.qkv_projections[i],
            q_norm_D=None if stack.q_norm_LD is None else stack.q_norm_LD[i],
            k_norm_D=None if stack.k_norm_LD is None else stack.k_norm_LD[i],
            output=stack.output_projections[i],
            post_norm_M=weights.read("post_norm", i),
            gate_up=ops.projection(weights.fused(i, "gate", "up"), weights.fused_if_any(i, "gate_bias", "up_bias")),
            down=ops.projection(weights.fused(i, "down"), weights.fused_if_any(i, "down_bias")),
            attention_output_norm_M=weights.read_if_any("attention_output_norm", i),
            mlp_output_norm_M=weights.read_if_any("mlp_output_norm", i),
        )
        for i in range(config.num_layers)
    ]
    if embedding_VM is None:
        embedding_VM = weights.read("embedding")
    head_VM = weights.read("head") if "head" in weights else embedding_VM
    return Decoder(config, blocks, embedding_VM, weights.read("final_norm"), ops.projection(head_VM), stack=stack)


class _Weights:
    """A checkpoint's weights by role, on the device. ``role in weights`` says whether there are any."""

    def __init__(self, source: TensorSource, device: torch.device, dtype: torch.dtype) -> None:
        self._source, self._device, self._dtype = source, device, dtype
        self._table, self._names = weights_of(source.config), source.names()

    def __contains__(self, role: str) -> bool:
        return role in self._table and self._table.name(role) in self._names

    def read(self, role: str, layer: int = 0) -> torch.Tensor:
        """One tensor."""
        return self._tensor(role, layer).to(device=self._device, dtype=self._dtype_of(role))

    def read_if_any(self, role: str, layer: int) -> torch.Tensor | None:
        """None for a model without such weights."""
        return self.read(role, layer) if role in self else None

    def fused(self, layer: int, *roles: str) -> torch.Tensor:
        """A layer's tensors of these roles, one below the other."""
        return self._fill(self._memory(roles), layer, roles)

    def stacked(self, *roles: str) -> torch.Tensor:
        """The same of all layers: [L, rows, …]."""
        layers = self._source.config.num_layers
        stack = self._memory(roles, layers)
        for layer in range(layers):
            self._fill(stack[layer], layer, roles)
        return stack

    def fused_if_any(self, layer: int, *roles: str) -> torch.Tensor | None:
        """None for a model without such weights."""
        return self.fused(layer, *roles) if roles[0] in self else None

    def stacked_if_any(self, *roles: str) -> torch.Tensor | None:
        """None for a model without such weights."""
        return self.stacked(*roles) if roles[0] in self else None

    def _tensor(self, role: str, layer: int) -> torch.Tensor:
        tensor = self._source.tensor(self._table.name(role, layer))
        return tensor.to(self._dtype_of(role)) + 1.0 if self._table.row(role).gain_minus_one else tensor

    def _dtype_of(self, role: str) -> torch.dtype:
        # in half precision, what differs from one would lose its last digits
        wide = torch.promote_types(self._dtype, torch.float32)
        return wide if self._table.row(role).gain_minus_one else self._dtype

    def _memory(self, roles: tuple[str, ...], *stack: int) -> torch.Tensor:
        shapes = [self._table.shape(role) for role in roles]
        rows = sum(shape[0] for shape in shapes)
        return torch.empty((*stack, rows, *shapes[0][1:]), device=self._device, dtype=self._dtype_of(roles[0]))

    def _fill(self, target: torch.Tensor, layer: int, roles: tuple[str, ...]) -> torch.Tensor:
        row = 0
        for role in roles:
            tensor = self._tensor(role, layer)
            target[row : row + tensor.shape[0]].copy_(tensor)
            row += tensor.shape[0]
        return target

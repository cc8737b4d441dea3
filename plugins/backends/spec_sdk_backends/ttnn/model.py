"""A model's weights on the device, and the stages of its blocks as calls of the adapter.

Legend: R rows of a pass, M model dim, H query heads, G KV heads, D head dim, E padded head dim, F MLP dim,
V vocabulary, I, O columns in and out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import weights_of
from spec_sdk.model.config import LayerKind, ModelConfig
from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.rotary_rows import as_rotated
from spec_sdk_backends.ttnn.operations import DeviceTensor, Operations, padded_head

DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class TtnnModel:
    """``layers``: weights by role, ``qkv`` fused; ``kinds``: how each layer attends. The embedding is on the host."""

    config: ModelConfig
    operations: Operations
    layers: Sequence[Mapping[str, DeviceTensor]]
    kinds: Sequence[LayerKind]
    embedding_VM: torch.Tensor
    final_norm_1M: DeviceTensor
    head_MV: DeviceTensor
    vocabulary: int

    @property
    def head_dim(self) -> int:
        """E: that of a head with its padding."""
        return padded_head(self.config.head_dim)

    def subset(self, layers: Sequence[int]) -> TtnnModel:
        """The model made of only these layers; weights are shared."""
        return replace(
            self, layers=[self.layers[layer] for layer in layers], kinds=[self.kinds[layer] for layer in layers]
        )

    def qkv(
        self, layer: int, h_RM: DeviceTensor, rotation: tuple[DeviceTensor, DeviceTensor]
    ) -> tuple[DeviceTensor, DeviceTensor, DeviceTensor]:
        """Input norm, projections, QK norm, rotation: q [R, H·E], k and v [R, G·E]."""
        w, ops, config, E = self.layers[layer], self.operations, self.config, self.head_dim
        q_end, k_end, v_end = (E * heads for heads in self._ends)
        qkv = ops.linear(self._norm(h_RM, w["input_norm"]), w["qkv"], w.get("qkv_bias"))
        v_RGE = ops.columns(qkv, k_end, v_end)
        if config.qk_norm:
            # two gains, so that queries and keys are two tensors already
            q, k = ops.columns(qkv, 0, q_end), ops.columns(qkv, q_end, k_end)
            q = ops.rms_norm(q, w["q_norm"], config.rms_norm_eps, config.head_dim, config.num_heads)
            k = ops.rms_norm(k, w["k_norm"], config.rms_norm_eps, config.head_dim, config.num_kv_heads)
            return ops.rotary(q, *rotation), ops.rotary(k, *rotation), v_RGE
        qk = ops.rotary(ops.columns(qkv, 0, k_end), *rotation)
        return ops.columns(qk, 0, q_end), ops.columns(qk, q_end, k_end), v_RGE

    def project(self, layer: int, o_RHE: DeviceTensor) -> DeviceTensor:
        """Output projection of the attention sub-layer [R, M]."""
        w = self.layers[layer]
        return self.operations.linear(o_RHE, w["o"], w.get("o_bias"))

    def post_attention(self, layer: int, h_RM: DeviceTensor, a_RM: DeviceTensor) -> DeviceTensor:
        """Add the attention output, then the MLP sub-layer (SwiGLU) [R, M]."""
        w, ops = self.layers[layer], self.operations
        h_RM = ops.add(h_RM, a_RM)
        f_RF = ops.gated(self._norm(h_RM, w["post_norm"]), w["gate"], w["up"])
        return ops.add(h_RM, ops.linear(f_RF, w["down"]))

    def logits(self, h_RM: DeviceTensor) -> DeviceTensor:
        """Final norm and output head [R, V]."""
        return self.operations.linear(self._norm(h_RM, self.final_norm_1M), self.head_MV)

    def _norm(self, x_RM: DeviceTensor, gain_1M: DeviceTensor) -> DeviceTensor:
        return self.operations.rms_norm(x_RM, gain_1M, self.config.rms_norm_eps, self.config.hidden_size)

    @property
    def _ends(self) -> tuple[int, int, int]:
        """Where queries, keys and values end, in heads."""
        H, G = self.config.num_heads, self.config.num_kv_heads
        return H, H + G, H + 2 * G


def check_model(config: ModelConfig) -> None:
    """Raise UserError, by name, for parts that the decode path lacks."""
    lacking = {
        "an encoder": config.encoder is not None,
        "a mixture of experts": config.experts is not None,
        f"{config.uncommon_blocks}": config.uncommon_blocks is not None,
        f"the activation {config.activation}": config.activation != "silu",
        "norms behind its sub-layers": config.output_norms,
        "biases in its MLPs": config.mlp_bias,
        "soft-capped attention": config.attention_softcap is not None,
        "soft-capped logits": config.logit_softcap is not None,
        "scaled embeddings": config.embedding_scale != 1.0,
        "scaled logits": config.logit_scale != 1.0,
        "scaled residuals": config.state_scale != 1.0,
    }
    if found := next((part for part, has in lacking.items() if has), None):
        raise UserError(f"model: {config.architecture} with {found}: backend ttnn has no such part; use backend=cpu")


def load_model(source: TensorSource, operations: Operations) -> TtnnModel:
    """The model of a checkpoint that :func:`check_model` has nothing against.

    Raises UserError for weights that are wanted in few bits.
    """
    kinds = [source.config.layer_kind(layer) for layer in range(source.config.num_layers)]
    return _Loading(source, operations).model(kinds)


class _Loading:
    """Reads weights as the decode path wants them: transposed, heads padded, queries, keys and values fused."""

    def __init__(self, source: TensorSource, operations: Operations) -> None:
        self._source, self._operations, self._config = source, operations, source.config
        self._table = weights_of(source.config)

    def model(self, kinds: Sequence[LayerKind]) -> TtnnModel:
        embedding_VM = self._read("embedding")
        head_VM = self._read("head") if "head" in self._table else embedding_VM
        return TtnnModel(
            config=self._config,
            operations=self._operations,
            layers=[self._layer(layer) for layer in range(self._config.num_layers)],
            kinds=kinds,
            embedding_VM=embedding_VM.to(self._operations.dtype),
            final_norm_1M=self._row(self._read("final_norm")),
            head_MV=self._columns(head_VM),
            vocabulary=len(head_VM),
        )

    def _layer(self, layer: int) -> dict[str, DeviceTensor]:
        config = self._config
        heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
        weights = {
            "input_norm": self._row(self._read("input_norm", layer)),
            "post_norm": self._row(self._read("post_norm", layer)),
            "qkv": self._columns(torch.cat([self._spread(self._read(role, layer), heads[role]) for role in heads])),
            # what padding adds to a head is 0, whatever it is multiplied with
            "o": self._columns(self._spread(self._read("o", layer).T, config.num_heads).T),
            **{role: self._columns(self._read(role, layer)) for role in ("gate", "up", "down")},
        }
        if "q_bias" in self._table:
            biases = [self._spread(self._read(f"{role}_bias", layer)[:, None], heads[role]) for role in heads]
            weights["qkv_bias"] = self._row(torch.cat(biases)[:, 0])
        if "o_bias" in self._table:
            weights["o_bias"] = self._row(self._read("o_bias", layer))
        for role in ("q_norm", "k_norm"):
            if role in self._table:
                weights[role] = self._row(self._spread(self._read(role, layer)[:, None], 1)[:, 0])
        return weights

    def _read(self, role: str, layer: int = 0) -> torch.Tensor:
        name = self._table.name(role, layer)
        if self._source.quantized(name) is not None:
            raise UserError("model.weights: backend ttnn has matrices in model.dtype only; use model.weights=dense")
        return as_rotated(role, self._source.tensor(name), self._config)

    def _row(self, x: torch.Tensor) -> DeviceTensor:
        return self._operations.to_device(x[None])

    def _columns(self, weight_OI: torch.Tensor) -> DeviceTensor:
        return self._operations.to_device(weight_OI.T.contiguous())

    def _spread(self, x_OI: torch.Tensor, heads: int) -> torch.Tensor:
        """Rows [heads·D, I] with zeros behind each half of every head, [heads·E, I]."""
        half, full = self._config.head_dim // 2, padded_head(self._config.head_dim) // 2
        spread = x_OI.new_zeros((heads * 2, full, x_OI.shape[1]))
        spread[:, :half] = x_OI.reshape(heads * 2, half, -1)
        return spread.view(heads * 2 * full, -1)

"""From a checkpoint's weights to a decoder: each is found by its role in the table of its architecture.

Legend: L layers, O outputs.
"""

from __future__ import annotations

import torch

from spec_sdk.model.architectures import weights_of
from spec_sdk.model.attention_stack import AttentionStack
from spec_sdk.model.borrowed_weights import BorrowingModel
from spec_sdk.model.config import Experts, ModelConfig
from spec_sdk.model.decoder import BlockWeights, Decoder, TensorSource
from spec_sdk.model.freed_memory import return_freed_memory
from spec_sdk.model.latent_attention import LatentDecoder
from spec_sdk.model.latent_loading import latent_parts
from spec_sdk.model.layers_of import LayersOf
from spec_sdk.model.load_whisper import load_whisper
from spec_sdk.model.recurrent.decoder import RecurrentDecoder
from spec_sdk.model.recurrent.loading import gated_qkv, recurrent_parts
from spec_sdk.model.rotary_rows import as_rotated, matrix_as_rotated
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.model.varied_decoder import VariedDecoder
from spec_sdk.model.varied_loading import WIDE, layer_input_embedding, varied_block
from spec_sdk.model.weight_table import has_experts
from spec_sdk.ops import Ops
from spec_sdk.ops.embedding import Embedding, QuantizedEmbedding
from spec_sdk.ops.feed_forward import MLP, Activation, FeedForward, GatedMLP, MixtureOfExperts, SquaredReluMLP
from spec_sdk.ops.linear import (
    JoinedProjection,
    Projection,
    ProjectionStack,
    SeparateProjections,
    SummedProjection,
)
from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk.ops.reduced_vocabulary import HeadRows, ReducedVocabularyHead, rows_of


def load_decoder(source: TensorSource, device: torch.device, dtype: torch.dtype, ops: Ops | None = None) -> Decoder:
    """Read a checkpoint's weights onto ``device`` as ``dtype``, fusing QKV and gate-up; ``ops`` decides how they lie.

    Matrices that the source has in few bits (:meth:`TensorSource.quantized`) stay so, fused ones where one form holds
    all of their parts. An embedding that the source has loaded is used as it is, and so are embedding and output head
    of a target that lends them.

    The attention weights of all layers go, tensor by tensor, into one :class:`AttentionStack`. As plain matrices no
    weight is ever held twice.
    """
    config, ops = source.config, ops or Ops()
    weights = _Weights(source, device, dtype, ops)
    if config.encoder is not None:
        return load_whisper(config, weights, weights.embedding())
    blocks, stack = _blocks(config, weights)
    lent = source if isinstance(source, BorrowingModel) else None
    loaded = source.embedding if isinstance(source, BorrowingModel | LayersOf) else None
    embedding = loaded or weights.embedding()
    if lent is not None and lent.token_R is not None:
        lent_rows = rows_of(lent.head, lent.loaded.embedding) if lent.head and lent.loaded else None
        head: Projection = weights.reduced_head(lent.token_R, embedding, lent_rows, lent.head)
    else:
        head = (lent and lent.head) or weights.head(embedding)
    if config.latent is not None:
        return LatentDecoder(config, blocks, embedding, weights.final_norm(), head)
    if config.global_heads is not None:
        inputs = layer_input_embedding(weights) if config.layer_inputs is not None else None
        return VariedDecoder(config, blocks, embedding, weights.final_norm(), head, inputs)
    if config.uncommon_blocks is not None:
        return RecurrentDecoder(config, blocks, embedding, weights.final_norm(), head)
    return Decoder(config, blocks, embedding, weights.final_norm(), head, stack=stack)


def load_blocks(source: TensorSource, device: torch.device, dtype: torch.dtype, ops: Ops) -> list[BlockWeights]:
    """The blocks of a checkpoint alone."""
    blocks, _ = _blocks(source.config, _Weights(source, device, dtype, ops))
    return blocks


def _blocks(config: ModelConfig, weights: _Weights) -> tuple[list[BlockWeights], AttentionStack | None]:
    if config.global_heads is not None:
        return [_varied(config, weights, i) for i in range(config.num_layers)], None
    if config.uncommon_blocks is not None:
        return [_unstacked(config, weights, i) for i in range(config.num_layers)], None
    stack = AttentionStack(
        input_norm_LM=weights.stacked_if_any("input_norm"),
        qkv_projections=weights.projections("q", "k", "v"),
        q_norm_LD=weights.stacked_if_any("q_norm"),
        k_norm_LD=weights.stacked_if_any("k_norm"),
        output_projections=weights.projections("o"),
    )
    blocks = []
    for i in range(config.num_layers):
        blocks.append(_block(config, weights, stack, i))
        return_freed_memory()
    return blocks, stack


def _unstacked(config: ModelConfig, weights: _Weights, i: int) -> BlockWeights:
    """A block of a model whose layers differ in more than their weights."""
    # a layer with an MLP alone has one norm, which is called as others call the one before attention
    alone = i in config.without_attention
    mixer = latents = None
    entering, leaving = list[Projection](), list[Projection]()
    if config.is_recurrent(i):
        before, mixer, behind = recurrent_parts(config, weights, i)
        entering.append(before)
        leaving.append(behind)
    if config.latent is not None:
        before, latents, behind = latent_parts(config, config.latent, weights, i)
        entering.append(before)
        leaving.append(behind)
    elif config.has_attention(i):
        gated = config.attention_gate
        entering.append(gated_qkv(config, weights, i) if gated else weights.biased_projection(i, "q", "k", "v"))
        leaving.append(weights.biased_projection(i, "o"))
    block = BlockWeights(
        input_norm_M=None if alone else weights.gain_if_any("input_norm", i, config.input_norm_scale),
        qkv=entering[0] if len(entering) == 1 else JoinedProjection(entering),
        q_norm_D=weights.read_if_any("q_norm", i),
        k_norm_D=weights.read_if_any("k_norm", i),
        output=leaving[0] if len(leaving) == 1 else SummedProjection(leaving),
        post_norm_M=weights.gain_if_any("input_norm" if alone else "post_norm", i, config.post_norm_scale),
        mlp=None if i in config.without_mlp else _feed_forward(config, weights, i),
        mixer=mixer,
        latents=latents,
        attends=config.has_attention(i),
    )
    return_freed_memory()
    return block


def _varied(config: ModelConfig, weights: _Weights, i: int) -> BlockWeights:
    """A block of a model whose layers have heads of different shapes."""
    mlp = _mlp(weights, i, WIDE if i in config.wide_mlps else "", config.activation)
    mixture = None
    if config.experts is not None and has_experts(config, i):
        mixture = _mixture(weights, config.experts, i, config.activation)
    block = varied_block(config, weights, i, mlp, mixture)
    return_freed_memory()
    return block


def _feed_forward(config: ModelConfig, weights: _Weights, i: int) -> FeedForward:
    if config.experts is not None and has_experts(config, i):
        return _mixture(weights, config.experts, i, config.activation)
    return _mlp(weights, i, "", config.activation)


def _mlp(weights: _Weights, layer: int, which: str, activation: Activation, expert: int = 0) -> MLP:
    """A layer's, or one of its experts' or the shared one, by what their roles begin with."""
    down = weights.biased_projection(layer, f"{which}down", expert=expert)
    if activation == "squared_relu":
        return SquaredReluMLP(weights.biased_projection(layer, f"{which}up", expert=expert), down)
    gate_up = weights.biased_projection(layer, f"{which}gate", f"{which}up", expert=expert)
    return GatedMLP(gate_up, down, activation)


def _block(config: ModelConfig, weights: _Weights, stack: AttentionStack, i: int) -> BlockWeights:
    return BlockWeights(
        input_norm_M=None if stack.input_norm_LM is None else stack.input_norm_LM[i],
        qkv=stack.qkv_projections[i],
        q_norm_D=None if stack.q_norm_LD is None else stack.q_norm_LD[i],
        k_norm_D=None if stack.k_norm_LD is None else stack.k_norm_LD[i],
        output=stack.output_projections[i],
        post_norm_M=weights.read_if_any("post_norm", i),
        mlp=_feed_forward(config, weights, i),
        attention_output_norm_M=weights.read_if_any("attention_output_norm", i),
        mlp_output_norm_M=weights.read_if_any("mlp_output_norm", i),
        sinks_H=weights.read("sinks", i, torch.float32) if weights.has("sinks", i) else None,
    )


def load_target_ends(source: TensorSource, name: str, device: torch.device, dtype: torch.dtype, ops: Ops) -> TargetEnds:
    """What draft heads borrow of a target that is not whole in this process, or not in torch."""
    config, weights = source.config, _Weights(source, device, dtype, ops)
    embedding = weights.embedding()
    head = weights.head(embedding)
    return TargetEnds(name, config.num_layers, head.outputs, embedding, weights.final_norm(), head, config)


def _mixture(weights: _Weights, config: Experts, layer: int, activation: Activation) -> MixtureOfExperts:
    """A layer's experts, read one after the other."""
    shared = shared_gate_1M = None
    if config.shared_intermediate_size is not None:
        shared = _mlp(weights, layer, "shared_", activation)
        shared_gate_1M = weights.read_if_any("shared_router", layer)
    return MixtureOfExperts(
        weights.read("router", layer, torch.float32),
        [_mlp(weights, layer, "expert_", activation, expert) for expert in range(config.count)],
        config.routing,
        shared,
        shared_gate_1M,
        weights.read("router_correction", layer, torch.float32).flatten() if config.corrected else None,
        weights.read("router_bias", layer, torch.float32) if config.biased else None,
        weights.read("expert_scale", layer, torch.float32) if config.beside_mlp else None,
    )


class _Weights:
    """A checkpoint's weights by role, on the device. ``role in weights`` says whether there are any."""

    def __init__(self, source: TensorSource, device: torch.device, dtype: torch.dtype, ops: Ops) -> None:
        self._source, self._device, self.dtype, self.ops = source, device, dtype, ops
        self._table, self._names = weights_of(source.config), source.names()

    def __contains__(self, role: str) -> bool:
        return self.has(role, 0)

    def has(self, role: str, layer: int) -> bool:
        """Whether this layer has such weights."""
        return role in self._table and self._table.name(role, layer) in self._names

    def read(self, role: str, layer: int = 0, dtype: torch.dtype | None = None) -> torch.Tensor:
        """One tensor, in the dtype of its role unless another is named."""
        return self._tensor(role, layer).to(device=self._device, dtype=dtype or self._dtype_of(role))

    def read_if_any(self, role: str, layer: int) -> torch.Tensor | None:
        """None for a layer without such weights."""
        return self.read(role, layer) if self.has(role, layer) else None

    def gain(self, role: str, layer: int, scale: float) -> torch.Tensor:
        """A norm's, times ``scale``: in float32 then, since rounding it would change that for all tokens."""
        if scale == 1.0:
            return self.read(role, layer)
        return self.read(role, layer, torch.promote_types(self.dtype, torch.float32)) * scale

    def gain_if_any(self, role: str, layer: int, scale: float) -> torch.Tensor | None:
        """None for a layer without such a norm."""
        return self.gain(role, layer, scale) if self.has(role, layer) else None

    def final_norm(self) -> torch.Tensor:
        """The gain before the output head, with the scale of logits in it."""
        return self.gain("final_norm", 0, self._source.config.logit_scale)

    def embedding(self, role: str = "embedding") -> Embedding:
        """What tokens look up."""
        matrix = self.quantized((role,))
        return Embedding(self.read(role)) if matrix is None else QuantizedEmbedding(matrix, self.dtype)

    def head(self, embedding: Embedding) -> Projection:
        """The output head, which may be the embedding's weights."""
        if "head" not in self:
            return embedding.tied_head(self.ops)
        matrix = self.quantized(("head",))
        return self.ops.projection(self.read("head")) if matrix is None else self.ops.quantized_projection(matrix)

    def reduced_head(
        self, token_R: torch.Tensor, embedding: Embedding, lent_rows: HeadRows | None, lent_head: Projection | None
    ) -> Projection:
        """The output head over these tokens alone, a copy of its rows.

        Those of other tokens are the embedding's where the head is, or ``lent_rows``, of whoever has the whole head:
        ``lent_head``, where it lies in memory.
        """
        role = "head" if "head" in self else "embedding"
        matrix, vocabulary = self.quantized((role,)), self._source.config.vocab_size
        if matrix is None:
            head = self.ops.projection(self.read(role)[token_R.to(self._device)])
        else:
            head = self.ops.quantized_projection(matrix.rows(token_R.to(self._device)))
        rows = lent_rows if role == "head" else embedding
        return ReducedVocabularyHead(head, token_R.to(self._device), vocabulary, rows, lent_head)

    def projection(self, layer: int, *roles: str, bias_O: torch.Tensor | None = None, expert: int = 0) -> Projection:
        """A layer's linear layers of one input, one below the other."""
        matrix = self.quantized(roles, layer, expert)
        if matrix is None:
            return self.ops.projection(self.fused(layer, *roles, expert=expert), bias_O)
        return self.ops.quantized_projection(matrix, bias_O)

    def biased_projection(self, layer: int, *roles: str, expert: int = 0) -> Projection:
        """The same with their biases, if the layer has any."""
        bias_O = self.fused_if_any(layer, *_biases(roles), expert=expert)
        return self.projection(layer, *roles, bias_O=bias_O, expert=expert)

    def projections(self, *roles: str) -> ProjectionStack:
        """The same of all layers: one stack of plain matrices, unless some of them are in few bits."""
        matrices = [self.quantized(roles, layer) for layer in range(self._source.config.num_layers)]
        if all(matrix is None for matrix in matrices):
            return self.ops.projections(self.stacked(*roles), self.stacked_if_any(*_biases(roles)))
        return SeparateProjections(
            [
                self.biased_projection(layer, *roles)
                if matrix is None
                else self.ops.quantized_projection(matrix, self.fused_if_any(layer, *_biases(roles)))
                for layer, matrix in enumerate(matrices)
            ]
        )

    def fused(self, layer: int, *roles: str, expert: int = 0) -> torch.Tensor:
        """A layer's tensors of these roles, one below the other."""
        return self._fill(self._memory(roles), layer, roles, expert)

    def stacked(self, *roles: str) -> torch.Tensor:
        """The same of all layers: [L, rows, …]."""
        layers = self._source.config.num_layers
        stack = self._memory(roles, layers)
        for layer in range(layers):
            self._fill(stack[layer], layer, roles)
        return stack

    def fused_if_any(self, layer: int, *roles: str, expert: int = 0) -> torch.Tensor | None:
        """None for a layer without such weights."""
        return self.fused(layer, *roles, expert=expert) if self.has(roles[0], layer) else None

    def stacked_if_any(self, *roles: str) -> torch.Tensor | None:
        """None for a model without such weights."""
        return self.stacked(*roles) if roles[0] in self else None

    def quantized(self, roles: tuple[str, ...], layer: int = 0, expert: int = 0) -> QuantizedMatrix | None:
        """The matrices of these roles, one below the other; None unless all of them are in few bits, and one form holds
        all of them.
        """
        parts: list[QuantizedMatrix] = []
        for role in roles:
            part = self._source.quantized(self._table.name(role, layer, expert))
            if part is None:
                return None
            parts.append(matrix_as_rotated(role, part, self._source.config))
        whole = QuantizedMatrix.below(parts)
        return None if whole is None else whole.to(self._device)

    def _tensor(self, role: str, layer: int, expert: int = 0) -> torch.Tensor:
        tensor = as_rotated(role, self._source.tensor(self._table.name(role, layer, expert)), self._source.config)
        return tensor.to(self._dtype_of(role)) + 1.0 if self._table.row(role).gain_minus_one else tensor

    def _dtype_of(self, role: str) -> torch.dtype:
        # in half precision, what differs from one would lose its last digits
        wide = torch.promote_types(self.dtype, torch.float32)
        return wide if self._table.row(role).gain_minus_one else self.dtype

    def _memory(self, roles: tuple[str, ...], *stack: int) -> torch.Tensor:
        shapes = [self._table.shape(role) for role in roles]
        rows = sum(shape[0] for shape in shapes)
        return torch.empty((*stack, rows, *shapes[0][1:]), device=self._device, dtype=self._dtype_of(roles[0]))

    def _fill(self, target: torch.Tensor, layer: int, roles: tuple[str, ...], expert: int = 0) -> torch.Tensor:
        row = 0
        for role in roles:
            tensor = self._tensor(role, layer, expert)
            target[row : row + tensor.shape[0]].copy_(tensor)
            row += tensor.shape[0]
        return target


def _biases(roles: tuple[str, ...]) -> list[str]:
    return [f"{role}_bias" for role in roles]

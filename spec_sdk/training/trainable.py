"""A draft model whose weights can be trained: the stages of the decoder that will run it, on parameters.

Legend: B rows, N positions of a row, M model dim, H query heads, G KV heads, D head dim, V vocabulary, R tokens
that can be drafted, A labelled positions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from spec_sdk.model.architectures import weights_of
from spec_sdk.model.decoder import BlockWeights, Decoder, Rotations, TensorSource
from spec_sdk.model.rotary_rows import as_stored
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.linear import Projection
from spec_sdk.training.draft_shape import DraftShape
from spec_sdk.training.learner import Learner
from spec_sdk.training.packing import PackedBatch, pack
from spec_sdk.training.samples import Sample
from spec_sdk.training.target_weights import read_weight

ENDS = ("embedding", "head")


class TrainableDraft(Learner):
    """A draft model cut out of ``target``, its weights in float32. Embedding and output head are the target's, and
    stay so.

    ``precision``: of matrix products, bfloat16 or float32. ``token_R``: the tokens that it can draft, None for all.
    """

    unrolls = False

    def __init__(
        self,
        target: TensorSource,
        shape: DraftShape,
        device: torch.device,
        precision: torch.dtype = torch.float32,
        token_R: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.config = shape.config(target.config)
        self._table, theirs = weights_of(self.config), weights_of(target.config)

        read = functools.partial(read_weight, target, theirs)
        self._roles = [role for role in self._table.roles if role not in ENDS]
        self.weights = nn.ParameterDict()
        for layer, source in enumerate(shape.layers):
            in_layer = {role: read(role, source) for role in self._roles if self._table.row(role).per_layer}
            for role, tensor in shape.cut(in_layer, target.config).items():
                self.weights[f"{role}_{layer}"] = nn.Parameter(tensor.to(device))
        self.weights["final_norm"] = nn.Parameter(read("final_norm").to(device))
        embedding_VM = read("embedding").to(device)
        head_VM = read("head").to(device) if "head" in theirs else embedding_VM
        self.token_R = token_R
        self._place_V = torch.arange(len(head_VM), device=device)
        if token_R is not None:
            token_R = token_R.to(device)
            self._place_V = torch.full_like(self._place_V, -1).index_copy_(0, token_R, self._place_V[: len(token_R)])
            head_VM = head_VM[token_R]
        self._head_RM = head_VM.to(precision)
        self._autocast = functools.partial(
            torch.autocast, device.type, torch.bfloat16, enabled=precision == torch.bfloat16
        )
        self._embedding = Embedding(embedding_VM)

    def batch(self, rows: Sequence[Sequence[Sample]], width: int) -> PackedBatch:
        """What the steps are given of these samples."""
        return pack(rows, width)

    def forward(self, batch: PackedBatch, steps: int | None = None) -> torch.Tensor:
        """States [A, M] that :meth:`logits` takes, at the labelled positions of ``batch``: of one step, whatever
        ``steps`` of a chain are asked for, since a drafted token is to a draft model as any other.
        """
        with self._autocast():
            h_BNM = self._decoder().states(batch)
        return h_BNM.flatten(0, 1)[batch.labelled_A].float()

    def targets(self, batch: PackedBatch, steps: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Of every state that :meth:`forward` returns: the labelled position that it predicts [A], and its step [A]."""
        label_A = torch.arange(batch.labels, device=batch.labelled_A.device)
        return label_A, torch.zeros_like(label_A)

    def loss_weights(self, step_R: torch.Tensor) -> torch.Tensor | None:
        """The weight in the loss of rows of these steps; None for 1."""
        return None

    def logits(self, state_AM: torch.Tensor) -> torch.Tensor:
        """[A, R] of the tokens that it can draft, in the precision of the model, scaled and soft-capped if it is."""
        logit_AR = F.linear(state_AM.to(self._head_RM.dtype), self._head_RM)
        scale, cap = self.config.logit_scale, self.config.logit_softcap
        logit_AR = logit_AR if scale == 1.0 else logit_AR * scale
        return logit_AR if cap is None else torch.tanh(logit_AR / cap) * cap

    def places(self, token: torch.Tensor) -> torch.Tensor:
        """Where these tokens stand among the R that it can draft; -1 for one that it cannot."""
        return self._place_V[token]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The trained weights under their Hugging Face names, as a checkpoint stores them."""
        for role in self._roles:
            row = self._table.row(role)
            for layer in range(self.config.num_layers) if row.per_layer else (0,):
                tensor = self.weights[f"{role}_{layer}" if row.per_layer else role].detach()
                tensor = as_stored(role, tensor, self.config)
                yield self._table.name(role, layer), tensor - 1 if row.gain_minus_one else tensor

    def end_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The target's embedding, and its output head if it is another matrix, under their names."""
        yield self._table.name("embedding"), self._embedding.weight_VM
        if "head" in self._table:
            yield self._table.name("head"), self._head_RM

    def _decoder(self) -> PackedDecoder:
        blocks = [self._block(layer) for layer in range(self.config.num_layers)]
        head = Projection(self._head_RM)
        return PackedDecoder(self.config, blocks, self._embedding, self.weights["final_norm"], head)

    def _block(self, layer: int) -> BlockWeights:
        def one(role: str) -> torch.Tensor | None:
            parameter: torch.Tensor | None = self.weights.get(f"{role}_{layer}")
            return parameter

        def projection(*roles: str) -> Projection:
            biases = [self.weights[f"{role}_bias_{layer}"] for role in roles if f"{role}_bias_{layer}" in self.weights]
            weight = [self.weights[f"{role}_{layer}"] for role in roles]
            return Projection(torch.cat(weight), torch.cat(biases) if biases else None)

        return BlockWeights(
            input_norm_M=one("input_norm"),
            qkv=projection("q", "k", "v"),
            q_norm_D=one("q_norm"),
            k_norm_D=one("k_norm"),
            output=projection("o"),
            post_norm_M=one("post_norm"),
            mlp=GatedMLP(projection("gate", "up"), projection("down"), self.config.activation),
            attention_output_norm_M=one("attention_output_norm"),
            mlp_output_norm_M=one("mlp_output_norm"),
        )


class PackedDecoder(Decoder):
    """A decoder that reads packed rows at once, without a cache."""

    def states(self, batch: PackedBatch) -> torch.Tensor:
        """What the output head is given [B, N, M]: hidden states after the final norm."""
        longest = batch.token_BN.shape[1]
        work = Rotations(self.rotations_at(batch.position_BN, longest))
        mask = functools.cache(functools.partial(packed_mask, batch.sample_BN))
        h_BNM = self.embed(batch.token_BN)
        for layer, kind in enumerate(self.kinds):
            q_BNHD, k_BNGD, v_BNGD = self.pre_attention(layer, h_BNM, work)
            o_BHND = F.scaled_dot_product_attention(
                q_BNHD.to(v_BNGD.dtype).transpose(1, 2),
                k_BNGD.to(v_BNGD.dtype).transpose(1, 2),
                v_BNGD.transpose(1, 2),
                attn_mask=mask(kind.attention.window),
                scale=kind.attention.scale,
                enable_gqa=True,
            )
            h_BNM = self.post_attention(layer, h_BNM, self.project(layer, o_BHND.transpose(1, 2)))
        return self._norm(h_BNM, self.final_norm_M)


def packed_mask(sample_BN: torch.Tensor, window: int | None) -> torch.Tensor:
    """Who sees whom [B, 1, N, N]: the earlier tokens of one's own sample, of a window's length if there is one."""
    place_N = torch.arange(sample_BN.shape[1], device=sample_BN.device)
    distance_NN = place_N[:, None] - place_N
    seen_NN = (distance_NN >= 0) & (distance_NN < (window or len(place_N)))
    same_BNN = sample_BN[:, :, None] == sample_BN[:, None]
    return (same_BNN & seen_NN)[:, None]

"""An EAGLE-3 head whose weights can be trained: the stages of the module that will run it, on parameters.

It is trained on chains that it unrolls itself: what left its layer at one step enters it at the next, as while drafting
(EAGLE-3, Li et al. 2025, §3.2: "training-time test").

Legend: T pairs, R rows of a step, S chain rows that each of them sees, M model dim, F tapped states together, G KV
heads, D head dim, V vocabulary, W tokens that can be drafted, A labelled positions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import BlockWeights
from spec_sdk.model.draft_heads.eagle3 import Eagle3Head, Eagle3Variant
from spec_sdk.model.draft_heads.head import HeadParts, HeadRows
from spec_sdk.model.draft_heads.head_weights import LAYER
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.linear import Projection
from spec_sdk.training.chain_attention import chain_attention
from spec_sdk.training.chain_batch import ChainBatch, chain_batch
from spec_sdk.training.head_start import HeadStart
from spec_sdk.training.learner import Learner
from spec_sdk.training.samples import Sample


class TrainableHead(Learner):
    """A head that begins as ``start``, its weights in float32. Embedding and output rows are the target's, and stay so.

    ``unrolled``: steps of a chain that it learns; step k has the weight ``step_weight`` ** k in the loss.
    ``features_of``: as in :func:`~spec_sdk.training.chain_batch.chain_batch`. ``precision``: of matrix products.
    ``token_W``: the tokens that it can draft, None for all.
    """

    unrolls = True

    def __init__(
        self,
        start: HeadStart,
        features_of: Callable[[Sample], torch.Tensor],
        unrolled: int,
        step_weight: float,
        device: torch.device,
        precision: torch.dtype = torch.float32,
        token_W: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.config: ModelConfig = start.config
        self._features_of = features_of
        self.unrolled = unrolled
        weights = [step_weight**step for step in range(unrolled)]
        self._step_weights = [weight / sum(weights) for weight in weights]
        self.weights = nn.ParameterDict(
            {name: nn.Parameter(tensor.to(device)) for name, tensor in start.weights.items()}
        )
        self.token_R = token_W
        head_VM = start.head_VM.to(device)
        self._place_V = torch.arange(len(head_VM), device=device)
        if token_W is not None:
            token_W = token_W.to(device)
            self._place_V = torch.full_like(self._place_V, -1).index_copy_(0, token_W, self._place_V[: len(token_W)])
            head_VM = head_VM[token_W]
        self.head_WM = head_VM.to(precision)
        self._autocast = functools.partial(
            torch.autocast, device.type, torch.bfloat16, enabled=precision == torch.bfloat16
        )
        self._head = self._module(Embedding(start.embedding_VM.to(device)), start.taps)

    def batch(self, rows: Sequence[Sequence[Sample]], width: int) -> ChainBatch:
        """What the steps are given of these samples."""
        return chain_batch([sample for row in rows for sample in row], self._features_of, width)

    def forward(self, batch: ChainBatch, steps: int | None = None) -> torch.Tensor:
        """States [R, M] that :meth:`logits` takes, of the rows of step 0, then of step 1 … of ``steps``, by default as
        many as are learned.
        """
        head, kind = self._head, self._head.kinds[0]
        longest, scale = int(batch.position_T.max()) + self.unrolled, kind.attention.scale or self.config.head_dim**-0.5
        states = []
        with self._autocast():
            h_1TM = head.entering(head.fc(batch.feature_TF.to(head.dtype)[None]).float())
            embedded_1TM = head.normed_embedding(head.embed(batch.token_T[None]))
            q_1THD, prefix_k, prefix_v = self._attention_inputs(h_1TM, embedded_1TM, batch.position_T, longest)
            rows_R = batch.anchors(0)
            h_1RM, q_RHD = h_1TM[:, rows_R], q_1THD[rows_R]
            chain_k = prefix_k.new_empty(len(rows_R), 0, *prefix_k.shape[1:])
            chain_v = chain_k
            for step in range(steps or self.unrolled):
                if step:
                    kept_R, pairs_R = batch.of_step_before(step), batch.anchors(step)
                    h_1RM = head.entering(head.recurrent(h_1RM)[:, kept_R])
                    q_RHD, k_RGD, v_RGD = self._attention_inputs(
                        h_1RM, embedded_1TM[:, pairs_R + step], batch.position_T[pairs_R] + step, longest
                    )
                    chain_k = torch.cat((chain_k[kept_R], k_RGD[:, None]), dim=1)
                    chain_v = torch.cat((chain_v[kept_R], v_RGD[:, None]), dim=1)
                o_RHD = chain_attention(q_RHD, prefix_k, prefix_v, chain_k, chain_v, batch.spans, step, scale)
                h_1RM = head.post_attention(0, h_1RM, head.project(0, o_RHD[None]))
                states.append(head.before_output(h_1RM)[0].float())
        return torch.cat(states)

    def targets(self, batch: ChainBatch, steps: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Of every state that :meth:`forward` returns: the labelled position that it predicts [R], and its step [R]."""
        labels = [batch.labelled(step) for step in range(steps or self.unrolled)]
        return torch.cat(labels), torch.cat([torch.full_like(label, step) for step, label in enumerate(labels)])

    def loss_weights(self, step_R: torch.Tensor) -> torch.Tensor:
        """The weight in the loss of rows of these steps."""
        return torch.tensor(self._step_weights, device=step_R.device)[step_R]

    def logits(self, state_RM: torch.Tensor) -> torch.Tensor:
        """[R, W] of the tokens that it can draft."""
        return F.linear(state_RM.to(self.head_WM.dtype), self.head_WM)

    def places(self, token: torch.Tensor) -> torch.Tensor:
        """Where these tokens stand among the W that it can draft; -1 for one that it cannot."""
        return self._place_V[token]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The trained weights under the names of published heads."""
        c = self.config
        keys = c.num_kv_heads * c.head_dim
        queries = c.num_heads * c.head_dim
        parts = {
            "qkv": (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), (queries, keys, keys)),
            "gate_up": (("mlp.gate_proj", "mlp.up_proj"), (c.intermediate_size,) * 2),
            "output": (("self_attn.o_proj",), (c.hidden_size,)),
            "down": (("mlp.down_proj",), (c.hidden_size,)),
        }
        names = {
            "fc": "fc.weight",
            "final_norm": "norm.weight",
            "feature_norm": f"{LAYER}.hidden_norm.weight",
            "embedding_norm": f"{LAYER}.input_layernorm.weight",
            "post_norm": f"{LAYER}.post_attention_layernorm.weight",
        }
        for name, parameter in self.weights.items():
            if name in names:
                yield names[name], parameter.detach()
            else:
                theirs, sizes = parts[name]
                for own, part in zip(theirs, parameter.detach().split(sizes), strict=True):
                    yield f"{LAYER}.{own}.weight", part

    def _attention_inputs(
        self, h_1NM: torch.Tensor, embedded_1NM: torch.Tensor, position_N: torch.Tensor, longest: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Q, K and V [N, heads, D] of rows."""
        work = HeadRows(self._head.rotations_at(position_N[None], longest), embedded_1NM)
        q_1NHD, k_1NGD, v_1NGD = self._head.pre_attention(0, h_1NM, work)
        return q_1NHD[0].to(v_1NGD.dtype), k_1NGD[0].to(v_1NGD.dtype), v_1NGD[0]

    def _module(self, embedding: Embedding, taps: tuple[int, ...]) -> Eagle3Head:
        w = self.weights
        block = BlockWeights(
            input_norm_M=w["feature_norm"],
            qkv=Projection(w["qkv"]),
            q_norm_D=None,
            k_norm_D=None,
            output=Projection(w["output"]),
            post_norm_M=w["post_norm"],
            mlp=GatedMLP(Projection(w["gate_up"]), Projection(w["down"])),
        )
        parts = HeadParts(self.config, (block,), embedding, Projection(self.head_WM), taps)
        return Eagle3Head(parts, Projection(w["fc"]), (), w["embedding_norm"], w["final_norm"], Eagle3Variant())

"""What all draft heads are: a decoder layer that is fed pairs of a token and a feature of the position before it.

The pair number t is the token t + 1 of a text and the target's hidden states at position t; it lies at position t. In a
tree a node's feature is what the head itself returned at the node's parent.

Legend: B requests, N rows of a request, M model dim of the head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import BlockWeights, Decoder, ForwardPass, Rotations
from spec_sdk.model.executor import Cache, PassOutput, PassPlan
from spec_sdk.model.graph_executor import Capture, GraphExecutor
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.rope import Rotation, RotationsAt
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.grown_paths import GrownPaths, OutputRows, ProbablePaths, RowsToCommit
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.pass_inputs import PassInputs

FED_LAYER = 1
"""A node's children are fed what leaves a head's first layer."""


@dataclass(frozen=True)
class HeadParts:
    """What every head consists of. ``output_head``: over the target's vocabulary, -inf for tokens without a row.

    ``taps``: the target layers that it reads, in the order in which its weights take them.
    """

    config: ModelConfig
    blocks: tuple[BlockWeights, ...]
    embedding: Embedding
    output_head: Projection
    taps: tuple[int, ...]


STAGES_OF_BLOCK = (
    *("of_pass", "pre_attention", "rotation", "write_kv"),
    *("attend", "project", "post_attention", "summed"),
)


def has_plain_block(head: Decoder, of: type[Decoder] = Decoder) -> bool:
    """Whether a head's block is that ``of`` a decoder, stage by stage, but for what its attention is given."""
    return all(getattr(type(head), stage) is getattr(of, stage) for stage in STAGES_OF_BLOCK)


class DraftHead(Decoder, ABC):
    """Weights and arithmetic of a draft head. It holds no state of a request: caches live in sessions."""

    def __init__(self, parts: HeadParts, final_norm_M: torch.Tensor) -> None:
        super().__init__(parts.config, parts.blocks, parts.embedding, final_norm_M, parts.output_head)
        self.taps = parts.taps
        self.at_once: Callable[[torch.Tensor, ForwardPass], torch.Tensor | None] | None = None
        """What runs the block in one call, if the backend has such a thing."""

    @property
    def attention_norm_M(self) -> torch.Tensor | None:
        """The gain of the norm under which the attention reads hidden states; None if it reads them as they are."""
        return self.blocks[0].input_norm_M

    def rotations_at(self, position_BN: torch.Tensor, positions: int) -> Sequence[Rotation]:
        # what runs the block in one call may read the tables
        if self.at_once is not None:
            return RotationsAt(self._rotary, position_BN, positions)
        return super().rotations_at(position_BN, positions)

    def blocks_at_once(self, h_BNM: torch.Tensor, work: ForwardPass, first: int, end: int) -> torch.Tensor | None:
        return None if self.at_once is None else self.at_once(h_BNM, work)

    def subset(self, layers: Sequence[int]) -> Decoder:
        raise ValueError("a draft head has one layer, of which nothing can be left out")

    @abstractmethod
    def features(self, hidden: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """The features [N, M] that target states make, layer → [N, target's model dim]."""

    def recurrent(self, h: torch.Tensor) -> torch.Tensor:
        """The feature that a row's children are fed, of what left its layer [..., M]."""
        return h

    def tapped(self, hidden: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        """The states of the layers that the head reads, where its weights are."""
        return [hidden[layer].to(device=self.device, dtype=self.dtype) for layer in self.taps]


def fed_features(inputs: PassInputs) -> torch.Tensor:
    """The features of a pass. Raises ValueError for a pass that has none."""
    if inputs.features_BNM is None:
        raise ValueError("a draft head is fed a feature with every token, and this pass has none")
    return inputs.features_BNM


@dataclass
class HeadRows(Rotations):
    """Rows of a head whose attention also reads the tokens' embeddings, ``embedded_BNM``, normalized."""

    embedded_BNM: torch.Tensor


@dataclass
class HeadPass(ForwardPass):
    """A pass of such rows."""

    embedded_BNM: torch.Tensor = torch.empty(0)


class DraftHeadExecutor(TorchExecutor):
    """Runs a draft head. Every row of a pass brings a feature."""

    def __init__(self, head: DraftHead, ops: Ops) -> None:
        super().__init__(head, ops)
        self.head = head
        # what runs a block in one call knows of one
        head.at_once = ops.head_block(head) if head.layers == 1 else None
        head.norm_ops = ops
        self.feature_width = head.config.hidden_size

    def cut(self, layers: Sequence[int]) -> TorchExecutor:
        raise ValueError("a draft head has one layer, of which nothing can be left out")

    def _running(self, decoder: Decoder) -> DraftHeadExecutor:
        assert isinstance(decoder, DraftHead)
        return DraftHeadExecutor(decoder, self.ops)


class CapturedHeadExecutor(DraftHeadExecutor):
    """Runs a draft head whose short passes are captured."""

    def __init__(self, head: DraftHead, ops: Ops, capture: Capture) -> None:
        super().__init__(head, ops)
        self._capture = capture
        self._passes = GraphExecutor(head, ops, capture, insists=False)
        self._passes.feeds_children = (FED_LAYER, head.recurrent)
        self.one_launch = self._passes.one_launch

    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        return self._passes.forward(inputs, cache, plan)

    @property
    def grows_paths(self) -> bool:
        return self._passes.grows_paths

    def grow_paths(
        self,
        rows: Sequence[RowsToCommit],
        cache: Cache,
        output: OutputRows | None,
        paths: Sequence[ProbablePaths],
    ) -> list[GrownPaths] | None:
        return self._passes.grow_paths(rows, cache, output, paths)

    def rows_of(self, rows: int) -> int:
        return self._passes.rows_of(rows)

    def slots_of(self, slots: int) -> int:
        return self._passes.slots_of(slots)

    def new_cache(self) -> KVCache:
        return self._passes.new_cache()

    def keep_cache_in(self, form: str) -> None:
        super().keep_cache_in(form)
        self._passes.keep_cache_in(form)
        self.one_launch = self._passes.one_launch

    def _running(self, decoder: Decoder) -> CapturedHeadExecutor:
        assert isinstance(decoder, DraftHead)
        return CapturedHeadExecutor(decoder, self.ops, self._capture)


def head_executor(head: DraftHead, ops: Ops) -> DraftHeadExecutor:
    """What runs a head with these operations."""
    return DraftHeadExecutor(head, ops) if ops.capture is None else CapturedHeadExecutor(head, ops, ops.capture)

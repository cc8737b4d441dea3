"""What an executor is: a loaded model on a device, which runs passes.

Legend: B requests, N rows of a request, M model dim, V vocabulary, R tokens that logits are of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.block_runner import AttentionReport, BlockRunner
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.draft_levels import DraftLevels
from spec_sdk.model.encoder_input import EncoderInput
from spec_sdk.model.kv_cache import is_exact
from spec_sdk.ops.attention import Ops
from spec_sdk.ops.grown_paths import GrownPaths, OutputRows, ProbablePaths, RowsToCommit
from spec_sdk.ops.pass_inputs import PassInputs

LogitRows = Literal["all", "last", "none"]
Epilogue = Callable[[torch.Tensor], torch.Tensor]
"""Logits [B, N, V] → a tensor [B, …]."""


@dataclass(frozen=True)
class PassPlan:
    """How a pass is executed, apart from its inputs.

    ``runner``: how blocks run. An executor that is not torch goes by the runner's
    :meth:`~spec_sdk.model.block_runner.BlockRunner.declaration`, and refuses what it cannot do, by name. ``taps``:
    layers whose hidden states are wanted (0 is the embedding, i the output of block i, counted from 1). ``logits``:
    those of every row, of each request's last live row, or of none. ``epilogue``: what is made of these logits on the
    device as the last operation of the pass, and inside its graph where it is captured; it waits for nothing, and does
    the same operations in every pass; of ``none`` it makes nothing. An executor that has no logits on a torch device
    refuses it.
    """

    runner: BlockRunner
    taps: tuple[int, ...] = ()
    logits: LogitRows = "all"
    epilogue: Epilogue | None = None


@dataclass(frozen=True)
class PassOutput:
    """What a pass returns, as torch tensors, on whichever device the executor left them.

    Whoever needs their values reads them by :func:`spec_sdk.ops.host_reads.read`, which waits for the device and is
    counted.
    An executor that is not torch returns tensors in host memory. If it waits for a device to fill them, it does so once
    a pass and says so by :func:`spec_sdk.ops.host_reads.count`.

    ``logits_BNV``: as the plan asks, [B, N, V], [B, 1, V] or [B, N, 0]; ``hidden``: layer → [B, N, M]; ``reports``: per
    request, what the runner measured, which may wait for the device when it is first looked at. ``token_R``: the tokens
    that the logits are of, which are R then and not V, where the output head has rows of some only; None: all.
    ``made``: what the plan's epilogue returned.
    """

    logits_BNV: torch.Tensor
    hidden: Mapping[int, torch.Tensor] = field(default_factory=dict)
    reports: Sequence[AttentionReport | None] = ()
    token_R: torch.Tensor | None = None
    made: torch.Tensor | None = None


class Cache(Protocol):
    """The K and V of several requests, a slot each, as an executor keeps them. A subclass can go back to any length of
    a slot unless it says otherwise.
    """

    @property
    def slots(self) -> int: ...

    @property
    def capacity(self) -> int:
        """Tokens that a slot has room for."""

    @property
    def nbytes(self) -> int: ...

    def reserve(self, slots: int, capacity: int) -> None:
        """Have room for so many requests of so many tokens; what is stored stays. Called between passes only.

        Raises UserError, with the numbers, if there is no memory for it.
        """

    def commit(self, slots: Sequence[int], prefixes: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Move each request's rows ``paths`` (offsets from its prefix, increasing) right behind its prefix."""

    def keeps(self, slot: int, length: int) -> int:
        """How many of the first ``length`` of a slot's tokens a request can go on from, all of them committed."""
        return length

    def roll_back(self, slot: int, length: int) -> int:
        """Forget what comes behind the first ``length`` tokens of a slot, or behind as many as it :meth:`keeps`, which
        it returns.
        """
        return length


class Executor(ABC):
    """A model on a device. What it is given and what it returns are values; all that lasts lies in the cache.

    ``device``: where the inputs of a pass are put, and what it returns may lie. ``vocabulary``: tokens that the model
    knows, which a checkpoint may have padded.
    """

    config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    feature_width: int = 0
    """Width of the features that every row of a pass is fed besides its token; 0 where it is fed a token only."""
    one_launch: bool = False
    """Whether short passes are one launch each, with what their plan's epilogue makes of the logits."""
    head_is_collective: bool = False
    """Whether several processes compute the logits together, so that all of them must ask for them."""
    deepest_tree: int | None = None
    """The most tokens behind a root that a tree of the target's may be deep; None: any number."""
    ops: Ops = Ops()
    """What works on the logits of its passes, where they lie."""
    bits_vary: str | None = "its executor does not promise them"
    """Why the bits of a row's results may depend on the pass it is in: on the rows beside it, on how its text was fed.

    None: they do not, in passes of runners that are exact. What a row gets then depends on the tokens of its own path.
    """

    @property
    def rounds_rows(self) -> bool:
        """Whether rows are rounded before they are multiplied with some of its weights; not by default."""
        return False

    @property
    @abstractmethod
    def layers(self) -> int:
        """Number of blocks."""

    @property
    def kv_sources(self) -> Sequence[int]:
        """Of each layer, which layer's K and V it attends to; empty, the default, where each has its own."""
        return ()

    @property
    @abstractmethod
    def vocabulary(self) -> int: ...

    @property
    def form(self) -> str:
        """What its passes are made of as far as their time goes, beside the model's config: the form of its weights."""
        return f"{type(self).__module__}.{type(self).__qualname__}, {self.dtype}"

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of the model's matrices in memory; None for an executor that does not say."""
        return None

    @abstractmethod
    def new_cache(self) -> Cache:
        """An empty cache of this model's shape."""

    def keep_cache_in(self, form: str) -> None:
        """Make this model's caches in ``form`` from now on: ``exact``, in the model's dtype; ``bfloat16``; or ``int8``.

        Raises UserError for an executor that cannot.
        """
        if not is_exact(form, self.dtype):
            raise UserError(f"model.kv_cache: {type(self).__name__} has caches of one kind only; use kv_cache=auto")

    @abstractmethod
    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        """One pass: K and V of every live row go to the cache, to the columns that the inputs name. Commits nothing.

        No other column is written: a slot may have no room for rows of padding. What a request gets does not depend on
        those beside it, and what is returned for padding means nothing.

        Raises UserError, by name, for a runner that it cannot execute.
        """

    def draft_levels(
        self, levels: DraftLevels, cache: Cache, runner: BlockRunner
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """What :meth:`DraftLevels.run <spec_sdk.model.draft_levels.DraftLevels.run>` returns, as one launch; None, the
        default: it cannot be one, with this executor or with this runner.

        K and V of the levels that are fed go to the cache, as by :meth:`forward`. Commits nothing.
        """
        return None

    @property
    def grows_paths(self) -> bool:
        """Whether :meth:`grow_paths` may do anything."""
        return False

    def grow_paths(
        self,
        rows: Sequence[RowsToCommit],
        cache: Cache,
        output: OutputRows | None,
        paths: Sequence[ProbablePaths],
    ) -> list[GrownPaths] | None:
        """Feed each request's ``rows``, and the levels of the most probable paths behind them, in one call; None, the
        default, and nothing done, where there is no such call. The cache is reserved for both, in each request for as
        many levels as the one with most has: it may be fed, and given, more than its own.

        ``output``: what gives the logits of one request in place of the model's output head. Commits nothing.
        """
        return None

    @abstractmethod
    def cut(self, layers: Sequence[int]) -> Executor:
        """The model made of only these blocks, in this order; weights are shared, not copied."""

    def encode(self, encoder_input: EncoderInput, cache: Cache, slot: int) -> None:
        """Run an encoder–decoder's encoder over a request's input, and leave in its slot, for all passes to come, what
        the decoder sees of it. The slot is reserved.

        Raises UserError where only decoders can be run.
        """
        raise UserError(f"{type(self).__name__} runs decoders only, and this model has an encoder")

    def rows_of(self, rows: int) -> int:
        """The size of pass that ``rows`` rows of a request are padded to: an executor that captures has few sizes."""
        return rows

    def slots_of(self, slots: int) -> int:
        """The same for the tree slots that a pass's rows see."""
        return slots

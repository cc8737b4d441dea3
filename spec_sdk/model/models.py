"""The models of one run, loaded once and shared by every request and every drafter.

Legend: V vocabulary.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.assistant.from_gguf import assistant_of_gguf
from spec_sdk.model.assistant.loading import load_assistant
from spec_sdk.model.assistant.model import Assistant
from spec_sdk.model.block_runner import BlockRunner
from spec_sdk.model.borrowed_weights import BorrowingModel
from spec_sdk.model.checkpoint import Checkpoint, open_checkpoint
from spec_sdk.model.chosen_weights import ChosenWeights
from spec_sdk.model.decoder import Decoder, TensorSource
from spec_sdk.model.draft_cut import resolve_cut
from spec_sdk.model.draft_heads.head_choices import AS_PUBLISHED, HeadChoices
from spec_sdk.model.draft_heads.layouts.layout import PublishedHead
from spec_sdk.model.draft_heads.loading import HeadKind, LoadedHead, load_head
from spec_sdk.model.draft_heads.opening import (
    gguf_of,
    head_directory,
    open_draft_head,
    open_own_gguf_module,
    open_own_module,
)
from spec_sdk.model.executor import Executor
from spec_sdk.model.layers_of import LayersOf
from spec_sdk.model.load_decoder import load_target_ends
from spec_sdk.model.model_source import ModelSource
from spec_sdk.model.same_checkpoint import check_same_checkpoint
from spec_sdk.model.session import Session
from spec_sdk.model.shared_encoder import share_encoder
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.model.tensor_parallel import divided, load_shard
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.model.trained_drafts import trained_draft
from spec_sdk.ops import Ops
from spec_sdk.parallel.spread_session import SpreadSession
from spec_sdk.ranks import ALONE, Ranks
from spec_sdk.say import say

AnyExecutor = TypeVar("AnyExecutor", bound=Executor)
CUT_DRAFT = "cut"
"""The draft reference that means: no model of its own, but a subset of the target's layers."""

AUTO_DRAFT = "auto"
"""The draft reference that means: a trained draft model that an installed package has for the target, else a cut."""
Load = Callable[[TensorSource, torch.dtype], Executor]
"""Makes a checkpoint's model ready to run in a dtype: :meth:`Backend.load`."""


@dataclass(frozen=True)
class Model:
    """A loaded model: a label for reports, what runs it, and its tokenizer."""

    name: str
    executor: Executor
    tokenizer: Tokenizer


@dataclass(frozen=True)
class DraftHeadModel(Generic[LoadedHead]):
    """A loaded draft head: a label for reports, and what runs it."""

    name: str
    head: LoadedHead


class Models:
    """Loads the target at once and draft models when first asked for.

    ``draft_reference`` is a model reference, or ``cut``: the target's own layers ``draft_layers``, or ``auto``: the
    draft model that an installed package has for the target; ``cut`` where there is none, or layers are named. ``load``
    makes a checkpoint's model ready to run. ``given``: models that are in memory, by the reference that names them.
    Over several ``ranks`` the target is spread over this rank's device ``group`` (all of them, if left out), a shard on
    each, with the kernels ``ops`` on ``device``. ``draft_ranks``: those that hold the draft model
    (:meth:`draft_ranks`). ``context``: the longest text that will be served; a draft model whose own is shorter keeps
    that. ``weights``: the bits of the target's matrices, ``draft_weights`` those of a draft model's; ``kv_cache``: the
    form of their caches, or ``auto``: that in which ``load`` makes them.
    """

    ranks: Ranks = ALONE
    _draft_ranks: Ranks | None = None
    _draft_weights: str = "auto"

    def __init__(
        self,
        target_reference: str,
        draft_reference: str,
        draft_layers: str | Sequence[int],
        load: Load,
        ops: Ops,
        device: torch.device,
        dtype: torch.dtype,
        ranks: Ranks = ALONE,
        group: Ranks | None = None,
        context: int | None = None,
        given: Mapping[str, ModelSource] | None = None,
        weights: str = "auto",
        kv_cache: str = "auto",
        draft_weights: str = "auto",
        draft_ranks: Ranks | None = None,
    ) -> None:
        self._given = dict(given or {})
        self.load = load
        self.ops = ops
        self.device = device
        self.dtype = dtype
        self.ranks = ranks
        self.group = group or ranks
        self.spread: list[SpreadSession | None] = []
        """The sessions that several ranks have, in the order in which they were made; None for one of others."""
        self._draft_ranks = draft_ranks
        self._target_reference, self._draft_reference = target_reference, draft_reference
        self._draft_layers = draft_layers
        self._context = context
        self._weights, self._kv_cache = weights, kv_cache
        # rounding a draft changes no output: one that is stored in few bits need not be dense because the target is
        as_target = draft_weights == "auto" and weights in ("int8", "int4")
        self._draft_weights = weights if as_target else draft_weights
        self._loaded: dict[str, Model] = {}
        self._heads: dict[tuple[str | None, HeadKind[Any], HeadChoices], DraftHeadModel[Any]] = {}
        self._target_checkpoint = self._open(target_reference)
        longest = self._target_checkpoint.config.longest_context
        if context is not None and context > longest:
            raise UserError(
                f"model.context: {context} tokens are more than {self._target_checkpoint.name} has positions for; "
                f"use {longest} or less"
            )
        self._whole: Executor | None = None
        if ranks.size > 1 and self._target_checkpoint.config.encoder is not None:
            raise UserError(
                f"model.target: {self._target_checkpoint.name} is an encoder-decoder model, which runs in one process; "
                f"{ranks.size} were launched"
            )
        if ranks.size > 1:
            if self.group.size == 1:
                self._whole = load(self._target_checkpoint, dtype)
                part = divided(self._whole, self._whole.config, ranks, self.group)
            else:
                part = load_shard(self._target_checkpoint, ranks, self.group, load, dtype)
            self.target = Model(self._target_checkpoint.name, self._with_cache(part), self._target_checkpoint.tokenizer)
        else:
            self.target = self._load(target_reference, self._target_checkpoint)

    @property
    def device_groups(self) -> list[int]:
        """The ranks of each device group: of each set of ranks that holds the whole target together."""
        return [self.group.size] * (self.ranks.size // self.group.size)

    def drafting_with(self, reference: str, layers: str | Sequence[int], given: Mapping[str, ModelSource]) -> Models:
        """These models, none loaded again, for a run with another draft model."""
        models = copy.copy(self)
        models._draft_reference, models._draft_layers = reference, layers
        self._given.update(given)
        return models

    def draft_ranks(self, spreads: bool) -> Ranks:
        """The ranks that draft: those that the run names for it. Otherwise all where their runner ``spreads`` a whole
        model's work, and the leader alone where it does not.
        """
        return self._draft_ranks or (self.ranks if spreads else ALONE)

    def draft(self, reference: str | None = None, among: Ranks = ALONE) -> Model:
        """The draft model: ``model.draft`` of the run, or another reference a drafter names.

        ``cut`` is the target's own layers ``model.draft_layers``, ``cut:NAME`` a named cut. ``among``: ranks that
        divide it, as the target is divided; whole if left out. Raises UserError if its vocabulary is not the target's,
        and for one that so many ranks cannot divide.
        """
        reference = reference or self._draft_reference
        if reference == AUTO_DRAFT:
            reference = (self.trained_model if self._draft_layers == "auto" else None) or CUT_DRAFT
        if reference == CUT_DRAFT:
            return self._cut(self._draft_layers, among)
        if reference.startswith(CUT_DRAFT + ":"):
            return self._cut(reference.removeprefix(CUT_DRAFT + ":"), among)
        model = self._load(reference, among=among)
        check_vocabularies(self.target, model)
        check_encoders(self.target, model)
        return model

    def draft_head(
        self, reference: str | None, kind: HeadKind[LoadedHead], choices: HeadChoices = AS_PUBLISHED
    ) -> DraftHeadModel[LoadedHead]:
        """A draft head of this kind, by directory, GGUF file or Hugging Face hub id, loaded once for every choice.

        None: the one that an installed package has for the target or, of a prediction module, the one in the target's
        own checkpoint, for texts as long as the target is served. Raises UserError where there is none, and for one
        that cannot be used with the target.
        """
        if self.target.executor.config.encoder is not None:
            raise UserError(
                f"drafter: {self.target.name} has an encoder, and draft heads are of text models; use sd_chain, "
                "layer_skip_chain, prompt_lookup or suffix"
            )
        if reference is None and kind.in_target:
            choices = replace(choices, context=choices.context or self._context)
        elif reference is None:
            reference = self._trained_head(kind.methods if choices.method == "auto" else (choices.method,))
        choices = replace(choices, stored=self._draft_weights)
        key = (reference, kind, choices)
        if key not in self._heads:
            published = self._own_module() if reference is None else open_draft_head(reference)
            head = load_head(published, kind, self._ends, choices, self.device, self.dtype, self.ops)
            if self._kv_cache != "auto":
                head.keep_cache_in(self._kv_cache)
            self._heads[key] = DraftHeadModel(f"{published.name}, {published.layout} {kind.noun}", head)
        found: DraftHeadModel[LoadedHead] = self._heads[key]
        return found

    def assistant(self, reference: str, weights: str = "auto") -> tuple[str, Assistant]:
        """A draft model that attends to the target's K and V, by directory, GGUF file or hub id, and its label for
        reports. ``weights``: as :class:`HeadChoices` has them.

        Raises UserError for what cannot be found, for files that are none of an assistant, and for that of another
        target.
        """
        if self.ranks.size > 1:
            raise UserError("drafter.checkpoint: an assistant reads the target's cache, which is in several processes")
        gguf = gguf_of(reference)
        directory = head_directory(reference, "drafter.checkpoint") if gguf is None else assistant_of_gguf(gguf)
        bits = HeadChoices(weights=weights).bits(self.ops, self.dtype)
        assistant = load_assistant(directory, self._ends, self.device, self.dtype, self.ops, bits)
        return f"{directory.name if gguf is None else gguf.name}, assistant", assistant

    @functools.cached_property
    def trained_model(self) -> str | None:
        """The draft model that an installed package has for the target."""
        found = trained_draft(self._target_checkpoint, ("model",))
        return None if found is None else str(found)

    def _trained_head(self, methods: Collection[str]) -> str:
        found = trained_draft(self._target_checkpoint, methods)
        if found is None:
            raise UserError(
                f"drafter.checkpoint: no installed package has a head of {' or '.join(methods)} for "
                f"{self.target.name}; name one: a directory, or a Hugging Face hub id"
            )
        return str(found)

    def _own_module(self) -> PublishedHead:
        if self._target_reference in self._given:
            raise UserError(
                f"drafter.checkpoint: is not given, and {self.target.name} is in memory, without files to look for a "
                "prediction module (MTP) in"
            )
        checkpoint = open_checkpoint(self._target_reference)
        if checkpoint.gguf is None:
            return open_own_module(checkpoint.directory, self.target.name)
        return open_own_gguf_module(checkpoint.gguf, self.target.name)

    @functools.cached_property
    def _ends(self) -> TargetEnds:
        """What heads borrow of the target: shared where it is whole in this process, else loaded."""
        name, executor = self.target.name, self.target.executor
        whole = getattr(self._whole if self.ranks.size > 1 else executor, "decoder", None)
        if isinstance(whole, Decoder):
            return TargetEnds.of(name, whole)
        return load_target_ends(self._target_checkpoint, name, self.device, self.dtype, self.ops)

    def session(self, model: Model, runner: BlockRunner | None = None, spread: bool = False) -> Session:
        """A new session of ``model``. ``spread``: all ranks have it, and do what the leader's is asked to do."""
        # a family's members pad their embeddings differently, and a target may write a token of its padding
        fed_unknown = model.executor.vocabulary < self.target.executor.vocabulary
        session: Session
        if not spread or self.ranks.size == 1:
            session = Session(model.executor, runner)
        else:
            session = SpreadSession(model.executor, runner, self.ranks, self.spread)
            self.spread.append(session)
        session.fed_unknown = fed_unknown
        return session

    def skip_sessions(self, count: int) -> None:
        """Of the ``count`` sessions that the leader has made, those that this rank has not are others'."""
        self.spread += [None] * (count - len(self.spread))

    def _open(self, reference: str, lender: ModelSource | None = None) -> ModelSource:
        """A checkpoint, its matrices in the bits of the run. Draft models may take tensors from the ``lender``."""
        source: ModelSource | None = self._given.get(reference)
        if source is None:
            # the leader first, since opening may download and convert, and shows its progress
            source = self.ranks.leader_first(f"checkpoint {reference}", lambda: open_checkpoint(reference))
            check_same_checkpoint(source, self.ranks)
            if source.unread and self.ranks.is_leader:
                count = len(source.unread)
                tensors = "a tensor of blocks is" if count == 1 else f"{count} tensors of blocks are"
                say(
                    f"warning: {source.directory}: {tensors} not read, the first '{source.unread[0]}': its config.json "
                    "asks for none such; is it that of these weights?"
                )
        bits = self._weights if lender is None else self._draft_weights
        chosen = ChosenWeights(source, bits, lambda stored: self.ops.fast_in_bits(stored, self.dtype))
        served = chosen if self._context is None else chosen.within(self._context)
        if not isinstance(source, Checkpoint) or not source.borrowed:
            return served
        if lender is None:
            raise UserError(
                f"model.target: {source.name} has no {' or '.join(sorted(source.borrowed))} of its own: it is a draft "
                "model; use it as model.draft"
            )
        return BorrowingModel(served, source.borrowed, lender, self._lent_by_target(), source.draft_vocabulary)

    def _lent_by_target(self) -> Decoder | None:
        """The target in memory, if what it holds of embedding and head is whole and a decoder in torch."""
        executor = self.target.executor
        return executor.decoder if self.ranks.size == 1 and isinstance(executor, TorchExecutor) else None

    def _load(self, reference: str, checkpoint: ModelSource | None = None, among: Ranks = ALONE) -> Model:
        key = f"{reference} among {among.size}"
        if key not in self._loaded:
            checkpoint = checkpoint or self._open(reference, self._target_checkpoint)
            if among.size == 1:
                executor = self.load(checkpoint, self.dtype)
            elif isinstance(checkpoint, BorrowingModel):
                raise UserError(
                    f"backend.groups.draft: {checkpoint.name} takes weights from the target, and is not divided among "
                    "ranks; use [0]"
                )
            else:
                executor = self._shard(checkpoint, among)
            name = checkpoint.name
            if checkpoint is not self._target_checkpoint and share_encoder(
                self.target.executor, self._target_checkpoint, executor, checkpoint
            ):
                name = f"{name}, the target's encoder"
            self._loaded[key] = Model(name, self._with_cache(executor), checkpoint.tokenizer)
        return self._loaded[key]

    def _shard(self, source: TensorSource, among: Ranks) -> Executor:
        """This rank's part of a model that ``among`` divide; its output head among them too."""
        return load_shard(source, among, among, self.load, self.dtype)

    def _with_cache(self, executor: AnyExecutor) -> AnyExecutor:
        if self._kv_cache != "auto":
            executor.keep_cache_in(self._kv_cache)
        return executor

    def _cut(self, draft_layers: str | Sequence[int], among: Ranks) -> Model:
        key = f"{CUT_DRAFT}:{draft_layers} among {among.size}"
        if key not in self._loaded:
            target = self.target
            layers = resolve_cut(
                draft_layers, target.name, target.executor.layers, target.executor.config.shared_kv_layers
            )
            name = f"{target.name}, {len(layers)} of {target.executor.layers} layers"
            if among.size == 1:
                executor = self._target_layers(layers)
            else:
                executor = self._shard(LayersOf(self._target_checkpoint, layers), among)
            self._loaded[key] = Model(name, self._with_cache(executor), target.tokenizer)
        return self._loaded[key]

    def _target_layers(self, layers: Sequence[int]) -> Executor:
        """The target's own layers as a model: its very weights, or a whole copy of them beside a shard."""
        target = self.target.executor
        if self.ranks.size == 1:
            return target.cut(layers)
        if self._whole is not None:
            return self._whole.cut(layers)
        assert isinstance(target, TorchExecutor)
        # the embedding is whole in a shard too: one copy is enough
        return self.load(LayersOf(self._target_checkpoint, layers, target.decoder.embedding), self.dtype)


def check_vocabularies(target: Model, draft: Model) -> None:
    """Raise UserError unless both tokenizers map the same tokens to the same ids, and the draft model has an embedding
    of each of them that the target has one of.

    Only tokens count: a checkpoint may pad its output rows, and two members of a family may pad them differently.
    """
    ours, theirs = target.tokenizer.vocabulary, draft.tokenizer.vocabulary
    if ours == theirs:
        tokens, rows = 1 + max(ours.values(), default=-1), draft.executor.vocabulary
        if rows < min(tokens, target.executor.vocabulary):
            raise UserError(
                f"model.draft: {draft.name} has {rows} tokens in its embedding, and {tokens} in its tokenizer, which "
                f"the target {target.name} may write; is its vocab_size right?"
            )
        return
    differing = sorted(set(ours.items()) ^ set(theirs.items()), key=lambda item: (item[1], item[0]))
    token, token_id = differing[0]
    raise UserError(
        f"model.draft: {draft.name} has another vocabulary than the target {target.name}: {len(theirs)} tokens against "
        f"{len(ours)}, first difference at id {token_id} ({token!r}); choose a draft model with the target's tokenizer"
    )


def check_encoders(target: Model, draft: Model) -> None:
    """Raise UserError unless what the target's encoder is given suits the draft model's encoder too, if it has one."""
    ours, theirs = target.executor.config.encoder, draft.executor.config.encoder
    if theirs is None:
        return
    if ours is None:
        raise UserError(f"model.draft: {draft.name} has an encoder, and the target {target.name} is a text model")
    if (ours.features, ours.input_frames) != (theirs.features, theirs.input_frames):
        raise UserError(
            f"model.draft: {draft.name} takes {theirs.features} mel bins in {theirs.input_frames} frames, the target "
            f"{target.name} {ours.features} in {ours.input_frames}; choose a draft model of the same input"
        )

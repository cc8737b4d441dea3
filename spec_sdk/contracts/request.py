"""One prompt being answered, as plugins see it, and what is decided about it in a step.

Legend: N tree nodes or rows of logits, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import torch

from spec_sdk.contracts.constraint import Matcher, called
from spec_sdk.contracts.sampler import Sampler
from spec_sdk.errors import CallOf, ConstraintLimit
from spec_sdk.model.encoder_input import EncoderInput
from spec_sdk.ops import DraftLogits, Ops
from spec_sdk.ops.held_back_tokens import hold_back
from spec_sdk.ops.logit_offsets import LogitOffsets
from spec_sdk.tree import TokenTree
from spec_sdk.whole_numbers import as_int

LARGEST_TREE = 4096
"""Most nodes of a tree where nothing else is said."""


@dataclass(frozen=True)
class Budget:
    """How much to draft in this step: at most ``depth`` tokens on a path; a depth of 0 is a plain decoding step.

    ``nodes``: most nodes of the tree, the root included: the rows of the target's pass. ``node_costs[n - 1]``: what a
    tree of n nodes costs beyond a plain step, in the tokens that could be made in that time; never less than that of
    n - 1. Empty where the policy says nothing. A drafter that knows how probable its nodes are leaves out what is not
    worth it. ``level_cost``: how probably a level must be reached to be worth drafting. ``tokens_per_second``: what a
    second is worth, for drafters that time themselves what they do. 0 where the policy says nothing: then time is free.
    """

    depth: int
    nodes: int = LARGEST_TREE
    node_costs: tuple[float, ...] = ()
    level_cost: float = 0.0
    tokens_per_second: float = 0.0

    def __post_init__(self) -> None:
        if type(self.depth) is not int or type(self.nodes) is not int:
            object.__setattr__(self, "depth", as_int(self.depth))
            object.__setattr__(self, "nodes", as_int(self.nodes))


@dataclass(frozen=True)
class Verdict:
    """What a verifier decided.

    ``path``: accepted nodes in order, beginning with the root, node 0.
    ``next_token``: the token after the last accepted node: the bonus token, or the one resampled after a rejection.
    """

    path: list[int]
    next_token: int
    tree: TokenTree

    def __post_init__(self) -> None:
        if type(self.next_token) is not int:
            object.__setattr__(self, "next_token", as_int(self.next_token))

    @property
    def tokens(self) -> list[int]:
        """The tokens to emit: the accepted drafted tokens, then ``next_token``."""
        return [self.tree.token_N[i] for i in self.path[1:]] + [self.next_token]


class TokenView(Sequence[int]):
    """A list of tokens that grows, to be read only. A slice of it is a list of its own."""

    __slots__ = ("_tokens",)

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        return self._tokens[place]

    def __iter__(self) -> Iterator[int]:
        return iter(self._tokens)

    def __eq__(self, other: object) -> bool:
        return list(other) == self._tokens if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TokenView({self._tokens})"


@dataclass
class RequestState:
    """What the engine keeps of a request; it alone changes it. Plugins are given :attr:`view`.

    ``tokens`` is the prefix: prompt and output so far. The last is the pending token, whose KV is in no cache yet.
    ``slot``: the request's place in every cache, from when it is admitted on. ``step``: steps done. ``ops``: those of
    the target's backend, shared by all requests of an engine: verdicts of one pass are made by one set. ``constraint``:
    what its answer may consist of, a matcher of its own. ``constraint_s``: seconds that the host spent on it.
    ``encoder_input``: what the encoder of an encoder–decoder model is given. ``offsets``: what is added to logits.
    ``min_tokens``: of the answer, before one of ``stop_ids`` may end it.
    ``logprobs``: how many alternatives are told of beside each token's log-probability; None tells of neither.
    ``prompt_logprobs``: the same of the prompt's tokens.
    ``trace``: whether each step's tree and verdict are told of. ``unfollowed``: drafted paths behind ``tokens`` after
    which its constraint cannot tell what may follow.
    """

    tokens: list[int]
    prompt_length: int
    max_new_tokens: int
    sampler: Sampler
    rng: torch.Generator
    stop_ids: frozenset[int] = frozenset()
    id: int = 0
    slot: int = 0
    step: int = 0
    target: Any = None
    ops: Ops = field(kw_only=True)
    constraint: Matcher | None = None
    constraint_s: float = 0.0
    encoder_input: EncoderInput | None = None
    offsets: LogitOffsets | None = None
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    trace: bool = False
    unfollowed: set[tuple[int, ...]] = field(default_factory=set)
    view: Request = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.view = Request(self)


class Request:
    """One prompt being answered: everything can be read and nothing set.

    ``tokens`` is the prefix: prompt and output so far. The last is the pending token, whose KV is in no cache yet.
    ``slot``: its place in every cache; another request may have it when this one is finished. ``id``: its number in the
    run. ``sampler`` holds its sampling parameters. ``rng``, a CPU generator, is its only source of randomness.
    ``target``: the target model's session, for drafters that draft with it.
    """

    __slots__ = ("_state", "tokens")

    def __init__(self, state: RequestState) -> None:
        object.__setattr__(self, "_state", state)
        object.__setattr__(self, "tokens", TokenView(state.tokens))

    tokens: TokenView
    _state: RequestState

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a request is the engine's: a plugin cannot set its {name}")

    @property
    def id(self) -> int:
        return self._state.id

    @property
    def slot(self) -> int:
        return self._state.slot

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return self._state.prompt_length

    @property
    def max_new_tokens(self) -> int:
        return self._state.max_new_tokens

    @property
    def sampler(self) -> Sampler:
        return self._state.sampler

    @property
    def rng(self) -> torch.Generator:
        return self._state.rng

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end the answer."""
        return self._state.stop_ids

    @property
    def target(self) -> Any:
        return self._state.target

    @property
    def step(self) -> int:
        """Steps done."""
        return self._state.step

    @property
    def pending_token(self) -> int:
        return self._state.tokens[-1]

    @property
    def new_tokens(self) -> int:
        """Tokens of the answer so far."""
        return len(self._state.tokens) - self._state.prompt_length

    @property
    def ops(self) -> Ops:
        """The operations of the target's backend."""
        return self._state.ops

    @property
    def encoder_input(self) -> EncoderInput | None:
        """What the encoder of an encoder–decoder model is given; a drafter's session is opened with it."""
        return self._state.encoder_input

    @property
    def changes_logits(self) -> bool:
        """Whether :meth:`process_logits` does anything, as far as the answer is."""
        state = self._state
        added = (state.constraint, state.offsets)
        changed = self.sampler.params.repetition_penalty != 1 or any(item is not None for item in added)
        return changed or self.new_tokens < state.min_tokens

    def process_logits(self, logits_NV: torch.Tensor, paths: Sequence[Sequence[int]]) -> torch.Tensor:
        """Logits of the target or a draft model under the repetition penalty, the request's offsets (logit bias,
        presence and frequency penalty) and its constraint, and without the tokens that end an answer where it has too
        few, in this order.

        ``logits_NV`` [N, V] may be written to; use what is returned. Row i is what follows the request's tokens and
        then ``paths[i]``, drafted tokens. A row behind drafted tokens that its constraint cannot follow stays without
        it: a verdict ends before them. Raises ConstraintLimit where it cannot follow the request's own.
        """
        logits_NV = self._offset(logits_NV, paths)
        limit = self._constrain(logits_NV, paths)
        if limit is not None:
            limit.request = self.id
            raise limit
        self._hold_back_ends(logits_NV, paths)
        return logits_NV

    def _offset(self, logits_NV: torch.Tensor, paths: Sequence[Sequence[int]]) -> torch.Tensor:
        logits_NV = self.sampler.penalise(logits_NV, self.tokens, paths)
        if self._state.offsets is not None:
            logits_NV = self._state.offsets.apply(logits_NV, self.tokens[self.prompt_length :], paths)
        return logits_NV

    def _constrain(self, logits_NV: torch.Tensor, paths: Sequence[Sequence[int]]) -> ConstraintLimit | None:
        """Lay the constraint's mask on every row whose path it can follow; why it cannot follow the request's tokens,
        if it cannot.
        """
        constraint, answer = self._state.constraint, self.tokens[self.prompt_length :]
        if constraint is None:
            return None
        began, limit = time.perf_counter(), None
        with CallOf("constraint", called(constraint)):
            try:
                constraint.apply(logits_NV, answer, paths)
            except ConstraintLimit:
                for row, path in enumerate(paths):
                    try:
                        constraint.apply(logits_NV[row : row + 1], answer, [path])
                    except ConstraintLimit as error:
                        self._state.unfollowed.add(tuple(path))
                        limit = limit if path else error
        self._state.constraint_s += time.perf_counter() - began
        return limit

    def _hold_back_ends(self, logits_NV: torch.Tensor, paths: Sequence[Sequence[int]]) -> None:
        missing = self._state.min_tokens - self.new_tokens
        if missing > 0:
            hold_back(logits_NV, self.stop_ids, [row for row, path in enumerate(paths) if len(path) < missing])

    def process_draft(self, logits: DraftLogits, paths: Sequence[Sequence[int]]) -> DraftLogits:
        """:meth:`process_logits` of a draft model's logits, which may be written to, for a growth to choose from.

        Where a constraint leaves nothing of what the model can draft, each token that it allows is as probable as the
        others: a draft model of few tokens then drafts one that it does not have. Rows that it cannot follow stay
        without it, those behind the request's own tokens too: the target's will end the answer.
        """
        if not self.changes_logits:
            return replace(logits, ops=self.ops)
        processed_KV = self._offset(logits.full_KV, paths)
        self._constrain(processed_KV, paths)
        if self._state.constraint is not None and logits.logits_KR.shape[-1] < logits.vocabulary:
            even_KV = torch.zeros_like(processed_KV)
            self._constrain(even_KV, paths)
            none_left_K1 = processed_KV.isneginf().all(-1, keepdim=True)
            processed_KV = torch.where(none_left_K1, even_KV, processed_KV)
        self._hold_back_ends(processed_KV, paths)
        return DraftLogits.over_all(processed_KV, self.ops)

    @property
    def constrained(self) -> bool:
        """Whether a constraint says what the answer may consist of."""
        return self._state.constraint is not None

    def allows(self, path: Sequence[int], token: int) -> bool:
        """Whether ``token`` may follow the request's tokens and then ``path``, drafted tokens, by its constraint.

        A constraint for which that is dear to find out says True; where it cannot be followed, nothing may follow.
        """
        constraint = self._state.constraint
        try:
            return constraint is None or constraint.allows(self.tokens[self.prompt_length :], path, token)
        except ConstraintLimit:
            return False

    def forced(self, path: Sequence[int]) -> list[int]:
        """Tokens that its constraint leaves no choice about after the request's tokens and then ``path``, drafted
        tokens. Where they are taken at once (``forced_tokens``), there are none behind the request's own tokens when a
        drafter is asked, but for the last of an answer. None where it cannot be followed.
        """
        constraint = self._state.constraint
        try:
            return [] if constraint is None else constraint.forced(self.tokens[self.prompt_length :], path)
        except ConstraintLimit:
            # the step that needs the mask ends the answer, once what it has so far is emitted
            return []

    def uniforms(self, count: int) -> list[float]:
        """The next ``count`` random numbers of [0, 1), in double precision."""
        numbers: list[float] = torch.rand(count, generator=self._state.rng, dtype=torch.float64).tolist()
        return numbers

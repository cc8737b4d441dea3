"""The plugins of a pipeline at work on prompts of token ids, several at once.

Legend: P prompt tokens, X height and T length of an encoder's input.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from spec_sdk.contracts.constraint import Matcher, begun
from spec_sdk.contracts.drafter import Drafter
from spec_sdk.contracts.policy import Policy
from spec_sdk.contracts.request import RequestState
from spec_sdk.contracts.sampler import Sampler
from spec_sdk.contracts.verifier import Verifier
from spec_sdk.engine.random_streams import random_stream
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.engine.turn import Emit, Progress
from spec_sdk.errors import UserError
from spec_sdk.model.encoder_input import EncoderInput, check_features
from spec_sdk.model.session import Session
from spec_sdk.model.step_clock import StepClock
from spec_sdk.ops import Ops
from spec_sdk.ops.logit_offsets import LogitOffsets
from spec_sdk.sampling_params import SamplingParams

TREE_ROOM = 64
"""Rows that a slot has room for besides prompt and answer; a larger tree enlarges the cache when it first comes."""


@dataclass(frozen=True)
class TokenRequest:
    """A prompt of token ids [P] and how to answer it.

    ``max_new_tokens``: the answer's, at most. ``sampling``: None is the engine's. ``stop_token_ids`` end the answer
    like the model's own end tokens, which ``ignore_eos`` passes over. ``request_id`` names the request in events; None
    is the next number. ``random_stream`` chooses its random numbers among those of one seed; None is ``request_id``.
    ``emit`` gets its events. ``input_features`` [X, T]: what the encoder of an encoder–decoder model is given, such as
    log-mel features. ``constraint``: what the answer may consist of; a matcher of its own is begun. ``offsets``: what
    is added to its logits, of the target and of draft models. ``min_tokens``: of the answer, before a token may end it;
    a constraint that leaves no other token ends it earlier. ``logprobs``: alternatives to tell of beside the
    log-probability of every token; 0 tells of the token's alone, None of nothing. ``prompt_logprobs``: the same of the
    prompt's tokens, in the ``prefill`` event; all of the prompt is then fed, whatever of it a cache has.
    ``trace``: its ``cycle`` events tell of the tree, node by node.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    sampling: SamplingParams | None = None
    stop_token_ids: Collection[int] = ()
    ignore_eos: bool = False
    request_id: int | None = None
    random_stream: int | None = None
    emit: Emit = lambda event: None
    input_features: torch.Tensor | None = None
    constraint: Matcher | None = None
    offsets: LogitOffsets | None = None
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    trace: bool = False


class TokenEngine:
    """Answers prompts, ``slots`` of them at once; more wait. Requests join and leave between steps.

    It knows tokens only; :class:`spec_sdk.Engine` is the one of texts, chats and stop strings.

    ``target``: the session of the model whose output counts. ``make_sampler`` makes the sampler of a request's
    sampling parameters, which are ``sampling`` unless it has its own. ``stop_ids``: tokens that end an answer.
    ``ops``: where rules of acceptance run; the reference's by default. ``takes_forced``: see :class:`Scheduler`.
    """

    def __init__(
        self,
        target: Session,
        drafter: Drafter,
        verifier: Verifier,
        policy: Policy,
        make_sampler: Callable[[SamplingParams], Sampler],
        sampling: SamplingParams,
        stop_ids: frozenset[int] = frozenset(),
        slots: int = 1,
        clock: StepClock | None = None,
        ops: Ops | None = None,
        takes_forced: bool = True,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.verifier = verifier
        self.slots = slots
        self.scheduler = Scheduler(target, drafter, verifier, policy, slots, clock, takes_forced)
        self._make_sampler = make_sampler
        self._sampling = sampling
        self._stop_ids = stop_ids
        self._ops = ops or Ops()
        self._next_id = 0

    def add(self, request: TokenRequest) -> int:
        """Begin a request with the next step; return its id.

        Raises UserError for features that the target cannot be given, an empty prompt, one that leaves no room in the
        context, tokens that the model does not have, parameters that the verifier cannot serve, and an answer that
        there is no memory for; PluginFault for a constraint that begins no matcher.
        """
        state = self._state(request)
        self.scheduler.add(state, request.emit)
        return state.id

    def step(self) -> list[Progress]:
        """Go on with all requests: see :meth:`Scheduler.step`."""
        return self.scheduler.step()

    def cancel(self, request: int, reason: str = "interrupted") -> None:
        """End a request early, with this ``finish_reason``. Does nothing if it has ended."""
        self.scheduler.cancel(request, reason)

    @property
    def busy(self) -> bool:
        """Whether there are requests that have not ended."""
        return self.scheduler.busy

    def stream(self, request: TokenRequest) -> Iterator[list[int]]:
        """Answer one prompt; yields its new tokens step by step. Closing the iterator cancels the request.

        Raises what :meth:`add` does.
        """
        return self.scheduler.run(self._state(request), request.emit)

    def check(self, request: TokenRequest) -> None:
        """Raise the UserError that :meth:`add` would, but for want of memory."""
        check_features(request.input_features, self.target.encoder)
        context, vocabulary = self.target.context, self.target.vocabulary
        if not request.prompt:
            raise UserError("prompt: it is empty")
        if request.max_new_tokens < 1:
            raise UserError(f"max_new_tokens: {request.max_new_tokens} must be 1 or more")
        if len(request.prompt) >= context:
            raise UserError(f"prompt: {len(request.prompt)} tokens do not fit the target's context of {context}")
        biased = () if request.offsets is None else request.offsets.tokens
        named = (("prompt", request.prompt), ("stop_token_ids", request.stop_token_ids), ("logit_bias", biased))
        for name, tokens in named:
            if (unknown := next((token for token in tokens if not 0 <= token < vocabulary), None)) is not None:
                raise UserError(f"{name}: token {unknown} lies outside the vocabulary of {vocabulary}")
        self.verifier.check(request.sampling or self._sampling)

    def _state(self, request: TokenRequest) -> RequestState:
        self.check(request)
        sampling = request.sampling or self._sampling
        capacity = min(len(request.prompt) + request.max_new_tokens, self.target.context) + TREE_ROOM
        # no slot is used before those below it are
        self.target.reserve(min(self.slots, self.scheduler.requests + 1), capacity)
        number = self._next_id if request.request_id is None else request.request_id
        self._next_id = max(self._next_id, number + 1)
        stream = number if request.random_stream is None else request.random_stream
        sampler = self._make_sampler(sampling)
        sampler.backend_ops = self._ops
        return RequestState(
            tokens=list(request.prompt),
            prompt_length=len(request.prompt),
            max_new_tokens=request.max_new_tokens,
            sampler=sampler,
            rng=random_stream(sampling.seed, stream),
            stop_ids=(frozenset() if request.ignore_eos else self._stop_ids) | frozenset(request.stop_token_ids),
            id=number,
            ops=self._ops,
            encoder_input=None if request.input_features is None else EncoderInput(request.input_features),
            constraint=None if request.constraint is None else begun(request.constraint),
            offsets=request.offsets,
            min_tokens=request.min_tokens,
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
            trace=request.trace,
        )

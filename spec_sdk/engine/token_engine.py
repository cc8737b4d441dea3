"""An engine: the plugins of a pipeline at work on prompts, several at once.

Legend: P prompt tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from spec_sdk.contracts.drafter import Drafter
from spec_sdk.contracts.policy import Policy
from spec_sdk.contracts.request import RequestState
from spec_sdk.contracts.sampler import Sampler
from spec_sdk.contracts.sampling_params import SamplingParams
from spec_sdk.contracts.verifier import Verifier
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.engine.turn import Emit, Progress
from spec_sdk.errors import UserError
from spec_sdk.model.session import Session
from spec_sdk.model.step_clock import StepClock
from spec_sdk.ops import Ops

SEED_STRIDE = 1_000_003
"""Distance between the seeds of successive requests, so that prompts of one run draw different numbers."""
TREE_ROOM = 64
"""Rows that a slot has room for besides prompt and answer; a larger tree enlarges the cache when it first comes."""


class Engine:
    """Answers prompts, ``slots`` of them at once; more wait. Requests join and leave between steps.

    ``target``: the session of the model whose output counts. ``make_sampler`` makes the sampler of a request's
    sampling parameters, which are ``sampling`` unless it has its own. ``stop_ids``: tokens that end an answer.
    ``ops``: where rules of acceptance run; the reference's by default.
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
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.verifier = verifier
        self.slots = slots
        self.scheduler = Scheduler(target, drafter, verifier, policy, slots, clock)
        self._make_sampler = make_sampler
        self._sampling = sampling
        self._stop_ids = stop_ids
        self._ops = ops or Ops()
        self._next_id = 0

    def add(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        sampling: SamplingParams | None = None,
        ignore_eos: bool = False,
        request_id: int | None = None,
        emit: Emit = lambda event: None,
    ) -> int:
        """Begin a request with the next step; return its id, which also chooses its random numbers.

        Raises UserError for an empty prompt [P], one that leaves no room in the context, parameters that the verifier
        cannot serve, and an answer that there is no memory for.
        """
        state = self._state(prompt, max_new_tokens, sampling or self._sampling, ignore_eos, request_id)
        self.scheduler.add(state, emit)
        return state.id

    def step(self) -> list[Progress]:
        """Go on with all requests: see :meth:`Scheduler.step`."""
        return self.scheduler.step()

    def cancel(self, request: int) -> None:
        """End a request as ``interrupted``."""
        self.scheduler.cancel(request)

    @property
    def busy(self) -> bool:
        """Whether there are requests that have not ended."""
        return self.scheduler.busy

    def stream(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        sampling: SamplingParams | None = None,
        ignore_eos: bool = False,
        request_id: int | None = None,
        emit: Emit = lambda event: None,
    ) -> Iterator[list[int]]:
        """Answer one prompt; yields its new tokens step by step. Closing the iterator cancels the request.

        Raises what :meth:`add` does.
        """
        state = self._state(prompt, max_new_tokens, sampling or self._sampling, ignore_eos, request_id)
        return self.scheduler.run(state, emit)

    def _state(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        sampling: SamplingParams,
        ignore_eos: bool,
        request_id: int | None,
    ) -> RequestState:
        context = self.target.context
        if not prompt:
            raise UserError("prompt: it is empty")
        if len(prompt) >= context:
            raise UserError(f"prompt: {len(prompt)} tokens do not fit the target's context of {context}")
        self.verifier.guarantee_under(sampling)
        self.target.reserve(self.slots, min(len(prompt) + max_new_tokens, context) + TREE_ROOM)
        number = self._next_id if request_id is None else request_id
        self._next_id = max(self._next_id, number + 1)
        return RequestState(
            tokens=list(prompt),
            prompt_length=len(prompt),
            max_new_tokens=max_new_tokens,
            sampler=self._make_sampler(sampling),
            rng=torch.Generator().manual_seed(sampling.seed + SEED_STRIDE * number),
            stop_ids=frozenset() if ignore_eos else self._stop_ids,
            id=number,
            ops=self._ops,
        )

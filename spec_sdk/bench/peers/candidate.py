"""Another program as a candidate of ``task=bench``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from spec_sdk.bench.candidate import Ask, Candidate, CandidateError, Facts, FinishReason, Measured
from spec_sdk.bench.peers.serving import Request
from spec_sdk.bench.peers.worker import PeerError, Timing, peer_worker


class PeerCandidate(Candidate):
    """A program that runs in a process of its own, which is stopped while it is not asked.

    ``command``: starts its worker. ``draft``: what it drafts with, in words. ``facts``: what is known of it besides
    what the worker says. ``steps_are_groups``: it gives the tokens of a target pass together, so that passes can be
    counted. Raises CandidateError if it cannot be started.
    """

    kind = "peer"

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        draft: str | None = None,
        facts: Mapping[str, Any] | None = None,
        steps_are_groups: bool = True,
    ) -> None:
        super().__init__(name)
        self._draft, self._facts, self._steps_are_groups = draft, dict(facts or {}), steps_are_groups
        with contextlib.ExitStack() as stack:
            try:
                self._worker = stack.enter_context(peer_worker(command))
            except PeerError as error:
                raise CandidateError(str(error)) from error
            self._stack = stack.pop_all()

    def facts(self) -> Facts:
        return Facts(draft=self._draft, facts={**self._facts, **self._worker.facts})

    def answer(self, ask: Ask) -> Measured:
        request = Request(
            tokens=list(ask.tokens),
            new_tokens=ask.new_tokens,
            temperature=ask.temperature,
            seed=ask.seed,
            stop_ids=tuple(sorted(ask.stop_ids)),
            top_k=ask.top_k,
            top_p=ask.top_p,
            min_p=ask.min_p,
            repetition_penalty=ask.repetition_penalty,
        )
        try:
            timing = self._worker.ask(request)
        except PeerError as error:
            raise CandidateError(str(error)) from error
        return self._measured(timing, request)

    def close(self) -> None:
        self._stack.close()

    def _measured(self, timing: Timing, request: Request) -> Measured:
        ended: FinishReason = "stop" if timing.tokens[-1] in request.stop_ids else "length"
        return Measured(
            timing.tokens,
            ended,
            timing.total_s,
            timing.first_s,
            timing.first_tokens,
            steps=timing.groups if self._steps_are_groups else None,
            resident_bytes=timing.peak_bytes,
        )

"""The token cycle: propose, score, verify, commit. Every pipeline is this loop with other plugins in it.

Legend: M model dim, N tree nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from spec_sdk.contracts import Budget, Drafter, Policy, Request, Verdict, Verifier
from spec_sdk.model.session import Scores
from spec_sdk.tree import TokenTree

Emit = Callable[[dict[str, Any]], None]


class Target(Protocol):
    """What the scheduler needs of the model whose output counts (a :class:`Session`, or a table in a test)."""

    @property
    def context(self) -> int: ...

    @property
    def length(self) -> int: ...

    def reset(self) -> None: ...

    def prefill(self, tokens: Sequence[int], hidden_layers: Sequence[int] = ()) -> Mapping[int, torch.Tensor]: ...

    def score(self, tree: TokenTree, hidden_layers: Sequence[int] = ()) -> Scores: ...

    def commit(self, path: Sequence[int]) -> None: ...


class Scheduler:
    """Runs requests, one at a time, to their end.

    ``synchronize`` waits for the device, so that the stage times in the events mean something.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        verifier: Verifier,
        policy: Policy,
        synchronize: Callable[[], None] = lambda: None,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.verifier = verifier
        self.policy = policy
        self._synchronize = synchronize
        self._drafter_started = False

    def run(self, request: Request, emit: Emit, request_id: int = 0) -> Iterator[list[int]]:
        """Yield the new tokens of each cycle. Emits ``request_start``, ``prefill``, ``cycle`` … and ``request_end``.

        Closing the iterator, or an interrupt inside a cycle, ends the request as ``interrupted``: what was yielded or
        told in a cycle event stands.
        """
        about = {"request": request_id}
        emit({"event": "request_start", **about, "prompt_tokens": request.prompt_length})
        finish_reason = "interrupted"
        try:
            prefill = {"event": "prefill", **about, **self._prefill(request)}
            self.policy.observe(prefill)
            emit(prefill)
            while (reason := self._finished(request)) is None:
                cycle = {"event": "cycle", **about, **self._cycle(request)}
                self.policy.observe(cycle)
                emit(cycle)
                yield cycle["tokens"]
            finish_reason = reason
        finally:
            emit({"event": "request_end", **about, "finish_reason": finish_reason})

    def _prefill(self, request: Request) -> dict[str, Any]:
        began = self._clock()
        self.target.reset()
        hidden = self.target.prefill(request.tokens[:-1], self.drafter.hidden_layers)
        drafter_s, prefilled = None, self._clock()
        # hidden states are not kept for later; any other drafter need not be prepared before it is asked
        self._drafter_started = bool(self.drafter.hidden_layers) or self.policy.budget(request).depth > 0
        if self._drafter_started:
            self.drafter.start(request, hidden)
            drafter_s = self._clock() - prefilled
        return {
            "seconds": self._clock() - began,
            "drafter_s": drafter_s,
            "tokens": request.prompt_length - 1,
            "draft": self.drafter.draft_name,
        }

    def _cycle(self, request: Request) -> dict[str, Any]:
        prefix = self.target.length
        began = self._clock()
        depth = self._depth(request)
        tree = self._propose(request, depth)
        drafted = self._clock()
        scores = self.target.score(tree, self.drafter.hidden_layers)
        verdict = self.verifier.verify(tree, scores.logits_NV, request)
        verified = self._clock()
        tokens = clip(verdict, request)
        path = verdict.path[: len(tokens)]
        self.target.commit(path)
        request.tokens.extend(tokens)
        request.step += 1
        if self._drafter_started:
            self.drafter.observe(request, tokens, {layer: h_NM[path] for layer, h_NM in scores.hidden.items()})
        recovered = self._clock()
        report = scores.attention
        return {
            "step": request.step,
            "prefix": prefix,
            "budget": depth,
            "draft_s": drafted - began,
            "verify_s": verified - drafted,
            "recover_s": recovered - verified,
            "tree_nodes": tree.size,
            "drafted": tree.depth,
            "accepted": min(len(verdict.path) - 1, len(tokens)),
            "tokens": tokens,
            "attention": None if report is None else {"hit": list(report.hit), "error": list(report.error)},
        }

    def _depth(self, request: Request) -> int:
        # the last of the remaining tokens is always the target's own, so drafting it would be wasted
        room = min(request.max_new_tokens - request.new_tokens, self.target.context - len(request.tokens)) - 1
        return max(0, min(self.policy.budget(request).depth, room))

    def _propose(self, request: Request, depth: int) -> TokenTree:
        if depth < 1:
            return TokenTree.root_only(request.pending_token)
        if not self._drafter_started:
            self.drafter.start(request)
            self._drafter_started = True
        tree = self.drafter.propose(request, Budget(depth))
        if tree.token_N[0] != request.pending_token or tree.depth > depth:
            raise ValueError(
                f"drafter {self.drafter.name!r} proposed a tree of root {tree.token_N[0]} and depth {tree.depth}; "
                f"the pending token is {request.pending_token} and the budget {depth}"
            )
        return tree

    def _finished(self, request: Request) -> str | None:
        if request.new_tokens and request.tokens[-1] in request.stop_ids:
            return "stop"
        if request.new_tokens >= request.max_new_tokens or len(request.tokens) >= self.target.context:
            return "length"
        return None

    def _clock(self) -> float:
        self._synchronize()
        return time.perf_counter()


def clip(verdict: Verdict, request: Request) -> list[int]:
    """The verdict's tokens up to the first stop token (which is kept) and the request's remaining length."""
    tokens = verdict.tokens[: request.max_new_tokens - request.new_tokens]
    for i, token in enumerate(tokens):
        if token in request.stop_ids:
            return tokens[: i + 1]
    return tokens

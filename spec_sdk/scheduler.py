"""The token cycle: propose, score, verify, commit. Every pipeline is this loop with other plugins in it.

Legend: M model dim, N tree nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from spec_sdk.contracts import Budget, Drafter, Policy, Request, Verdict, Verifier
from spec_sdk.errors import UnusableLogits, UserError
from spec_sdk.model.session import Scores
from spec_sdk.tree import TokenTree

HALF_PRECISION = "float16 overflows where bfloat16 and float32 do not: model.dtype"
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

    def run(self, request: Request, emit: Emit, request_id: int = 0) -> Iterator[list[int]]:
        """Yield the new tokens of each cycle. Emits ``request_start``, ``prefill``, ``cycle`` … and ``request_end``.

        Closing the iterator, or an interrupt inside a cycle, ends the request as ``interrupted``: what was yielded or
        told in a cycle event stands.
        """
        about = {"request": request_id}
        emit({"event": "request_start", **about, "prompt_tokens": request.prompt_length})
        finish_reason = "interrupted"
        try:
            emit({"event": "prefill", **about, "seconds": self._prefill(request)})
            while (reason := self._finished(request)) is None:
                cycle = {"event": "cycle", **about, **self._cycle(request)}
                self.policy.observe(cycle)
                emit(cycle)
                yield cycle["tokens"]
            finish_reason = reason
        finally:
            emit({"event": "request_end", **about, "finish_reason": finish_reason})

    def _prefill(self, request: Request) -> float:
        began = self._clock()
        self.target.reset()
        hidden = self.target.prefill(request.tokens[:-1], self.drafter.hidden_layers)
        self.drafter.start(request, hidden)
        return self._clock() - began

    def _cycle(self, request: Request) -> dict[str, Any]:
        prefix = self.target.length
        began = self._clock()
        tree = self._propose(request)
        drafted = self._clock()
        scores = self.target.score(tree, self.drafter.hidden_layers)
        try:
            verdict = self.verifier.verify(tree, penalised(scores.logits_NV, tree, request), request)
        except UnusableLogits as error:
            raise UserError(f"step {request.step + 1}, target: {error} (row = tree node; {HALF_PRECISION})") from error
        verified = self._clock()
        tokens = clip(verdict, request)
        path = verdict.path[: len(tokens)]
        self.target.commit(path)
        request.tokens.extend(tokens)
        request.step += 1
        self.drafter.observe(request, tokens, {layer: h_NM[path] for layer, h_NM in scores.hidden.items()})
        recovered = self._clock()
        report = scores.attention
        return {
            "step": request.step,
            "prefix": prefix,
            "draft_s": drafted - began,
            "verify_s": verified - drafted,
            "recover_s": recovered - verified,
            "tree_nodes": tree.size,
            "drafted": tree.depth,
            "accepted": min(len(verdict.path) - 1, len(tokens)),
            "tokens": tokens,
            "attention": None if report is None else {"hit": list(report.hit), "error": list(report.error)},
        }

    def _propose(self, request: Request) -> TokenTree:
        # the last of the remaining tokens is always the target's own, so drafting it would be wasted
        room = min(request.max_new_tokens - request.new_tokens, self.target.context - len(request.tokens)) - 1
        granted = self.policy.budget(request)
        budget = Budget(min(granted.depth, granted.nodes - 1, room), granted.nodes)
        if budget.depth < 1:
            return TokenTree.root_only(request.pending_token)
        try:
            tree = self.drafter.propose(request, budget)
        except UnusableLogits as error:
            raise UserError(f"step {request.step + 1}, drafter {self.drafter.name!r}: {error}") from error
        if fault := _fault(tree, request.pending_token, budget):
            raise ValueError(f"drafter {self.drafter.name!r}: {fault}")
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


def _fault(tree: TokenTree, pending_token: int, budget: Budget) -> str | None:
    """What makes a proposed tree unusable, naming the node; None if nothing does."""
    if tree.token_N[0] != pending_token:
        return f"tree node 0 is token {tree.token_N[0]}, the pending token is {pending_token}"
    if tree.depth > budget.depth:
        node = next(i for i, depth in enumerate(tree.depth_N) if depth > budget.depth)
        return f"tree node {node} has depth {tree.depth_N[node]}, the budget is a depth of {budget.depth}"
    if tree.size > budget.nodes:
        return f"tree node {budget.nodes}: the tree has {tree.size} nodes, the budget is {budget.nodes} with the root"
    return None


def penalised(logits_NV: torch.Tensor, tree: TokenTree, request: Request) -> torch.Tensor:
    """The target's logits of a tree with the repetition penalty, written into ``logits_NV``: one path per node."""
    if request.sampler.params.repetition_penalty == 1:
        return logits_NV
    paths: list[list[int]] = [[]]
    for node in range(1, tree.size):
        paths.append([*paths[tree.parent_N[node]], tree.token_N[node]])
    return request.sampler.penalise(logits_NV, request.tokens, paths)


def clip(verdict: Verdict, request: Request) -> list[int]:
    """The verdict's tokens up to the first stop token (which is kept) and the request's remaining length."""
    tokens = verdict.tokens[: request.max_new_tokens - request.new_tokens]
    for i, token in enumerate(tokens):
        if token in request.stop_ids:
            return tokens[: i + 1]
    return tokens

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
from spec_sdk.ranks import ALONE, Ranks
from spec_sdk.tree import TokenTree, TreeBuilder

STOPPED = -1
"""In the place of a budget's depth: the leader's caller wants no more."""

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

    ``synchronize`` waits for the device, so that the stage times in the events mean something. Over several ``ranks``
    every one of them runs this loop; the leader decides budget, tree, verdict and stop.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        verifier: Verifier,
        policy: Policy,
        synchronize: Callable[[], None] = lambda: None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.verifier = verifier
        self.policy = policy
        self.ranks = ranks
        self._synchronize = synchronize
        self._drafts = ranks.is_leader or drafter.every_rank
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
                report = self._cycle(request)
                if report is None:
                    return
                cycle = {"event": "cycle", **about, **report}
                self.policy.observe(cycle)
                emit(cycle)
                try:
                    yield cycle["tokens"]
                except GeneratorExit:
                    # the other ranks wait for the next budget here, unless this was the last cycle
                    if self._finished(request) is None:
                        self.ranks.decide(lambda: (STOPPED, 0))
                    raise
            finish_reason = reason
        finally:
            emit({"event": "request_end", **about, "finish_reason": finish_reason})

    def _prefill(self, request: Request) -> dict[str, Any]:
        began = self._clock()
        self.target.reset()
        hidden = self.target.prefill(request.tokens[:-1], self.drafter.hidden_layers)
        drafter_s, prefilled = None, self._clock()
        # hidden states are not kept for later; any other drafter need not be prepared before it is asked
        wanted = self.ranks.decide(lambda: bool(self.drafter.hidden_layers) or self.policy.budget(request).depth > 0)
        self._drafter_started = False
        if wanted and self._drafts:
            self._start_drafter(request, hidden)
            drafter_s = self._clock() - prefilled
        return {
            "seconds": self._clock() - began,
            "drafter_s": drafter_s,
            "tokens": request.prompt_length - 1,
            "draft": self.drafter.draft_name,
        }

    def _start_drafter(self, request: Request, hidden: Mapping[int, torch.Tensor] | None = None) -> None:
        with self.drafter.leader_alone(self.ranks):
            self.drafter.start(request, hidden)
        self._drafter_started = True

    def _cycle(self, request: Request) -> dict[str, Any] | None:
        """The report of one cycle; None if the leader was stopped before it."""
        prefix = self.target.length
        began = self._clock()
        depth, nodes = self.ranks.decide(lambda: self._budget(request))
        if depth == STOPPED:
            return None
        tree = self._propose(request, Budget(depth, nodes))
        drafted = self._clock()
        scores = self.target.score(tree, self.drafter.hidden_layers)
        scored = self._clock()
        verdict = self._verify(tree, scores, request)
        verified = self._clock()
        tokens = clip(verdict, request)
        path = verdict.path[: len(tokens)]
        self.target.commit(path)
        request.tokens.extend(tokens)
        request.step += 1
        if self._drafter_started:
            with self.drafter.leader_alone(self.ranks):
                self.drafter.observe(request, tokens, {layer: h_NM[path] for layer, h_NM in scores.hidden.items()})
        recovered = self._clock()
        report = scores.attention
        return {
            "step": request.step,
            "prefix": prefix,
            "budget": depth,
            "draft_s": drafted - began,
            "verify_s": verified - drafted,
            "verdict_s": verified - scored,
            "recover_s": recovered - verified,
            "tree_nodes": tree.size,
            "drafted": tree.depth,
            "accepted": min(len(verdict.path) - 1, len(tokens)),
            "tokens": tokens,
            "attention": None if report is None else report.event(),
        }

    def _budget(self, request: Request) -> tuple[int, int]:
        """Depth and nodes that the policy grants and the request has room for."""
        # the last of the remaining tokens is always the target's own, so drafting it would be wasted
        room = min(request.max_new_tokens - request.new_tokens, self.target.context - len(request.tokens)) - 1
        granted = self.policy.budget(request)
        return max(0, min(granted.depth, granted.nodes - 1, room)), granted.nodes

    def _propose(self, request: Request, budget: Budget) -> TokenTree:
        if budget.depth == 0:
            return TokenTree.root_only(request.pending_token)
        tree = self._draft(request, budget) if self._drafts else None
        if self.ranks.size == 1:
            assert tree is not None
            return tree
        # the draws are for the verifier, which runs on the leader alone
        token_N, parent_N = self.ranks.decide(lambda: [tree.token_N, tree.parent_N] if tree else [])
        return tree if tree and self.ranks.is_leader else told_tree(token_N, parent_N)

    def _draft(self, request: Request, budget: Budget) -> TokenTree:
        if not self._drafter_started:
            self._start_drafter(request)
        try:
            with self.drafter.leader_alone(self.ranks):
                tree = self.drafter.propose(request, budget)
        except UnusableLogits as error:
            raise UserError(f"step {request.step + 1}, drafter {self.drafter.name!r}: {error}") from error
        # what other ranks grow is the part of the leader's tree that they feed, and no proposal
        if self.ranks.is_leader and (fault := _fault(tree, request.pending_token, budget)):
            raise ValueError(f"drafter {self.drafter.name!r}: {fault}")
        return tree

    def _verify(self, tree: TokenTree, scores: Scores, request: Request) -> Verdict:
        verdict = self._decide(tree, scores, request) if self.ranks.is_leader else None
        if self.ranks.size == 1:
            assert verdict is not None
            return verdict
        decided = self.ranks.decide(lambda: [*verdict.path, verdict.next_token] if verdict else [])
        return verdict or Verdict(decided[:-1], decided[-1], tree)

    def _decide(self, tree: TokenTree, scores: Scores, request: Request) -> Verdict:
        try:
            return self.verifier.verify(tree, penalised(scores.logits_NV, tree, request), request)
        except UnusableLogits as error:
            raise UserError(f"step {request.step + 1}, target: {error} (row = tree node; {HALF_PRECISION})") from error

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


def told_tree(token_N: Sequence[int], parent_N: Sequence[int]) -> TokenTree:
    """The tree of these nodes, in pre-order, without what only a verifier needs to know of it."""
    tree = TreeBuilder(token_N[0])
    for token, parent in zip(token_N[1:], parent_N[1:], strict=True):
        tree.add(parent, token, "chosen")
    return tree.build().tree


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

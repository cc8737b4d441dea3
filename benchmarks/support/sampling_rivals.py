"""One verification step on a chain, by every method that the sampling benchmarks compare, from the same inputs.

A step begins where drafting ends: γ tokens are drawn, with what drawing them left behind, and both models' logits are
there. It ends with tokens on the host. What drawing leaves: ``reference`` has made the distribution of every row and
keeps it, ``exact`` and ``sigmoid`` keep the logits and each drawn token's q, as ``draw_from`` does in a pipeline.
transformers' function and the published methods keep the logits and work q out in the step, as they are written.

Legend: G = γ drafted tokens, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.support.device_ops import command_line_ops
from benchmarks.support.published_sampling import Decide, compiled, decider, sigmoid_matrices, softmax_matrices
from spec_sdk.contracts import Request, Sampler, SamplingParams
from spec_sdk.contracts.request import RequestState
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_samplers.sigmoid import SigmoidSampler
from spec_sdk_verifiers.chain_rejection import ChainRejection

TRANSFORMERS = "transformers"
PUBLISHED_EXACT, PUBLISHED_SIGMOID = "published exact", "published sigmoid"
COMPILED_SIGMOID = "published sigmoid, compiled"
IN_TORCH = "exact, in torch"
OURS: dict[str, Callable[[SamplingParams], Sampler]] = {
    "reference": partial(ReferenceSampler, None),
    "exact": partial(ExactSampler, None),
    IN_TORCH: partial(ExactSampler, ExactConfig("torch")),
    "sigmoid": partial(SigmoidSampler, None),
}
RIVALS = (TRANSFORMERS, *OURS, PUBLISHED_EXACT, PUBLISHED_SIGMOID)


@dataclass(frozen=True)
class Step:
    """Draft logits [γ, V], target logits [γ + 1, V] on one device; the drawn tokens and their draft probabilities."""

    draft_GV: torch.Tensor
    target_GV1: torch.Tensor
    tokens: list[int]
    q_G: list[float]

    @property
    def gamma(self) -> int:
        return len(self.tokens)

    def tree(self, sampler: Sampler) -> TokenTree:
        """The chain as a drafter with this sampler hands it over."""
        tree, node = TreeBuilder(0), 0
        for row_V, token, q in zip(self.draft_GV, self.tokens, self.q_G, strict=True):
            distribution = sampler.distribution(row_V)
            if isinstance(sampler, ExactSampler):
                distribution.known = {token: q}
            else:
                assert distribution.q_V is not None
            node = tree.add(node, token, "with_replacement", distribution)
        return tree.build().tree

    def needed_bytes(self, accepted: int) -> int:
        """The rows that a step without loss must read whole, once: the target's of visited nodes, and of a rejected
        token the draft's. q of drawn tokens is known from drawing them.
        """
        rows = accepted + 1 + (accepted < self.gamma)
        return rows * self.target_GV1.shape[1] * self.target_GV1.element_size()


def by_transformers() -> Decide:
    """``_speculative_sampling``, and the reading of what it decided."""
    from transformers.generation.utils import _speculative_sampling

    # older versions ask whether the draft ended its answer
    asked = "is_done_candidate" in inspect.signature(_speculative_sampling).parameters
    more: dict[str, Any] = {"is_done_candidate": False} if asked else {}

    def decide(ids: torch.Tensor, draft_GV: torch.Tensor, target_GV1: torch.Tensor) -> list[int]:
        tokens, _ = _speculative_sampling(ids, draft_GV[None], ids.shape[1], target_GV1[None], **more)
        decided: list[int] = tokens[0].tolist()
        return decided

    return decide


def functions(compiled_for: torch.device | None) -> dict[str, Decide]:
    """The methods that are functions of both models' logits; the compiled one if asked for, and only if it compiles.

    One that fails on a small step is left out, with a line that says why.
    """
    made: dict[str, Decide] = {}
    device = compiled_for or torch.device("cpu")
    makers: dict[str, Callable[[], Decide]] = {
        TRANSFORMERS: by_transformers,
        PUBLISHED_EXACT: partial(decider, softmax_matrices),
        PUBLISHED_SIGMOID: partial(decider, sigmoid_matrices),
    }
    for name, make in makers.items():
        try:
            decide = make()
            decide(torch.tensor([[0]], device=device), torch.zeros((1, 4), device=device), torch.zeros(2, 4).to(device))
        except Exception as error:
            print(f"left out: {name}: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
        else:
            made[name] = decide
    kernel = None if compiled_for is None else compiled(sigmoid_matrices, compiled_for)
    return made if kernel is None else {**made, COMPILED_SIGMOID: decider(kernel)}


def request_of(step: Step, sampler: Sampler, seed: int) -> Request:
    """A request on the operations of the device that the step's logits lie on."""
    rng, ops = torch.Generator().manual_seed(seed), command_line_ops(step.target_GV1.device)
    # as the pass before a verdict does: threads are told how to wait
    ops.before_pass()
    return RequestState([0], 1, 1 << 30, sampler, rng, ops=ops).view


Stepper = Callable[[int, int], list[int]]
"""``stepper(i, seed)`` decides step i by one method and returns the tokens that it emits."""


def stepper(name: str, steps: Sequence[Step], params: SamplingParams, known: dict[str, Decide]) -> Stepper:
    """``name`` of RIVALS. Ours take the same random numbers for the same seed; the others torch's own."""
    if name in OURS:
        sampler = OURS[name](params)
        trees, verifier = [step.tree(sampler) for step in steps], ChainRejection(None)

        def verify(step: int, seed: int) -> list[int]:
            return verifier.verify_one(
                trees[step], steps[step].target_GV1, request_of(steps[step], sampler, seed)
            ).tokens

        return verify
    decide = known[name]
    ids = [torch.tensor([step.tokens], device=step.draft_GV.device) for step in steps]
    return lambda step, seed: decide(ids[step], steps[step].draft_GV, steps[step].target_GV1)


def whole_step(name: str, step: Step, params: SamplingParams, known: dict[str, Decide]) -> Callable[[], object]:
    """For memory: a method that was never used, with the drawing of the tokens where that leaves rows behind."""
    if name not in OURS:
        one = stepper(name, [step], params, known)
        return lambda: one(0, 0)
    sampler = OURS[name](params)
    sampler.backend_ops = command_line_ops(step.draft_GV.device)

    def draw_and_verify() -> object:
        for row_V in step.draft_GV if isinstance(sampler, ExactSampler) else ():
            sampler.draw_from(sampler.distribution(row_V), 0.5)
        return ChainRejection(None).verify_one(step.tree(sampler), step.target_GV1, request_of(step, sampler, 0)).tokens

    return draw_and_verify

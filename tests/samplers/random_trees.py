"""Random verification steps on trees with branches, and what float64 allows as their answer.

Legend: N tree nodes, S draft distributions, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from spec_sdk.contracts import Sampler, SamplingParams
from spec_sdk.ops import without
from spec_sdk.tree import DraftDistribution, DrawKind, TokenTree, TreeBuilder
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.multi_step import MultiStep
from tests.samplers.random_cases import BORDER, KINDS, SAMPLINGS, VOCABULARIES, Given, distribution64

WAYS = ("with_replacement", "without_replacement", "chosen", "mixed", "wide")
DRAFT_NOISE = {"near": 0.3, "equal": 0.0}


@dataclass(frozen=True)
class Planned:
    """One draw: ``distribution`` counts rows of the draft; ``given``: that distribution comes as probabilities."""

    parent: int
    token: int
    kind: DrawKind
    distribution: int = -1
    given: bool = False


@dataclass(frozen=True)
class TreeCase:
    """B trees over one vocabulary. ``target_BNV``: rows in tree order. ``way``: how their draws were made."""

    way: str
    plan_B: list[list[Planned]]
    target_BNV: list[torch.Tensor]
    draft_BSV: list[list[torch.Tensor]]
    uniform_BD: list[torch.Tensor]
    params: SamplingParams

    def distributions(self, b: int, sampler: Sampler) -> dict[tuple[int, bool], DraftDistribution | torch.Tensor]:
        """The distributions of tree ``b`` by number and by whether they come as probabilities."""
        distributions: dict[tuple[int, bool], DraftDistribution | torch.Tensor] = {}
        for draw in self.plan_B[b]:
            if draw.kind != "chosen" and (draw.distribution, draw.given) not in distributions:
                row_V = self.draft_BSV[b][draw.distribution]
                distributions[draw.distribution, draw.given] = (
                    ReferenceSampler(None, self.params).probabilities(row_V[None])[0]
                    if draw.given
                    else sampler.distribution(row_V)
                )
        return distributions

    def tree(self, b: int, distributions: dict[tuple[int, bool], DraftDistribution | torch.Tensor]) -> TokenTree:
        builder = TreeBuilder(0)
        for draw in self.plan_B[b]:
            sequence = draw.distribution if draw.kind == "without_replacement" else None
            builder.add(
                draw.parent,
                draw.token,
                draw.kind,
                distributions.get((draw.distribution, draw.given)),
                sequence=sequence,
            )
        return builder.build().tree

    def answer(self, b: int, sampler: Sampler) -> list[int]:
        """The tokens that the step emits, with the case's own random numbers."""
        request = Given.of(sampler, self.uniform_BD[b])
        return (
            MultiStep(None).verify_one(self.tree(b, self.distributions(b, sampler)), self.target_BNV[b], request).tokens
        )

    def answers(self, sampler: Sampler) -> list[list[int]]:
        return [self.answer(b, sampler) for b in range(len(self.plan_B))]


def make_tree_case(seed: int, most_elements: int, largest: int = VOCABULARIES[-1]) -> TreeCase:
    """The case of this number: another vocabulary, shape, batch, dtype, way of drawing, distribution, sampling."""
    choose = random.Random(seed)
    rng = torch.Generator().manual_seed(seed)
    V = choose.choice([size for size in VOCABULARIES if size <= largest])
    nodes = max(2, min(choose.randint(2, 24), most_elements // (2 * V)))
    batch = choose.choice((1, 1, 2, 4)) if nodes * V * 8 <= most_elements else 1
    kind, dtype = choose.choice(KINDS), choose.choice((torch.float32, torch.bfloat16, torch.float16))
    params, way = choose.choice(SAMPLINGS), choose.choice(WAYS)
    spread = choose.choice((0.5, 2.0, 4.0))

    def rows() -> tuple[torch.Tensor, Callable[[], torch.Tensor]]:
        base = spread * torch.randn(V, generator=rng)

        def draft() -> torch.Tensor:
            row = base + DRAFT_NOISE.get(kind, 1.5) * torch.randn(V, generator=rng)
            if kind == "ruled out":
                row[torch.rand(V, generator=rng) < 0.3] = float("-inf")
                row[:8] = 1.0
            if kind == "disjoint":
                row[1::2] = float("-inf")
            if kind == "one-hot":
                row[choose.choice((V // 3, V // 2))] = 200.0
            return row.to(dtype)

        target = base.clone()
        if kind == "ruled out":
            target[torch.rand(V, generator=rng) < 0.3] = float("-inf")
            target[0] = 1.0
        if kind == "disjoint":
            target[::2] = float("-inf")
        if kind == "one-hot":
            target[V // 3] = 200.0
        return target.to(dtype), draft

    plans, targets, drafts, uniforms = [], [], [], []
    for _ in range(batch):
        plan, target_NV, draft_SV = _grow(choose, rng, nodes, way, params, rows)
        plans.append(plan)
        targets.append(target_NV)
        drafts.append(draft_SV)
        uniforms.append(torch.rand(len(plan) + 1, generator=rng, dtype=torch.float64))
    return TreeCase(way, plans, targets, drafts, uniforms, params)


def _grow(
    choose: random.Random,
    rng: torch.Generator,
    nodes: int,
    way: str,
    params: SamplingParams,
    rows: Callable[[], tuple[torch.Tensor, Callable[[], torch.Tensor]]],
) -> tuple[list[Planned], torch.Tensor, list[torch.Tensor]]:
    """A tree drawn as honestly as a drafter draws: the plan, the target's rows in tree order, the draft's rows."""
    reference = ReferenceSampler(None, params)
    builder, plan, draft_SV = TreeBuilder(0), list[Planned](), list[torch.Tensor]()
    target_SV: list[torch.Tensor] = []
    for parent in range(nodes):
        if parent >= builder.size:
            break
        target_V, draft = rows()
        target_SV.append(target_V)
        left = 8 if way == "wide" else choose.choice((1, 2, 3, 4))
        while left > 0 and builder.size < nodes:
            count = min(left, choose.choice((1, 2, 3)) if way == "mixed" else left)
            left -= count
            kind: DrawKind = "without_replacement"
            if way in ("with_replacement", "chosen") or (way == "mixed" and choose.random() < 0.6):
                kind = "chosen" if way == "chosen" or (way == "mixed" and choose.random() < 0.5) else "with_replacement"
            if kind == "chosen":
                likely = reference.probabilities(target_V[None])[0].topk(min(6, target_V.shape[0])).indices.tolist()
                for token in choose.sample(likely, count):
                    builder.add(parent, token, kind)
                    plan.append(Planned(parent, token, kind))
                continue
            draft_SV.append(draft())
            given = choose.random() < 0.3
            q_V = left_V = reference.probabilities(draft_SV[-1][None])[0]
            for _ in range(count):
                token = reference.draw(left_V, rng)
                sequence = len(draft_SV) - 1 if kind == "without_replacement" else None
                builder.add(parent, token, kind, q_V, sequence=sequence)
                plan.append(Planned(parent, token, kind, len(draft_SV) - 1, given))
                if kind == "without_replacement":
                    left_V = without(left_V, token)
                    if left_V[token] > 0:
                        # there was no other token
                        break
    while len(target_SV) < builder.size:
        target_SV.append(rows()[0])
    built = builder.build()
    order = sorted(range(builder.size), key=lambda slot: built.preorder[slot])
    return plan, torch.stack([target_SV[slot] for slot in order]), draft_SV


def is_allowed(case: TreeCase, b: int, answer: list[int]) -> bool:
    """Whether float64 gives ``answer``, or would if decisions within BORDER of their threshold fell the other way.

    After rejections what is left of p is divided by its sum, and its rounding with it: so is BORDER.
    """
    sampler = ReferenceSampler(None, case.params)
    distributions = case.distributions(b, sampler)
    row_of = {distribution: case.draft_BSV[b][number] for (number, _), distribution in distributions.items()}
    tree, uniforms = case.tree(b, distributions), case.uniform_BD[b].tolist()
    first_N = tree.first_draw_N1

    def follows(node: int, rest: list[int]) -> bool:
        p_V, near = distribution64(case.target_BNV[b][node], case.params)
        scale, left = 1.0, dict[int | None, torch.Tensor]()
        if near:
            return True
        for i, draw in enumerate(tree.draws_N[node]):
            token, u, q = tree.token_N[draw.node], uniforms[first_N[node] + i], 1.0
            if draw.source is not None:
                q_V, near = distribution64(row_of[draw.source], case.params)
                if near:
                    return True
                q_V = left.get(draw.sequence, q_V)
                q = float(q_V[token])
            margin = BORDER * max(q, BORDER) / max(scale, BORDER)
            gap = u * q - float(p_V[token])
            if gap < margin and len(rest) > 1 and rest[0] == token and follows(draw.node, rest[1:]):
                return True
            if gap < -margin:
                return False
            mass_V = (p_V - q_V).clamp_min(0) if draw.source is not None else p_V.clone()
            if draw.source is None:
                mass_V[token] = 0
            mass = float(mass_V.sum())
            if mass < BORDER:
                # all that is left is rounding
                return True
            p_V, scale = mass_V / mass, scale * mass
            if draw.sequence is not None:
                rest_V = q_V.clone()
                rest_V[token] = 0
                left[draw.sequence] = rest_V / rest_V.sum() if rest_V.any() else q_V
        if len(rest) != 1:
            return False
        cdf_V, border = p_V.cumsum(0), BORDER / max(scale, BORDER)
        begins = float(cdf_V[rest[0] - 1]) if rest[0] else 0.0
        return begins - border < uniforms[-1] < float(cdf_V[rest[0]]) + border

    return follows(0, answer)

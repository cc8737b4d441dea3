"""Random verification steps, and what float64 says of a token on which two samplers differ.

Legend: B sequences, G = γ drafted tokens, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.contracts import Request, RequestState, Sampler, SamplingParams
from spec_sdk.ops import Decision, Ops, ScoredTree, read_decisions
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.multi_step import MultiStep

BORDER = 1e-6
"""How near a decision must lie to its threshold for rounding to be excused, in probability."""
VOCABULARIES = (32, 33, 257, 1000, 1025, 4099, 32_000, 49_152, 50_257, 128_256, 262_144)
KINDS = ("near", "far", "equal", "disjoint", "one-hot", "ruled out")
SAMPLINGS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.5, top_k=40),
    SamplingParams(temperature=1.0, top_p=0.9),
    SamplingParams(temperature=0.9, min_p=0.05),
    SamplingParams(temperature=1.2, top_k=50, top_p=0.95, min_p=0.01),
)


@dataclass(frozen=True)
class Case:
    """B verification steps over chains. ``kind_BG``: chosen or drawn, per token."""

    target_BRV: torch.Tensor
    draft_BGV: torch.Tensor
    token_BG: list[list[int]]
    chosen_BG: list[list[bool]]
    uniform_BR: torch.Tensor
    params: SamplingParams

    def trees(self, sampler: Sampler) -> list[TokenTree]:
        trees = []
        for b, tokens in enumerate(self.token_BG):
            tree, node = TreeBuilder(0), 0
            for i, token in enumerate(tokens):
                if self.chosen_BG[b][i]:
                    node = tree.add(node, token, "chosen")
                else:
                    node = tree.add(node, token, "with_replacement", sampler.distribution(self.draft_BGV[b, i]))
            trees.append(tree.build().tree)
        return trees

    def answers(self, sampler: Sampler) -> list[list[int]]:
        """The tokens that each sequence's step emits, with the case's own random numbers."""
        answers = []
        for b, tree in enumerate(self.trees(sampler)):
            request = Given.of(sampler, self.uniform_BR[b])
            answers.append(MultiStep(None).verify_one(tree, self.target_BRV[b], request).tokens)
        return answers


class Given(Request):
    """A request whose next random numbers are given."""

    uniform_D: torch.Tensor

    @staticmethod
    def of(sampler: Sampler, uniform_D: torch.Tensor) -> Given:
        """Of a prompt of one token."""
        given = Given(RequestState([0], 1, 99, sampler, torch.Generator(), ops=Ops()))
        object.__setattr__(given, "uniform_D", uniform_D)
        return given

    def uniforms(self, count: int) -> list[float]:
        assert self.uniform_D.shape[0] == count
        numbers: list[float] = self.uniform_D.tolist()
        return numbers


def accepted(sampler: Sampler, tree: TokenTree, logits_NV: torch.Tensor, uniforms: Sequence[float]) -> Decision:
    """Accepted path and next token by ``multi_step``, on the operations that the sampler asks for."""
    ops = sampler.ops or Ops()
    scored = ScoredTree(tree, sampler.rows(tree, logits_NV), lambda count: uniforms)
    (decision,) = read_decisions(ops.accept("multi_step", [scored]))
    if isinstance(decision, Exception):
        raise decision
    return decision


def make_case(seed: int, most_elements: int, largest: int = VOCABULARIES[-1]) -> Case:
    """The case of this number: every number is another vocabulary, γ, batch, dtype, kind of distribution, sampling."""
    choose = random.Random(seed)
    rng = torch.Generator().manual_seed(seed)
    V = choose.choice([size for size in VOCABULARIES if size <= largest])
    gamma = max(1, min(choose.randint(1, 20), most_elements // (2 * V)))
    batch = max(1, min(choose.choice((1, 1, 2, 8, 64)), most_elements // (2 * V * gamma)))
    kind, dtype = choose.choice(KINDS), choose.choice((torch.float32, torch.bfloat16, torch.float16))
    params = choose.choice(SAMPLINGS)
    target = choose.choice((0.5, 2.0, 4.0)) * torch.randn((batch, gamma + 1, V), generator=rng)
    draft = target[:, :gamma] + {"near": 0.3, "equal": 0.0}.get(kind, 1.5) * torch.randn(
        (batch, gamma, V), generator=rng
    )
    if kind == "ruled out":
        target[torch.rand(target.shape, generator=rng) < 0.3] = float("-inf")
        draft[torch.rand(draft.shape, generator=rng) < 0.3] = float("-inf")
        target[..., 0], draft[..., 1] = 1.0, 1.0
    if kind == "disjoint":
        target[..., ::2], draft[..., 1::2] = float("-inf"), float("-inf")
    if kind == "one-hot":
        target[..., V // 3] = 200.0
        draft[..., choose.choice((V // 3, V // 2))] = 200.0
    target, draft = target.to(dtype), draft.to(dtype)
    reference = ReferenceSampler(None, params)
    q = reference.probabilities(draft.reshape(-1, V)).reshape(draft.shape)
    tokens = [[reference.draw(q_V, rng) for q_V in q_GV] for q_GV in q]
    chosen = [[choose.random() < 0.15 for _ in range(gamma)] for _ in range(batch)]
    uniform = torch.rand((batch, gamma + 1), generator=rng, dtype=torch.float64)
    return Case(target, draft, tokens, chosen, uniform, params)


def seeds_of(vocabulary: int, count: int) -> list[int]:
    """Numbers below ``count`` whose :func:`make_case` (or tree case) has this one of VOCABULARIES."""
    return [seed for seed in range(count) if random.Random(seed).choice(VOCABULARIES) == vocabulary]


def is_at_a_border(case: Case, b: int, first: list[int], second: list[int]) -> bool:
    """Whether in float64 the first decision on which two answers differ lies within BORDER of its threshold."""
    same = next(i for i, (x, y) in enumerate(zip(first, second, strict=False)) if x != y)
    drafted = case.token_BG[b]
    distributions, near = zip(*(distribution64(row_V, case.params) for row_V in case.target_BRV[b]), strict=True)
    q_distributions, q_near = zip(*(distribution64(row_V, case.params) for row_V in case.draft_BGV[b]), strict=True)
    if near[same] or (same < len(drafted) and q_near[same]):
        return True
    # the draw at the first difference was accepted by one and rejected by the other, or both drew differently
    if same < len(drafted):
        token, u = drafted[same], float(case.uniform_BR[b, same])
        p, q = (
            float(distributions[same][token]),
            1.0 if case.chosen_BG[b][same] else float(q_distributions[same][token]),
        )
        if abs(u * q - p) < BORDER * max(q, BORDER):
            return True
    rest_V = distributions[same]
    if same < len(drafted):
        rest_V = rest_V.clone()
        if case.chosen_BG[b][same]:
            rest_V[drafted[same]] = 0
        else:
            rest_V = (rest_V - q_distributions[same]).clamp_min(0)
    cdf_V = rest_V.cumsum(0)
    goal = float(case.uniform_BR[b, -1] * cdf_V[-1])
    for token in (first[same], second[same]):
        begins, ends = float(cdf_V[token - 1]) if token else 0.0, float(cdf_V[token])
        if not begins - BORDER < goal < ends + BORDER:
            return False
    return True


def distribution64(logits_V: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, bool]:
    """The distribution in float64, and whether a filter's border is near one."""
    score_V = logits_V.double()
    score_V = (score_V - score_V.max()) / params.temperature
    near = False
    if 0 < params.top_k < score_V.shape[0]:
        score_V = score_V.masked_fill(score_V < score_V.topk(params.top_k).values[-1], float("-inf"))
    p_V = score_V.softmax(-1)
    if params.top_p < 1:
        order_V = p_V.argsort(descending=True, stable=True)
        before_V = p_V[order_V].cumsum(0) - p_V[order_V]
        near |= bool(((before_V - params.top_p).abs() < BORDER).any())
        p_V[order_V[before_V >= params.top_p]] = 0
    if params.min_p > 0:
        least = params.min_p * p_V.max()
        near |= bool(((p_V - least).abs() < BORDER * least).any())
        p_V = p_V.masked_fill(p_V < least, 0)
    return p_V / p_V.sum(), near

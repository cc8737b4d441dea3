"""Typical acceptance (Medusa, Cai et al. 2024): keep what the target finds plausible. Relaxed.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from spec_sdk.contracts import Request, Verdict, Verifier
from spec_sdk.errors import UserError
from spec_sdk.tree import TokenTree
from spec_sdk_verifiers.laws import target_law


@dataclass
class TypicalConfig:
    """``epsilon``: a probability above which a token is always kept.
    ``delta``: the threshold at entropy 0, which falls with the entropy.

    Both lie in [0, 1]; larger values keep less. The defaults are those of the authors' code, which calls them
    ``posterior_threshold`` and ``posterior_alpha`` and recommends α = √threshold.
    """

    epsilon: float = 0.09
    delta: float = 0.3


class Typical(Verifier):
    """Accepts a child x if p(x) > min(epsilon, delta · exp(−H(p))), H in nats, and keeps the longest accepted path.

    Of several longest paths it keeps the one of larger probability. The next token is drawn from the target's law. At
    temperature 0, where that law has one token only, children are judged by the softmax of the logits as they stand;
    Medusa itself turns greedy there (its §2.3.1), which ``greedy`` does.
    """

    name = "typical"
    Config = TypicalConfig
    config: TypicalConfig
    guarantee = "relaxed"

    def __init__(self, config: TypicalConfig) -> None:
        for option in ("epsilon", "delta"):
            value = getattr(config, option)
            if not 0 <= value <= 1:
                raise UserError(f"verifier.{option}: {value} must lie between 0 and 1")
        super().__init__(config)

    def verify(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        sampler = request.sampler
        laws: dict[int, torch.Tensor] = {}
        score = {0: 0.0}
        # pre-order: a parent is judged before its children
        for node in range(1, tree.size):
            parent = tree.parent_N[node]
            if parent not in score:
                continue
            if parent not in laws:
                laws[parent] = (
                    torch.softmax(logits_NV[parent].float(), -1).cpu()
                    if sampler.greedy
                    else target_law(sampler, logits_NV, parent)
                )
            p = float(laws[parent][tree.token_N[node]])
            if p > self._threshold(laws[parent]):
                score[node] = score[parent] + math.log(p)
        last = max(score, key=lambda node: (tree.depth_N[node], score[node]))
        if sampler.greedy:
            next_token = sampler.choices(logits_NV[last : last + 1])[0]
        else:
            next_token = sampler.draw(target_law(sampler, logits_NV, last), request.rng)
        return Verdict(tree.path_to(last), next_token, tree)

    def _threshold(self, p_V: torch.Tensor) -> float:
        entropy = float(torch.special.entr(p_V).sum())
        return min(self.config.epsilon, self.config.delta * math.exp(-entropy))

"""Typical acceptance (Medusa, Cai et al. 2024): keep what the target finds plausible. Relaxed.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from spec_sdk.contracts import Verifier, option
from spec_sdk.ops import Decision, DrawnTree, Rows, Uniforms
from spec_sdk.ops.inversion import draw


@dataclass
class TypicalConfig:
    """Options of ``verifier=typical``; larger values keep less.

    The defaults are those of the authors' code, which calls them
    ``posterior_threshold`` and ``posterior_alpha`` and recommends α = √threshold.
    """

    epsilon: float = option(0.09, "a probability above which a token is always kept", minimum=0, maximum=1)
    delta: float = option(0.3, "the threshold at entropy 0; it falls with exp(-entropy)", minimum=0, maximum=1)


class Typical(Verifier):
    """Accepts a child x if p(x) > min(epsilon, delta · exp(−H(p))), H in nats, and keeps the longest accepted path.

    Of several longest paths it keeps the one of larger probability. The next token is drawn from the target. At
    temperature 0, where that leaves one token only, children are judged by the softmax of the logits as they stand;
    Medusa itself turns greedy there (its §2.3.1), which ``greedy`` does.
    """

    name = "typical"
    Config = TypicalConfig
    config: TypicalConfig
    guarantee = "relaxed"

    def rule(self, tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
        """Takes one random number, for the next token; none at temperature 0."""
        score = {0: 0.0}
        # pre-order: a parent is judged before its children
        for parent, draws in enumerate(tree.draws_N):
            if parent not in score or not draws:
                continue
            p_V = self._judges(rows, parent)
            threshold = self._threshold(p_V)
            for child in dict.fromkeys(drawn.node for drawn in draws):
                p = float(p_V[tree.token_N[child]])
                if p > threshold:
                    score[child] = score[parent] + math.log(p)
        last = max(sorted(score), key=lambda node: (len(tree.path_to(node)), score[node]))
        token = rows.choices()[last] if rows.greedy else draw(rows.target(last), uniforms(1)[0])
        return tree.path_to(last), token

    def _judges(self, rows: Rows, node: int) -> torch.Tensor:
        """The distribution [V] that children of ``node`` are judged by."""
        return torch.softmax(rows.logits_NV[node].float(), -1).cpu() if rows.greedy else rows.target(node)

    def _threshold(self, p_V: torch.Tensor) -> float:
        entropy = float(torch.special.entr(p_V).sum())
        return min(self.config.epsilon, self.config.delta * math.exp(-entropy))

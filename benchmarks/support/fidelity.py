"""How far a target that speculates on attention strays from the exact one when both are fed the same tokens.

Legend: N positions, V vocabulary, L layers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from spec_sdk.model.block_runner import AttentionReport, BlockRunner
from spec_sdk.model.session import Session
from spec_sdk.tree import TokenTree


class Passage:
    """What comes ``after`` some tokens, decoded one token per pass as generation does; those ``before`` prefilled once.

    ``session``: a new one of the target. The last token before is fed by the first pass, as the scheduler does it.
    """

    def __init__(self, session: Session, before: Sequence[int], after: Sequence[int] = ()) -> None:
        self.before = list(before)
        self.after = list(after)
        self._session = session
        session.prefill(0, before[:-1])

    def score(self, runner: BlockRunner) -> tuple[torch.Tensor, list[AttentionReport]]:
        """Logits [N, V] for each of the N tokens ``after``, each fed in a pass of its own, and the passes' reports."""
        session = self._rewound(runner)
        rows, reports = [], []
        for token in [self.before[-1], *self.after[:-1]]:
            (scores,) = session.score([0], [TokenTree.root_only(token)])
            session.commit([0], [[0]])
            rows.append(scores.logits_NV[0])
            if scores.attention is not None:
                reports.append(scores.attention)
        return torch.stack(rows), reports

    def greedy(self, runner: BlockRunner, count: int, stop_ids: frozenset[int]) -> list[int]:
        """At most ``count`` tokens of the runner's own choice, up to a stop token."""
        session, tokens = self._rewound(runner), [self.before[-1]]
        while len(tokens) <= count and (len(tokens) == 1 or tokens[-1] not in stop_ids):
            logits_V = session.score([0], [TokenTree.root_only(tokens[-1])])[0].logits_NV[0]
            session.commit([0], [[0]])
            tokens.append(int(logits_V.argmax()))
        return tokens[1:]

    def nll(self, runner: BlockRunner, tokens: Sequence[int]) -> list[float]:
        """Negative log-likelihood (nats) of each of ``tokens`` in the place of those after, read in one pass."""
        chain = TokenTree.chain(self.before[-1], list(tokens[:-1]))
        return nll(self._rewound(runner).score([0], [chain])[0].logits_NV, tokens)

    def _rewound(self, runner: BlockRunner) -> Session:
        self._session.runner = runner
        # opened anew, so that the runner keeps nothing of another request that had the slot
        self._session.open(0, self.before[:-1])
        return self._session


def nll(logits_NV: torch.Tensor, tokens: Sequence[int]) -> list[float]:
    """Negative log-likelihood of token i under row i, in nats."""
    log_p_NV = logits_NV.double().log_softmax(-1)
    index_N1 = torch.tensor(tokens, device=logits_NV.device)[:, None]
    found: list[float] = (-log_p_NV.gather(1, index_N1)[:, 0]).tolist()
    return found


def kl(exact_NV: torch.Tensor, other_NV: torch.Tensor) -> list[float]:
    """KL(exact ‖ other) of every row's distribution at temperature 1, in nats, in float64."""
    log_p_NV, log_q_NV = exact_NV.double().log_softmax(-1), other_NV.double().log_softmax(-1)
    terms_NV = torch.nn.functional.kl_div(log_q_NV, log_p_NV, log_target=True, reduction="none")
    found: list[float] = terms_NV.sum(-1).tolist()
    return found


def perplexity(nlls: Sequence[float]) -> float:
    """exp of the mean negative log-likelihood."""
    return math.exp(statistics.fmean(nlls))


@dataclass
class Fidelity:
    """Distances from the exact logits, gathered over passages. ``nll_change``: one mean per passage."""

    kl: list[float] = field(default_factory=list)
    agrees: list[bool] = field(default_factory=list)
    nll: list[float] = field(default_factory=list)
    nll_change: list[float] = field(default_factory=list)

    def add(self, exact_NV: torch.Tensor, other_NV: torch.Tensor, tokens: Sequence[int]) -> None:
        """Rows for the same positions, whose next tokens in the passage are ``tokens``."""
        self.kl += kl(exact_NV, other_NV)
        self.agrees += (exact_NV.argmax(-1) == other_NV.argmax(-1)).tolist()
        ours, theirs = nll(other_NV, tokens), nll(exact_NV, tokens)
        self.nll += ours
        self.nll_change.append(statistics.fmean(ours) - statistics.fmean(theirs))

    def summary(self) -> dict[str, Any]:
        """``nll_change``: mean over passages of the change of the mean nll, and its standard error."""
        several = len(self.nll_change) > 1
        error = statistics.stdev(self.nll_change) / math.sqrt(len(self.nll_change)) if several else None
        return {
            "positions": len(self.kl),
            "kl_mean": statistics.fmean(self.kl),
            "kl_median": statistics.median(self.kl),
            "kl_max": max(self.kl),
            "top1_agreement": sum(self.agrees) / len(self.agrees),
            "perplexity": perplexity(self.nll),
            "nll_change": statistics.fmean(self.nll_change),
            "nll_change_standard_error": error,
        }


def hit_rates(reports: Iterable[AttentionReport]) -> dict[str, Any]:
    """Shares of accepted predictions: of those made, of all attention, and per layer (of all its passes)."""
    passes = [report.hit for report in reports]
    every = [hit for layers in passes for hit in layers]
    made = [hit for hit in every if hit is not None]
    layers = zip(*passes, strict=True)
    return {
        "hit_rate": sum(made) / len(made) if made else None,
        "approximated": sum(made) / len(every),
        "approximated_per_layer": [sum(hit is True for hit in layer) / len(passes) for layer in layers],
    }

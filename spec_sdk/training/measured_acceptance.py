"""How much of held-out text a draft model would have drafted, measured along the target's own answers.

At temperature 0 the draft's chain is accepted as far as its first choices are the target's tokens, and the text stays
the target's: drafting again behind every accepted chain gives what a run would count. At temperature 1, the chance that
the first j drafted tokens are accepted is Σ Π min(p, q) over their texts (Leviathan et al. 2023, arXiv:2211.17192,
§3.1), which is the mean of Π min(1, q / p) over texts that the target sampled.

Legend: A labelled positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from spec_sdk.training.complements import Complements
from spec_sdk.training.distillation import CHUNK, divergence
from spec_sdk.training.packing import pack
from spec_sdk.training.samples import Sample
from spec_sdk.training.trainable import TrainableDraft


@dataclass
class Tally:
    """Sums over answers. A cycle is one pass of the target: a drafted chain and the token after it."""

    tokens: int = 0
    matches: int = 0
    chain_tokens: int = 0
    cycles: int = 0
    sampled_tokens: float = 0.0
    sampled_cycles: int = 0
    divergence: float = 0.0
    positions: int = 0
    covered: int = 0

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def report(self, complements: bool = False) -> dict[str, float | None]:
        """``loss`` in nats; ``acceptance_rate``: share of tokens that are the draft's first choice (greedy answers);
        ``mean_accepted_tokens`` and that at temperature 1: tokens per target pass, 1 being plain decoding. With
        ``complements``, ``covered_rate``: share of tokens that are the first choice of it or of one of them.
        """
        covered = {"covered_rate": _ratio(self.covered, self.tokens)} if complements else {}
        return {
            "loss": _ratio(self.divergence, self.positions),
            "acceptance_rate": _ratio(self.matches, self.tokens),
            "mean_accepted_tokens": _ratio(self.chain_tokens, self.cycles),
            "mean_accepted_tokens_sampled": _ratio(self.sampled_tokens, self.sampled_cycles),
            **covered,
        }


@dataclass
class Acceptance:
    """What was measured: of all kinds of prompts together, and of each."""

    total: Tally = field(default_factory=Tally)
    kinds: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    complements: bool = False

    def report(self) -> dict[str, object]:
        kinds = {kind: tally.report(self.complements) for kind, tally in sorted(self.kinds.items())}
        return {**self.total.report(self.complements), "positions": self.total.positions, "kinds": kinds}


@torch.no_grad()
def measure(
    model: TrainableDraft,
    samples: Iterable[Sequence[Sample]],
    width: int,
    depth: int,
    device: torch.device,
    complements: Complements | None = None,
) -> Acceptance:
    """Chains of ``depth`` along the answers of ``samples``, lists of those that go into one row of ``width``."""
    found = Acceptance(complements=complements is not None)
    for row in samples:
        batch = pack([row], width).to(device)
        if not batch.labels:
            continue
        state_AM = model(batch)
        losses, matches, ratios = [], [], []
        for first in range(0, batch.labels, CHUNK):
            part = slice(first, first + CHUNK)
            logit_aV = model.logits(state_AM[part]).float()
            losses.append(divergence(logit_aV, model.places(batch.top_id_AK[part]), batch.top_logprob_AK[part]))
            next_a1 = model.places(batch.next_A[part, None])
            matches.append(logit_aV.argmax(-1) == next_a1[:, 0])
            logprob_a = (logit_aV.gather(1, next_a1.clamp(min=0)) - logit_aV.logsumexp(-1, keepdim=True))[:, 0]
            ratios.append((logprob_a - batch.logprob_A[part]).clamp(max=0).exp() * (next_a1[:, 0] >= 0))
        covered_A = torch.cat(matches) if complements is None else torch.cat(matches) | complements.right(batch)
        whole = [torch.cat(parts).cpu() for parts in (losses, matches, ratios, [covered_A])]
        values = [torch.split(value, list(batch.lengths)) for value in whole]
        for sample, loss_a, match_a, ratio_a, covered_a in zip(row, *values, strict=True):
            tally = tally_of(match_a.tolist(), ratio_a.tolist(), sample.temperature == 0, depth)
            tally.divergence, tally.positions = float(loss_a.sum()), len(loss_a)
            tally.covered = int(covered_a.sum()) if sample.temperature == 0 else 0
            found.total.add(tally)
            found.kinds[sample.kind].add(tally)
    return found


def tally_of(matches: Sequence[bool], ratios: Sequence[float], greedy: bool, depth: int) -> Tally:
    """One answer's: of a greedy one the chain's cycles, of a sampled one the expected tokens at each of its places."""
    tally = Tally()
    if greedy:
        tally.tokens, tally.matches = len(matches), sum(matches)
        at = 0
        while at < len(matches):
            accepted = 0
            while accepted < depth and at + accepted < len(matches) and matches[at + accepted]:
                accepted += 1
            # at the end of an answer there may be nothing left for the token after the chain
            tally.chain_tokens += min(accepted + 1, len(matches) - at)
            tally.cycles += 1
            at += accepted + 1
        return tally
    for start in range(len(ratios) - depth + 1):
        chances = [math.prod(ratios[start : start + drafted]) for drafted in range(1, depth + 1)]
        tally.sampled_tokens += 1 + sum(chances)
        tally.sampled_cycles += 1
    return tally


def _ratio(over: float, under: float) -> float | None:
    return over / under if under else None

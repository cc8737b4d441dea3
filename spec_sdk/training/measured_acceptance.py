"""How much of held-out text a draft model would have drafted, measured along the target's own answers.

At temperature 0 the draft's chain is accepted as far as its first choices are the target's tokens, and the text stays
the target's: drafting again behind every accepted chain gives what a run would count. At temperature 1, the chance that
the first j drafted tokens are accepted is Σ Π min(p, q) over their texts (Leviathan et al. 2023, arXiv:2211.17192,
§3.1), which is the mean of Π min(1, q / p) over texts that the target sampled.

Legend: A labelled positions, a those of a sample, S steps of a chain, R predictions, V tokens that can be drafted, M
model dim.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from spec_sdk.training.complements import Complements
from spec_sdk.training.distillation import CHUNK, divergence
from spec_sdk.training.learner import Learner
from spec_sdk.training.samples import Sample


@dataclass
class Tally:
    """Sums over answers. A cycle is one pass of the target: a drafted chain and the token after it.

    ``cycles_by_depth``, ``sampled_by_depth``: cycles of a greedy answer, and expected tokens of a sampled one, by the
    length of the chains; those of the longest ones are ``cycles`` and ``sampled_tokens``.
    """

    tokens: int = 0
    matches: int = 0
    chain_tokens: int = 0
    cycles: int = 0
    sampled_tokens: float = 0.0
    sampled_cycles: int = 0
    divergence: float = 0.0
    positions: int = 0
    cycles_by_depth: Counter[int] = field(default_factory=Counter)
    sampled_by_depth: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    step_tokens: Counter[int] = field(default_factory=Counter)
    step_matches: Counter[int] = field(default_factory=Counter)
    covered: int = 0

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            if isinstance(value, dict):
                for key, count in value.items():
                    getattr(self, name)[key] += count
            else:
                setattr(self, name, getattr(self, name) + value)

    def report(self, complements: bool = False) -> dict[str, Any]:
        """``loss`` in nats; ``acceptance_rate``: share of tokens that are the draft's first choice (greedy answers);
        ``mean_accepted_tokens`` and that at temperature 1: tokens per target pass, 1 being plain decoding. With
        ``complements``, ``covered_rate``: share of tokens that are the first choice of it or of one of them.

        ``…_by_depth``: with chains of 1, 2 … tokens. ``acceptance_rate_by_step``: the acceptance rate of each token of
        a chain, where those before it were accepted or not, as long as they are the target's.
        """
        covered = {"covered_rate": _ratio(self.covered, self.tokens)} if complements else {}
        return {
            "loss": _ratio(self.divergence, self.positions),
            "acceptance_rate": _ratio(self.matches, self.tokens),
            "mean_accepted_tokens": _ratio(self.chain_tokens, self.cycles),
            "mean_accepted_tokens_sampled": _ratio(self.sampled_tokens, self.sampled_cycles),
            "mean_accepted_tokens_by_depth": [
                _ratio(self.chain_tokens, cycles) for _, cycles in sorted(self.cycles_by_depth.items())
            ],
            "mean_accepted_tokens_sampled_by_depth": [
                _ratio(tokens, self.sampled_cycles) for _, tokens in sorted(self.sampled_by_depth.items())
            ],
            "acceptance_rate_by_step": [
                _ratio(self.step_matches[step], tokens) for step, tokens in sorted(self.step_tokens.items())
            ],
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
    model: Learner,
    samples: Iterable[Sequence[Sample]],
    width: int,
    depth: int,
    device: torch.device,
    complements: Complements | None = None,
) -> Acceptance:
    """Chains of ``depth`` along the answers of ``samples``, lists of those that go into one row of ``width``."""
    found = Acceptance(complements=complements is not None)
    for row in samples:
        batch = model.batch([row], width).to(device)
        if not batch.labels:
            continue
        state_RM = model(batch, depth)
        label_R, step_R = model.targets(batch, depth)
        losses, matches, ratios = [], [], []
        for first in range(0, len(label_R), CHUNK):
            part = slice(first, first + CHUNK)
            logit_rV, label_r = model.logits(state_RM[part]).float(), label_R[part]
            losses.append(divergence(logit_rV, model.places(batch.top_id_AK[label_r]), batch.top_logprob_AK[label_r]))
            next_r1 = model.places(batch.next_A[label_r, None])
            matches.append(logit_rV.argmax(-1) == next_r1[:, 0])
            logprob_r = (logit_rV.gather(1, next_r1.clamp(min=0)) - logit_rV.logsumexp(-1, keepdim=True))[:, 0]
            ratios.append((logprob_r - batch.logprob_A[label_r]).clamp(max=0).exp() * (next_r1[:, 0] >= 0))
        # a chain's row is that of the label that its first token predicts
        # no answer of the row may be as long as a chain
        steps, tables = depth if model.unrolls else 1, []
        for parts in (losses, matches, ratios):
            table_AS = torch.zeros(batch.labels, steps, device=device)
            table_AS[label_R - step_R, step_R] = torch.cat(parts).float()
            tables.append(torch.split(table_AS.cpu(), list(batch.lengths)))
        right_A = torch.zeros(batch.labels) if complements is None else complements.right(batch).cpu()
        tables.append(torch.split(right_A, list(batch.lengths)))
        for sample, loss_aS, match_aS, ratio_aS, right_a in zip(row, *tables, strict=True):
            if not model.unrolls:
                match_aS, ratio_aS = _of_later_chains(match_aS, depth), _of_later_chains(ratio_aS, depth)
            tally = tally_of(match_aS.bool(), ratio_aS, sample.temperature == 0)
            if sample.temperature == 0:
                tally.covered = int((match_aS[:, 0].bool() | right_a.bool()).sum())
            tally.divergence, tally.positions = float(loss_aS[:, 0].sum()), len(loss_aS)
            found.total.add(tally)
            found.kinds[sample.kind].add(tally)
    return found


def tally_of(match_aS: torch.Tensor, ratio_aS: torch.Tensor, greedy: bool) -> Tally:
    """One answer's. Row i is of the chain that begins at the answer's token i, column k of its step k.

    Of a greedy answer the chain's cycles, of a sampled one the expected tokens at each of its places.
    """
    tally, (length, depth) = Tally(), match_aS.shape
    if greedy:
        tally.tokens, tally.matches = length, int(match_aS[:, :1].sum())
        for step in range(depth):
            tally.step_tokens[step] = max(0, length - step)
            tally.step_matches[step] = int(match_aS[: max(0, length - step), step].sum())
        accepted_at = match_aS.long().cumprod(1).sum(1).tolist()
        for drafted in range(1, depth + 1):
            at = tally.chain_tokens = 0
            while at < length:
                accepted = min(accepted_at[at], drafted)
                # at the end of an answer there may be nothing left for the token after the chain
                tally.chain_tokens += min(accepted + 1, length - at)
                tally.cycles_by_depth[drafted] += 1
                at += accepted + 1
        tally.cycles = tally.cycles_by_depth[depth]
        return tally
    tally.sampled_cycles = max(0, length - depth + 1)
    # column j: the expected tokens of a chain of j, and the one after it
    expected_aS = 1 + ratio_aS[: tally.sampled_cycles].double().cumprod(1).cumsum(1)
    for drafted in range(1, depth + 1):
        tally.sampled_by_depth[drafted] = float(expected_aS[:, drafted - 1].sum())
    tally.sampled_tokens = tally.sampled_by_depth[depth]
    return tally


def _of_later_chains(value_a1: torch.Tensor, depth: int) -> torch.Tensor:
    """Of every chain's first token → of all its tokens [a, S], where a token is as good wherever the chain began."""
    return F.pad(value_a1[:, 0], (0, depth - 1)).unfold(0, depth, 1)


def _ratio(over: float, under: float) -> float | None:
    return over / under if under else None

"""The contract of a sampler: logits to laws, and the arithmetic of accepting and resampling.

Legend: N tree nodes, D draws, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from spec_sdk.contracts.sampling_params import SamplingParams
from spec_sdk.guarantees import Guarantee
from spec_sdk.plugin import Plugin, Random
from spec_sdk.tree import DraftDistribution, TokenTree


class Sampler(Plugin, ABC):
    """Turns logits into probabilities, and holds the arithmetic of acceptance and resampling.

    All logits that it is given are penalised already (:meth:`penalise`, called by the scheduler for the target's and
    by drafters for their own).
    """

    kind = "sampler"
    guarantee: ClassVar[Guarantee] = "exact"

    def __init__(self, config: Any, params: SamplingParams) -> None:
        self.config = config
        self.params = params

    @property
    def greedy(self) -> bool:
        return self.params.temperature == 0

    def cautions(self, dtype: torch.dtype) -> list[str]:
        """What to warn of before a run with a model of this dtype, a line each."""
        return []

    def penalise(self, logits_NV: torch.Tensor, prefix: Sequence[int], paths: Sequence[Sequence[int]]) -> torch.Tensor:
        """Apply the repetition penalty; ``logits_NV`` is written to, and returned.

        Row i is what follows ``prefix`` (prompt and output, the pending token included) and then ``paths[i]``, the
        drafted tokens. Every token of these is penalised once, however often it occurs. Token ids beyond V are passed
        over.
        """
        penalty = self.params.repetition_penalty
        if penalty == 1:
            return logits_NV
        vocabulary = logits_NV.shape[-1]
        common = {token for token in prefix if token < vocabulary}
        pairs = [(i, t) for i, path in enumerate(paths) for t in {*path} - common if t < vocabulary]
        device = logits_NV.device
        # two assignments, so that the long prefix is sent once and not once per row
        for rows, columns in (
            (slice(None), torch.tensor(sorted(common), dtype=torch.long, device=device)),
            (torch.tensor([i for i, _ in pairs], dtype=torch.long, device=device),
             torch.tensor([t for _, t in pairs], dtype=torch.long, device=device)),
        ):  # fmt: skip
            if columns.numel():
                score = logits_NV[rows, columns]
                logits_NV[rows, columns] = torch.where(score < 0, score * penalty, score / penalty)
        return logits_NV

    @abstractmethod
    def probabilities(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """Logits [N, V] → probabilities [N, V] in float32 (temperature, top-k, top-p, min-p; one-hot when greedy).

        Raises :class:`~spec_sdk.errors.UnusableLogits`, naming the row, for logits that are NaN, +inf, or -inf
        throughout.
        """

    def choices(self, logits_NV: torch.Tensor) -> list[int]:
        """Each row's token under greedy sampling, the lowest id on ties: all that a verifier needs at temperature 0.

        A sampler that can tell without making probabilities should override this.
        """
        return [int(token) for token in self.probabilities(logits_NV).argmax(-1).tolist()]

    def law(self, logits_V: torch.Tensor) -> DraftDistribution:
        """The law of a token drawn from these draft logits [V], which are kept as they are. Worked out when read."""
        return DraftDistribution(logits_V, lambda row_V: self.probabilities(row_V[None])[0].cpu())

    def draw_from(self, law: DraftDistribution, random: Random) -> int:
        """One token of a drafter's law. A sampler that can draw from logits should override this."""
        return self.draw(law.q_V, random)

    def rejection(
        self, tree: TokenTree, logits_NV: torch.Tensor, uniform_D: torch.Tensor, step: int = 0
    ) -> tuple[list[int], int] | None:
        """The fused path of multi-step rejection sampling: accepted path and next token; None if there is none.

        The rule is that of ``multi_step``, and on a chain of ``chain_rejection``. ``uniform_D`` [draws + 1], float64,
        on the CPU, one random number for each draw of the tree (node by node, in draw order) and the last one for the
        next token; those of draws that are never tried are left unused. With the same numbers every sampler without
        loss must give the same tokens as the arithmetic below does.
        """
        return None

    @abstractmethod
    def draw(self, p_V: torch.Tensor, random: Random) -> int:
        """One token from the distribution ``p_V`` [V], by inversion: the first whose cumulated mass exceeds ``random``.

        A sampler may draw otherwise, but then gives other tokens for the same random numbers.
        """

    @abstractmethod
    def accepts(self, p: float, q: float, random: Random) -> bool:
        """Accept a token of target probability p drawn with probability q: with probability min(1, p/q).

        For a chosen token q is 1: it is accepted with probability p.
        """

    @abstractmethod
    def residual(self, p_V: torch.Tensor, q_V: torch.Tensor) -> torch.Tensor:
        """The residual distribution norm(max(p - q, 0)) [V], from which to go on after a drawn token was rejected."""

    @abstractmethod
    def without(self, p_V: torch.Tensor, token: int) -> torch.Tensor:
        """``p_V`` [V] with ``token`` set to zero, renormalised: the residual after a chosen token was rejected."""

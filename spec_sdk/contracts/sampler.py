"""The contract of a sampler: logits to probabilities and draws.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from spec_sdk.contracts.sampler_faults import as_choices, as_probabilities, no_distribution, usable
from spec_sdk.errors import CallOf, PluginFault, UnusableLogits
from spec_sdk.guarantees import Guarantee
from spec_sdk.ops import DrawnTree, Ops, Recipe, Rows
from spec_sdk.ops.draws import DraftDistribution, Draw
from spec_sdk.ops.inversion import draw, next_uniform
from spec_sdk.ops.residual import without
from spec_sdk.ops.uploads import numbers_on
from spec_sdk.ops.vocabulary_row import SomeLogits
from spec_sdk.plugin import Plugin, Random, not_inherited
from spec_sdk.sampling_params import SamplingParams


class Sampler(Plugin, ABC):
    """Turns logits into probabilities, and draws from them. What is accepted is a rule's business, not a sampler's.

    All logits that it is given are penalised already (:meth:`Request.process_logits
    <spec_sdk.contracts.request.Request.process_logits>`, called by the scheduler for the target's and by drafters for
    their own, which calls :meth:`penalise`). ``ops``: where rules of acceptance are to run, if not on the backend's
    operations, which are ``backend_ops`` and told by the engine.
    """

    kind = "sampler"
    guarantee: ClassVar[Guarantee] = "exact"
    own_probabilities: ClassVar[bool] = False
    """Whether its probabilities are meant to be others than those of temperature, top-k, top-p and min-p: a filter of
    its own, say. Target and drafts are then both judged by them, so that what a pipeline guarantees is the distribution
    of plain decoding with this sampler.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        changed = ("greedy", "probabilities", "choices", "distribution", "draw_from", "draw_different", "draw", "rows")
        not_inherited(cls, "recipe", Sampler.recipe, changed)

    def __init__(self, config: Any, params: SamplingParams) -> None:
        self.config = config
        self.params = params
        self.ops: Ops | None = None
        self.backend_ops: Ops | None = None

    @property
    def greedy(self) -> bool:
        return self.params.temperature == 0

    def cautions(self, dtype: torch.dtype) -> list[str]:
        """What to warn of before a run with a model of this dtype, a line each."""
        return []

    def penalise(self, logits_NV: torch.Tensor, prefix: Sequence[int], paths: Sequence[Sequence[int]]) -> torch.Tensor:
        """The logits [N, V] under the repetition penalty. Those of 16 bits come back in float32, as in transformers;
        others are written to, and returned.

        Row i is what follows ``prefix`` (prompt and output, the pending token included) and then ``paths[i]``, the
        drafted tokens. Every token of these is penalised once, however often it occurs. Token ids beyond V are passed
        over.
        """
        penalty = self.params.repetition_penalty
        if penalty == 1:
            return logits_NV
        if logits_NV.dtype in (torch.bfloat16, torch.float16):
            logits_NV = logits_NV.float()
        vocabulary = logits_NV.shape[-1]
        common = {token for token in prefix if token < vocabulary}
        pairs = [(i, t) for i, path in enumerate(paths) for t in {*path} - common if t < vocabulary]
        device = logits_NV.device
        # two assignments, so that the long prefix is sent once and not once per row
        for rows, columns in (
            (slice(None), numbers_on(device, sorted(common))),
            (numbers_on(device, [i for i, _ in pairs]), numbers_on(device, [t for _, t in pairs])),
        ):
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

    def choices(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """Each row's token under greedy sampling, integers [N] where the logits are: the lowest id on ties, and -1 for
        unusable logits. All that a verifier needs at temperature 0.

        A sampler that can tell without making probabilities should override this, and wait for nothing: the choices of
        all requests are read at once.
        """
        top_N, token_N = as_probabilities(self.name, self.probabilities(logits_NV), logits_NV).max(-1)
        # NaN is above nothing
        return torch.where(top_N > 0, token_N, -1)

    def distribution(self, logits: torch.Tensor | SomeLogits) -> DraftDistribution:
        """The distribution of a token drawn from these draft logits [V], which stay as they are; made when read."""
        return DraftDistribution(logits, functools.partial(_row, self, 0))

    def draw_from(self, distribution: DraftDistribution, random: Random) -> int:
        """One token of a drafter's distribution. A sampler that can draw from logits should override this."""
        return self.draw(distribution.q_V, random)

    def draw_different(self, distribution: DraftDistribution, count: int, random: torch.Generator) -> list[int]:
        """Up to ``count`` tokens of a drafter's distribution in the order of drawing, without replacement: fewer where
        it has no more. A sampler that can draw from logits should override this.
        """
        remaining_V, tokens = distribution.q_V, list[int]()
        for left in range(min(count, int((remaining_V > 0).sum())), 0, -1):
            tokens.append(self.draw(remaining_V, random))
            if left > 1:
                remaining_V = without(remaining_V, tokens[-1])
        return tokens

    @property
    def recipe(self) -> Recipe | None:
        """How a kernel may make its rows of logits that are yet to come, and so decide as a part of the pass; None,
        the default: it may not. A class that changes how it chooses, draws or makes rows does not inherit it.
        """
        return None

    def rows(self, tree: DrawnTree, logits_NV: torch.Tensor) -> Rows:
        """The distributions of a scored tree, for a rule of acceptance to ask for: from :meth:`probabilities`.

        A sampler that can do with less than whole rows should override this. ``logits_NV`` as a verifier gets them.
        """
        return SampledRows(self, tree, logits_NV)

    def draw(self, p_V: torch.Tensor, random: Random) -> int:
        """One token from the distribution ``p_V`` [V], by inversion: the first whose cumulated mass exceeds ``random``.

        ``p_V`` need not sum to 1 exactly. Raises ValueError if it has no mass. A sampler may draw otherwise, but then
        drafters give other tokens for the same random numbers.
        """
        return draw(p_V, next_uniform(random))


class SampledRows(Rows):
    """Whole rows of a sampler's probabilities. Made per visited node: most of a tree never is."""

    def __init__(self, sampler: Sampler, tree: DrawnTree, logits_NV: torch.Tensor) -> None:
        super().__init__(tree, logits_NV, sampler.greedy)
        self.sampler = sampler

    def target(self, node: int) -> torch.Tensor:
        try:
            return _row(self.sampler, node, self.logits_NV[node])
        except (PluginFault, UnusableLogits):
            raise
        except ValueError as error:
            raise ValueError(f"tree node {node}: {error}") from error

    def draft(self, draw: Draw, node: int) -> torch.Tensor:
        source = self.source(draw)
        try:
            return (source.q_V if isinstance(source, DraftDistribution) else source).cpu()
        except UnusableLogits as error:
            raise UnusableLogits(node, "draft, ") from error

    def keep(self, row_V: torch.Tensor) -> torch.Tensor:
        return row_V

    def choice_N(self) -> torch.Tensor:
        with CallOf("sampler", self.sampler.name):
            choice_N: object = self.sampler.choices(self.logits_NV)
        return as_choices(self.sampler.name, choice_N, self.logits_NV)

    def choices(self) -> list[int]:
        try:
            return super().choices()
        except UnusableLogits as error:
            if usable(self.logits_NV[error.row]):
                raise no_distribution(self.sampler.name, error.row) from error
            raise


def _row(sampler: Sampler, row: int, logits_V: torch.Tensor) -> torch.Tensor:
    """Its probabilities [V] of one row, in host memory. Raises PluginFault for what gives no distribution, and
    UnusableLogits where that is the logits' fault.
    """
    try:
        with CallOf("sampler", sampler.name):
            p_NV: object = sampler.probabilities(logits_V[None])
    except UnusableLogits as error:
        raise UnusableLogits(row) from error
    p_V = as_probabilities(sampler.name, p_NV, logits_V[None])[0].cpu()
    if 0 < float(p_V.sum()) < float("inf"):
        return p_V
    raise no_distribution(sampler.name, row) if usable(logits_V) else UnusableLogits(row)

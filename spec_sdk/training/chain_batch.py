"""What a head is trained on at once: pairs of several samples one behind the other, and the chains that begin at them.

The pair number t of a sample is its token t + 1 with the target's hidden states at position t. A chain begins at an
*anchor*, the pair of the last token before the first drafted one. Its step k, counted from 0, has the token behind the
k tokens that were drafted, as the target wrote them, and predicts the one after it.

Legend: T pairs of all samples, F width of the tapped states together, A labelled positions, K labels of a position,
R rows of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from spec_sdk.training.samples import Sample


@dataclass(frozen=True)
class Span:
    """One sample's part: ``pairs`` from ``first`` on, the last ``anchors`` of them anchors, which predict as many
    labelled positions from ``label`` on.
    """

    first: int
    pairs: int
    label: int
    anchors: int

    def rows(self, step: int) -> int:
        """Anchors whose chain has a labelled position at this step."""
        return max(0, self.anchors - step)


@dataclass(frozen=True)
class ChainBatch:
    """Pairs of samples, a :class:`Span` each, and what the target held of the tokens that they predict.

    ``token_T``: each pair's token; ``position_T``: its position; ``feature_TF``: the states before it. ``next_A``,
    ``top_id_AK``, ``top_logprob_AK``, ``logprob_A``: labels (:class:`Sample`); ``lengths``: how many each sample has.
    """

    token_T: torch.Tensor
    position_T: torch.Tensor
    feature_TF: torch.Tensor
    next_A: torch.Tensor
    top_id_AK: torch.Tensor
    top_logprob_AK: torch.Tensor
    logprob_A: torch.Tensor
    lengths: Sequence[int]
    spans: Sequence[Span]

    @property
    def labels(self) -> int:
        """Labelled positions."""
        return len(self.next_A)

    def rows(self, steps: int) -> int:
        """Rows of all of ``steps`` steps together."""
        return sum(span.rows(step) for span in self.spans for step in range(steps))

    def anchors(self, step: int) -> torch.Tensor:
        """The anchor of each row of a step, as a pair [R]."""
        return self._indices([(span.first + span.pairs - span.anchors, span.rows(step)) for span in self.spans])

    def labelled(self, step: int) -> torch.Tensor:
        """The labelled position that each row of a step predicts [R]."""
        return self._indices([(span.label + step, span.rows(step)) for span in self.spans])

    def of_step_before(self, step: int) -> torch.Tensor:
        """Which rows of the step before, or for step 0 which anchors, the rows of a step go on from [R]."""
        parts, first = [], 0
        for span in self.spans:
            parts.append((first, span.rows(step)))
            first += span.rows(step - 1)
        return self._indices(parts)

    def to(self, device: torch.device) -> ChainBatch:
        changed: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **changed)

    def _indices(self, ranges: Sequence[tuple[int, int]]) -> torch.Tensor:
        parts = [torch.arange(first, first + count) for first, count in ranges]
        return torch.cat(parts or [torch.empty(0, dtype=torch.long)]).to(self.token_T.device)


def pairs_of(sample: Sample) -> int:
    """Pairs of a sample from which a token can be predicted: so many first positions have hidden states that count."""
    return len(sample.prompt) + len(sample.answer) - 2


def chain_batch(samples: Sequence[Sample], features_of: Callable[[Sample], torch.Tensor], width: int) -> ChainBatch:
    """The pairs and labels of ``samples``, each cut off after ``width`` pairs.

    ``features_of``: the target's states of a sample's first :func:`pairs_of` positions [pairs, F].
    """
    tokens, positions, features, labels, spans = [], [], [], [], []
    at = label = 0
    for sample in samples:
        text = [*sample.prompt, *sample.answer]
        pairs = min(pairs_of(sample), width)
        # the anchor of the answer's first token is the pair of the prompt's last one, which a prompt of one token lacks
        first_anchor = max(0, len(sample.prompt) - 2)
        anchors = max(0, pairs - first_anchor)
        skipped = first_anchor - (len(sample.prompt) - 2)
        tokens.append(torch.tensor(text[1 : pairs + 1], dtype=torch.long))
        positions.append(torch.arange(pairs))
        features.append(features_of(sample)[:pairs])
        kept = slice(skipped, skipped + anchors)
        labels.append(
            (
                torch.tensor(sample.answer[kept], dtype=torch.long),
                sample.top_id_AK[kept],
                sample.top_logprob_AK[kept],
                sample.logprob_A[kept],
            )
        )
        spans.append(Span(at, pairs, label, anchors))
        at, label = at + pairs, label + anchors
    next_A, top_id_AK, top_logprob_AK, logprob_A = (torch.cat(parts) for parts in zip(*labels, strict=True))
    return ChainBatch(
        torch.cat(tokens),
        torch.cat(positions),
        torch.cat(features),
        next_A,
        top_id_AK.long(),
        top_logprob_AK.float(),
        logprob_A.float(),
        [span.anchors for span in spans],
        spans,
    )

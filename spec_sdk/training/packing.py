"""Samples of different lengths in rows of one length: several in a row, none seeing the others.

Legend: B rows, N positions of a row, A labelled positions of a batch, K labels of a position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from spec_sdk.training.samples import Sample


@dataclass(frozen=True)
class PackedBatch:
    """Rows of samples. ``sample_BN``: which of the row's samples a token is of, -1 for padding.

    ``labelled_A``: flat positions (row · N + position) whose next token is one of an answer, sample after sample;
    ``next_A`` is that token, and the other labels what the target held of it (:class:`Sample`). ``lengths``: how many
    of them each sample has.
    """

    token_BN: torch.Tensor
    position_BN: torch.Tensor
    sample_BN: torch.Tensor
    labelled_A: torch.Tensor
    next_A: torch.Tensor
    top_id_AK: torch.Tensor
    top_logprob_AK: torch.Tensor
    logprob_A: torch.Tensor
    lengths: Sequence[int]

    @property
    def labels(self) -> int:
        """Labelled positions."""
        return len(self.labelled_A)

    def to(self, device: torch.device) -> PackedBatch:
        changed: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **changed)


def fill_rows(lengths: Sequence[int], order: Sequence[int], width: int) -> list[list[int]]:
    """Samples in rows, in the given order: each goes into the row that is being filled, or begins the next one.

    A sample of more than ``width`` tokens has a row of its own, which cuts it off.
    """
    rows: list[list[int]] = []
    room = 0
    for sample in order:
        if lengths[sample] > room:
            rows.append([])
            room = width
        rows[-1].append(sample)
        room -= min(lengths[sample], room)
    return rows


def pack(rows: Sequence[Sequence[Sample]], width: int) -> PackedBatch:
    """The samples of each row, one behind the other, in rows of ``width`` tokens.

    The last token of an answer predicts nothing, and is left out.
    """
    token_BN = torch.zeros(len(rows), width, dtype=torch.long)
    position_BN, sample_BN = torch.zeros_like(token_BN), torch.full_like(token_BN, -1)
    labelled, following, lengths = [], [], []
    labels: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    for r, row in enumerate(rows):
        at = 0
        for number, sample in enumerate(row):
            tokens = [*sample.prompt, *sample.answer[:-1]][: width - at]
            end = at + len(tokens)
            token_BN[r, at:end] = torch.tensor(tokens)
            position_BN[r, at:end] = torch.arange(len(tokens))
            sample_BN[r, at:end] = number
            first = at + len(sample.prompt) - 1
            count = max(0, end - first)
            labelled.append(torch.arange(first, first + count) + r * width)
            following.append(torch.tensor(sample.answer[:count], dtype=torch.long))
            labels.append((sample.top_id_AK[:count], sample.top_logprob_AK[:count], sample.logprob_A[:count]))
            lengths.append(count)
            at = end
    top_id_AK, top_logprob_AK, logprob_A = (torch.cat(parts) for parts in zip(*labels, strict=True))
    return PackedBatch(
        token_BN,
        position_BN,
        sample_BN,
        torch.cat(labelled),
        torch.cat(following),
        top_id_AK.long(),
        top_logprob_AK.float(),
        logprob_A.float(),
        lengths,
    )


@dataclass(frozen=True)
class BatchOrder:
    """Which samples each step sees: shuffled anew in every epoch, by ``seed`` and the epoch alone.

    ``rows``: of a step. Rows of an epoch that do not fill a step are left out, unless they are its only ones.
    """

    lengths: Sequence[int]
    width: int
    rows: int
    seed: int

    def epoch(self, number: int) -> list[list[list[int]]]:
        """Step → rows → samples."""
        generator = torch.Generator().manual_seed(self.seed + number)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        rows = fill_rows(self.lengths, order, self.width)
        steps = [rows[i : i + self.rows] for i in range(0, len(rows), self.rows)]
        return steps[:-1] if len(steps) > 1 and len(steps[-1]) < self.rows else steps

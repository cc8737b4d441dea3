"""What a draft model learns from: prompts, the target's answers, and how probable the target held other tokens.

Legend: A tokens of an answer, K most probable tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Planned:
    """Sample ``number`` of a data set, before the target answers it.

    ``prompt``: a text of a file, or None where the target itself goes on from ``opening``. ``held_out``: it is not
    trained on. ``temperature``: of its answer; the seed of its random numbers follows from ``number``.
    """

    number: int
    kind: str
    prompt: str | None
    opening: str
    held_out: bool
    temperature: float


@dataclass(frozen=True, eq=False)
class Sample:
    """A prompt of the data set and the target's answer to it.

    ``top_id_AK``, ``top_logprob_AK``: the target's most probable tokens in the place of each token of the answer, the
    most probable first, with their log-probabilities at temperature 1. ``logprob_A``: that of the answer's own token.
    """

    number: int
    kind: str
    held_out: bool
    temperature: float
    prompt: list[int]
    answer: list[int]
    top_id_AK: torch.Tensor
    top_logprob_AK: torch.Tensor
    logprob_A: torch.Tensor

    def __post_init__(self) -> None:
        rows = {len(self.answer), len(self.top_id_AK), len(self.top_logprob_AK), len(self.logprob_A)}
        if len(rows) != 1 or not self.prompt or not self.answer:
            raise ValueError(f"sample {self.number}: prompt, answer and labels do not fit each other")

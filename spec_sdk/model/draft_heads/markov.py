"""The small heads of DSpark: a bias that depends on the token before, and how sure the draft of a slot is.

Legend: K rows, M model dim of the head, R rank, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.linear import Projection


class MarkovHead(ABC):
    """Adds to a slot's logits a bias of low rank that depends on the token before it.

    ``embedding`` has R numbers for every token of the target; ``readout``: R → V, -inf for tokens without a row.
    """

    def __init__(self, embedding: Embedding, readout: Projection) -> None:
        self.embedding, self.readout = embedding, readout

    @property
    def projections(self) -> list[Projection]:
        """Its linear layers."""
        return [self.readout]

    def start(self, count: int) -> torch.Tensor:
        """The state [K, R] before the first slot."""
        return torch.zeros(count, self.embedding.width, device=self.embedding.device, dtype=self.embedding.dtype)

    def previous(self, token_K: torch.Tensor) -> torch.Tensor:
        """What stands for the tokens before the slots [K, R]."""
        return self.embedding(token_K[:, None])[:, 0]

    @abstractmethod
    def step(
        self, state_KR: torch.Tensor, token_K: torch.Tensor, normed_KM: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What is added to the logits of slots [K, V], and the state [K, R] for the slots after them.

        ``token_K``: the tokens before the slots; ``normed_KM``: what the slots returned.
        """


class VanillaMarkovHead(MarkovHead):
    """The bias depends on the token before alone."""

    def step(
        self, state_KR: torch.Tensor, token_K: torch.Tensor, normed_KM: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.readout(self.previous(token_K)), state_KR


class GatedMarkovHead(MarkovHead):
    """What the slot returned gates what stands for the token before. ``gate``: M + R → R."""

    def __init__(self, embedding: Embedding, readout: Projection, gate: Projection) -> None:
        super().__init__(embedding, readout)
        self.gate = gate

    @property
    def projections(self) -> list[Projection]:
        return [self.gate, self.readout]

    def step(
        self, state_KR: torch.Tensor, token_K: torch.Tensor, normed_KM: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        previous_KR = self.previous(token_K)
        gate_KR = self.gate(torch.cat((normed_KM, previous_KR), -1)).sigmoid()
        return self.readout(gate_KR * previous_KR), state_KR


class RecurrentMarkovHead(MarkovHead):
    """A state goes from slot to slot, so that the bias depends on all tokens of the path.

    ``joint``: 2R + M → 3R: a gate, a candidate for the state, and what is read out.
    """

    def __init__(self, embedding: Embedding, readout: Projection, joint: Projection) -> None:
        super().__init__(embedding, readout)
        self.joint = joint

    @property
    def projections(self) -> list[Projection]:
        return [self.joint, self.readout]

    def step(
        self, state_KR: torch.Tensor, token_K: torch.Tensor, normed_KM: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        joined = torch.cat((state_KR, self.previous(token_K), normed_KM), -1)
        gate_KR, candidate_KR, read_KR = self.joint(joined).chunk(3, -1)
        gate_KR = gate_KR.sigmoid()
        return self.readout(read_KR.tanh()), gate_KR * state_KR + (1 - gate_KR) * candidate_KR.tanh()


class ConfidenceHead:
    """How much of what a slot drafts is expected to be accepted: the share that its distribution has in common with the
    target's. ``projection``: M → 1 or, where it reads the token before too, M + R → 1.
    """

    def __init__(self, projection: Projection, reads_token: bool) -> None:
        self.projection, self.reads_token = projection, reads_token

    def __call__(self, normed_KM: torch.Tensor, previous_KR: torch.Tensor | None = None) -> torch.Tensor:
        """Probabilities [K], float32. ``previous_KR``: see :meth:`MarkovHead.previous`."""
        if self.reads_token:
            assert previous_KR is not None
            normed_KM = torch.cat((normed_KM, previous_KR), -1)
        return self.projection(normed_KM)[:, 0].float().sigmoid()

"""What all decoders that the kernels run do alike: wide passes part by part, so that a row gets the same bits in every
pass, norms, and rotations that are looked up in the kernels.

Legend: B requests, N rows of a request, M model dim, R tokens of the output head.
"""

from __future__ import annotations

import torch

from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.rope import RotationsAt
from spec_sdk.ops.linear import Projection
from spec_sdk_backends.native.norm import rms_norm


class InParts(Decoder):
    """``in_parts``: whether wide passes run so; ``most_rows``: of one part, which the kernels take at once."""

    in_parts: bool
    most_rows: int

    def narrow(self, h_BNM: torch.Tensor) -> bool:
        """Whether a pass is one part."""
        return h_BNM.shape[0] * h_BNM.shape[1] <= self.most_rows and not torch.is_grad_enabled()

    def rotations_at(self, position_BN: torch.Tensor, positions: int) -> RotationsAt:
        """The same, whose rows are looked up by those who need them: the kernels read the tables."""
        return RotationsAt(self._rotary, position_BN, positions)

    def blocks_in_parts(self, h_BNM: torch.Tensor, work: ForwardPass, first: int, end: int) -> torch.Tensor:
        """Blocks ``first`` … ``end - 1``, ``most_rows`` rows at a time, through all of them."""
        B, N, _ = h_BNM.shape
        recorded = {layer: torch.zeros_like(h_BNM) for layer in work.taps if first < layer < end}
        result_BNM = torch.zeros_like(h_BNM)
        for requests, rows in parts(B, N, self.most_rows):
            inputs = work.inputs.part(requests, rows)
            if not inputs.live_B.any():
                continue
            part = work.of_rows(requests, rows, inputs)
            result = self.blocks_at_once(h_BNM[requests, rows], part, first, end)
            assert result is not None
            result_BNM[requests, rows] = result
            for layer, states_BNM in recorded.items():
                states_BNM[requests, rows] = part.hidden[layer]
        for layer, states_BNM in recorded.items():
            work.record(layer, states_BNM)
        work.record(end, result_BNM)
        return result_BNM

    def logits_with(self, h_BNM: torch.Tensor, output_head: Projection) -> torch.Tensor:
        if not self.in_parts or self.narrow(h_BNM):
            return super().logits_with(h_BNM, output_head)
        B, N, _ = h_BNM.shape
        logits_BNR = h_BNM.new_empty((B, N, output_head.outputs))
        for requests, rows in parts(B, N, self.most_rows):
            logits_BNR[requests, rows] = super().logits_with(h_BNM[requests, rows].contiguous(), output_head)
        return logits_BNR

    def _norm(self, x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        found = rms_norm(x, gain, self.config.rms_norm_eps)
        return super()._norm(x, gain) if found is None else found


def parts(requests: int, rows: int, most: int) -> list[tuple[slice, slice]]:
    """A pass [requests, rows] in parts of at most ``most`` rows: some requests whole, or some rows of one, in order.

    >>> parts(3, 2, 4)
    [(slice(0, 2, None), slice(0, 2, None)), (slice(2, 3, None), slice(0, 2, None))]
    >>> parts(1, 5, 3)
    [(slice(0, 1, None), slice(0, 3, None)), (slice(0, 1, None), slice(3, 5, None))]
    """
    if rows <= most:
        step = most // rows
        return [(slice(b, min(b + step, requests)), slice(0, rows)) for b in range(0, requests, step)]
    return [(slice(b, b + 1), slice(n, min(n + most, rows))) for b in range(requests) for n in range(0, rows, most)]

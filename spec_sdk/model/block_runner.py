"""What a block runner is: how the blocks of one forward pass are executed; and what it may measure.

Legend: B requests, N rows of a request, n live rows, M model dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch

from spec_sdk.guarantees import Guarantee
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.lipschitz import LipschitzEstimate
from spec_sdk.ops.host_reads import read
from spec_sdk.ops.types import AttentionVerdict, Space
from spec_sdk.plugin import Plugin, declared, not_inherited
from spec_sdk.ranks import ALONE, Ranks


@dataclass(frozen=True)
class LayerMeasurement:
    """One layer's verdict on one request, and ‖Â − A‖ [1, n] of its live rows in the space of ``verdict``."""

    verdict: AttentionVerdict
    difference_Bn: torch.Tensor


@dataclass(frozen=True)
class AttentionReport:
    """Attention-level speculation in one request's part of a pass, per layer; None where nothing was guessed.

    ``hit``: the prediction was accepted. ``error``: the largest relative error among the pass's rows, ``row_error``
    that of every live row, in the order of the tree's nodes. ``difference``: the largest ‖Â − A‖, in ``space``.
    ``state_norm``: the largest norm of a row's hidden state, entering each layer and leaving the last; empty where no
    error bounds are asked for. ``estimate`` makes their constants; only in a request's first pass that guesses.
    """

    hit: tuple[bool | None, ...]
    error: tuple[float | None, ...]
    row_error: tuple[tuple[float, ...] | None, ...]
    difference: tuple[float | None, ...]
    state_norm: tuple[float, ...]
    space: Space
    estimate: Callable[[], LipschitzEstimate] | None = None

    def event(self) -> dict[str, Any]:
        """The report as a cycle's event has it; errors of single rows only where a pass had several."""
        several = any(errors is not None and len(errors) > 1 for errors in self.row_error)
        return {
            "hit": list(self.hit),
            "error": list(self.error),
            "row_error": [errors and [_short(error) for error in errors] for errors in self.row_error]
            if several
            else None,
            "difference": list(self.difference),
            "state_norm": list(self.state_norm) or None,
            "space": self.space,
            "constants": None if self.estimate is None else asdict(self.estimate()),
        }


@dataclass(frozen=True)
class PassMeasurement:
    """What was measured of one request in a pass, while it lies on the device.

    ``layers``: a measurement per layer; ``norms``: of the states, as in :class:`AttentionReport`.
    """

    layers: Sequence[LayerMeasurement | None]
    norms: Sequence[torch.Tensor]
    space: Space
    estimate: Callable[[], LipschitzEstimate] | None = None

    def numbers(self) -> torch.Tensor | None:
        """All of it in one row, float32; None if nothing was measured."""
        rows = [
            torch.cat((m.verdict.hit_B.float(), m.difference_Bn.max()[None], m.verdict.error_BN.flatten()))
            for m in self.layers
            if m is not None
        ]
        return torch.cat((*(norm[None] for norm in self.norms), *rows)) if self.norms or rows else None

    def report(self, numbers: Sequence[float]) -> AttentionReport:
        """The report that these :meth:`numbers` make."""
        state_norm, numbers = tuple(numbers[: len(self.norms)]), numbers[len(self.norms) :]
        width = len(numbers) // max(1, sum(m is not None for m in self.layers))
        tables = iter(numbers[at : at + width] for at in range(0, len(numbers), max(1, width)))
        layers = [None if m is None else next(tables) for m in self.layers]
        return AttentionReport(
            hit=tuple(None if layer is None else bool(layer[0]) for layer in layers),
            error=tuple(None if layer is None else max(layer[2:]) for layer in layers),
            row_error=tuple(None if layer is None else tuple(layer[2:]) for layer in layers),
            difference=tuple(None if layer is None else layer[1] for layer in layers),
            state_norm=state_norm,
            space=self.space,
            estimate=self.estimate,
        )


def read_reports(measurements: Sequence[PassMeasurement]) -> list[AttentionReport]:
    """The reports of all requests of a pass. Waits for the device once."""
    numbers = [measurement.numbers() for measurement in measurements]
    there = [row for row in numbers if row is not None]
    host = iter(read(*there) if there else ())
    return [
        measurement.report([] if row is None else next(host).tolist())
        for measurement, row in zip(measurements, numbers, strict=True)
    ]


def _short(value: float) -> float:
    """Three digits: an event of a tree has hundreds of these."""
    return float(f"{value:.3g}")


class BlockRunner(Plugin, ABC):
    """Runs all blocks of a decoder in one pass. It writes K and V, and records the hidden states that were asked for.

    ``guarantee``: how the logits relate to those of the plain forward pass. ``keeps_kv``: whether the K and V that it
    leaves may be kept; a drafter whose runner's may not be feeds accepted tokens once more, in a plain pass.

    One instance serves one model and all requests: what it keeps of a request, it keeps by cache slot.
    """

    kind = "runner"
    guarantee: Guarantee = "exact"
    keeps_kv: bool = True
    spreads: ClassVar[bool] = False
    """Whether with several processes it spreads a whole model's work over them, so that all of them must run it."""
    capturable: ClassVar[bool] = False
    """Whether a graph may capture its passes: :meth:`run` waits for nothing, looks at no length that the host knows,
    and does the same operations in every pass of a size. Not inherited: a subclass may do something else."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "capturable" not in vars(cls):
            cls.capturable = False
        not_inherited(cls, "attention_groups", BlockRunner.attention_groups, ["run"])

    def __init__(self, config: Any = None) -> None:
        self.config = config

    def prepare(self, layers: int, ranks: Ranks = ALONE) -> None:
        """Called once, before the first pass of a model of so many layers. Raises UserError for options that it cannot
        be run with. ``ranks``: the processes to spread the work over, if it does.
        """

    def share_kv(self, kv_sources: Sequence[int]) -> None:
        """Called behind :meth:`prepare` for a model some of whose layers attend to K and V of earlier ones: of each
        layer, whose (``Executor.kv_sources``). For runners that leave layers out. Raises UserError for options that say
        otherwise.
        """

    def attention_groups(self, layers: int) -> tuple[tuple[int, ...], ...] | None:
        """The groups of a model's consecutive layers whose attention reads the state that enters the group, where
        :meth:`run` does that and nothing else. None, the default: it does something else. Not inherited by a class that
        has its own ``run``.
        """
        return None

    def declaration(self) -> Mapping[str, Any]:
        """What it does, as plain data: ``name``, and its options, those of its parts under the parts' names.

        All that an executor goes by which is not torch, and so cannot call :meth:`run`.
        """
        return declared(self)

    @abstractmethod
    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        """Hidden states entering block 0 → hidden states leaving the last block, both [B, N, M]."""

    def reports(self) -> Sequence[AttentionReport | None]:
        """Measurements of the last pass, one per request, if this runner takes any."""
        return ()

    def commit(self, slot: int, path: Sequence[int]) -> None:
        """These rows of the request's part in the last pass were kept, the others dropped."""

    def truncate(self, slot: int, length: int) -> None:
        """The slot was rolled back to its first ``length`` tokens; 0 forgets its request."""

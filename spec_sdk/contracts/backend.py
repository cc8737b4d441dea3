"""The contract of a backend: where a model runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spec_sdk.contracts.attention_verifier import AttentionVerifier
from spec_sdk.contracts.diagnosis import Finding, SelfTest
from spec_sdk.contracts.predictor import Predictor
from spec_sdk.errors import UserError
from spec_sdk.model.block_runner import BlockRunner
from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.executor import Executor
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.step_clock import HostClock, StepClock
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.plugin import Plugin
from spec_sdk.ranks import ALONE, Ranks


@dataclass(frozen=True)
class Suitability:
    """Whether a backend can run on this machine, and what suits it: what ``backend=auto`` goes by.

    ``usable``: it can be made here. ``reason``: in a few words what it found, or what it lacks and how to get that.
    ``rank``: of the usable ones the highest is chosen, and the CPU has 0; None: never chosen unasked. ``dtype`` is
    what ``model.dtype=auto`` means on it (a name of torch), ``sampler`` the one of a run that names none.
    """

    usable: bool
    reason: str
    rank: int | None = None
    dtype: str = "float32"
    sampler: str = "exact"


class Backend(Plugin, ABC):
    """Loads models onto a device. By default a decoder in torch runs there, with the backend's kernels.

    One that is not torch overrides :meth:`load`; its ``device`` is then where the inputs of a pass are put (the CPU),
    and it needs no ``ops``: the reference ones decide what is accepted.
    """

    kind = "backend"

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @property
    def ops(self) -> Ops:
        """The kernels of decoders in torch and of rules of acceptance; the reference ones by default."""
        return Ops()

    simulates: bool = False
    """Whether it computes on a simulator of its device: ``task=doctor`` then tests few passes, as each takes long."""

    @property
    def tolerances(self) -> Mapping[torch.dtype, float]:
        """The dtypes that conformance tries it in (``task=check``), and how far it may be off in each: as a part of the
        largest value. float32 to rounding by default.
        """
        return {torch.float32: 1e-4}

    expected_tokens: int | None = None
    """About how many tokens the run will make; None where nobody said so."""

    def expect(self, tokens: int) -> None:
        """About how many tokens the run will make, which may be more than it does: told before :meth:`load`, where it
        is known. What pays off only in a long run goes by it.
        """
        self.expected_tokens = tokens

    deterministic: bool = False
    """Whether a row of a pass shall get the same bits in any pass."""

    def be_deterministic(self) -> None:
        """From now on load models whose rows get the same bits in any pass: told before :meth:`load`.

        An executor that cannot be made so says why (:attr:`Executor.bits_vary`). Raises UserError for a backend that
        has none, which is the default.
        """
        raise UserError(
            f"deterministic: on backend '{self.name}' a row's bits depend on the rows beside it; use backend=cpu"
        )

    def keep_rows_exact(self) -> None:
        """From now on load models that multiply rows as they are, unless the user asks for another way: told before
        :meth:`load` and :attr:`ops`, where attention is computed in another order than plain decoding's, whose last
        bits would tip rounded rows. Does nothing by default.
        """

    @property
    def compiled(self) -> Mapping[str, Any]:
        """What was compiled or captured for this run, as plain data for reports; empty by default."""
        return {}

    @abstractmethod
    def describe(self) -> str:
        """The machine in a few words, for reports: CPU or GPU name, cores or memory."""

    @property
    def hardware(self) -> str:
        """The machine in words that stay the same from run to run; what was measured on it is kept under them."""
        return self.describe()

    @classmethod
    def suitability(cls, config: Any) -> Suitability | None:
        """How well this machine suits it with these options (:attr:`Config`); None, the default: it does not say.

        Asked of the class, before any is made, and of all backends: it neither raises nor takes long, and changes
        nothing.
        """
        return None

    @classmethod
    def diagnose(cls) -> Sequence[Finding]:
        """What ``task=doctor`` shows of this machine: devices, drivers, compilers, and why something is not to be had.

        Asked of the class, since a backend may refuse to be made where its device is missing. Nothing by default.
        """
        return ()

    def self_tests(self) -> Sequence[SelfTest]:
        """What ``task=doctor`` runs besides its own tests of ``ops`` and of whole passes, in a second or two.

        For kernels that are neither. None by default.
        """
        return ()

    def load(self, checkpoint: TensorSource, dtype: torch.dtype) -> Executor:
        """The model of a checkpoint, ready to run; a :class:`TorchExecutor` where the backend has several ``ranks``."""
        return TorchExecutor(load_decoder(checkpoint, self.device, dtype, self.ops), self.ops)

    def attention_runner(
        self, executor: Executor, make_predictor: Callable[[], Predictor], verifier: AttentionVerifier
    ) -> BlockRunner | None:
        """What runs a target's blocks with speculation on attention, in the place of the general
        :class:`~spec_sdk.model.runners.attention_speculative.AttentionSpeculativeRunner`, as whose its hidden states,
        verdicts and reports are but for rounding. ``executor``: the target, which :meth:`load` made. A new runner at
        every call, since each engine has its own.

        None, the default: nothing here does it better for this target, predictor and verifier.
        """
        return None

    @property
    def ranks(self) -> Ranks:
        """The processes that compute together: the device group that holds the target. This one alone by default."""
        return ALONE

    @property
    def groups(self) -> Mapping[str, Any]:
        """Which of several ranks hold the ``target`` and the ``draft`` model, as its option says; empty: as usual.

        What that may be, :func:`spec_sdk.parallel.placement.placement` checks.
        """
        return {}

    def join(self) -> None:
        """Meet the other processes of a launched run, after which ``ranks`` are all of them; nothing if met already.

        Every process calls it before anything that only one of them does. Raises RankLost if the others do not come.
        """

    def synchronize(self) -> None:
        """Wait for queued work, so that a clock read means something."""

    def clock(self) -> StepClock:
        """What times the stages of a step: the host's clock, where a call returns when its work is done."""
        return HostClock()

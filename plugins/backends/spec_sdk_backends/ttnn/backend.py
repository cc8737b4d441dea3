"""backend=ttnn: models on a Tenstorrent device, or on TT-Lang's functional simulator where there is none."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spec_sdk.contracts import Backend, Finding, option
from spec_sdk.errors import UserError
from spec_sdk.model.compilation import choice_of
from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.executor import Executor
from spec_sdk_backends.ttnn.device import DeviceOperations
from spec_sdk_backends.ttnn.executor import TtnnExecutor
from spec_sdk_backends.ttnn.mesh_executor import MeshExecutor
from spec_sdk_backends.ttnn.model import check_model, load_model
from spec_sdk_backends.ttnn.operations import Operations

NEITHER = "neither ttnn nor tt-lang-sim is installed"
INSTALL = "pip install 'spec-sdk[ttnn-sim]' for the simulator, or Tenstorrent's ttnn on a machine with a device"


@dataclass
class TtnnConfig:
    """Options of ``backend=ttnn``."""

    simulate: Any = option(
        "auto",
        "compute on TT-Lang's functional simulator: right numbers, no speed",
        choices={True: "", False: "", "auto": "where ttnn is not installed"},
    )
    index: int = option(0, "which Tenstorrent device", minimum=0)
    devices: int = option(
        1, "devices that hold the model, on the simulator: 2 speculate on attention side by side", minimum=1, maximum=2
    )


class TtnnBackend(Backend):
    """A Tenstorrent device, by TT-NN; or TT-Lang's functional simulator, which computes the same slowly.

    Raises :class:`UserError` where neither is installed, and for the one that is asked for if it is not.
    """

    name = "ttnn"
    Config = TtnnConfig
    config: TtnnConfig

    def __init__(self, config: TtnnConfig) -> None:
        super().__init__(config)
        self._made: dict[torch.dtype, Operations] = {}
        choice = choice_of(config.simulate, "backend.simulate")
        has_device, has_simulator = is_installed("ttnn"), is_installed("tt-lang-sim")
        if not has_device and not has_simulator:
            raise UserError(f"backend=ttnn: {NEITHER}: {INSTALL}")
        self.simulates = choice == "true" or (choice == "auto" and not has_device)
        if self.simulates and not has_simulator:
            raise UserError("backend.simulate=true: tt-lang-sim is not installed: pip install 'spec-sdk[ttnn-sim]'")
        if config.devices > 1 and not self.simulates:
            raise UserError(
                "backend.devices: a mesh is had on the simulator only; use backend.simulate=true, or devices=1"
            )
        if not self.simulates and not has_device:
            raise UserError(
                "backend.simulate=false: ttnn is not installed: on a machine with a Tenstorrent device pip install "
                "ttnn (Python 3.10 or 3.12), or use backend.simulate=auto"
            )

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @classmethod
    def diagnose(cls) -> Sequence[Finding]:
        return list(_findings())

    def describe(self) -> str:
        if self.simulates:
            return f"TT-Lang's functional simulator {importlib.metadata.version('tt-lang-sim')}, no device"
        return f"Tenstorrent device {self.config.index}, ttnn {importlib.metadata.version('ttnn')}"

    def load(self, checkpoint: TensorSource, dtype: torch.dtype) -> Executor:
        """Raises UserError for a dtype in which it does not compute, and for a model with parts that it lacks."""
        name, dtypes = str(dtype).removeprefix("torch."), ["bfloat16", *["float32"] * self.simulates]
        if name not in dtypes:
            where = "the simulator computes" if self.simulates else "a Tenstorrent device computes attention"
            raise UserError(f"model.dtype: {where} in {' or '.join(dtypes)}, not in {name}")
        check_model(checkpoint.config)
        model = load_model(checkpoint, self._operations(dtype))
        return TtnnExecutor(model) if self.config.devices == 1 else MeshExecutor(model)

    def _operations(self, dtype: torch.dtype) -> Operations:
        """One adapter for all models of a dtype: a device is opened once."""
        if dtype not in self._made:
            if self.simulates:
                # imported here and not above, so that the backend can be listed on machines without it
                from spec_sdk_backends.ttnn.simulated import SimulatedOperations

                self._made[dtype] = SimulatedOperations(dtype)
            else:
                self._made[dtype] = DeviceOperations(dtype, self.config.index)
        return self._made[dtype]


def is_installed(distribution: str) -> bool:
    """Whether a package is installed; nothing of it is imported."""
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _findings() -> Iterator[Finding]:
    for distribution, where in (("ttnn", "a Tenstorrent device"), ("tt-lang-sim", "TT-Lang's functional simulator")):
        if is_installed(distribution):
            version = importlib.metadata.version(distribution)
            yield Finding(distribution, f"{version}: backend=ttnn computes on {where}")
        else:
            yield Finding(distribution, f"not installed, which backend=ttnn needs for {where}")

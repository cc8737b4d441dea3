"""An executor without torch: passes come in as values, NumPy computes, logits and hidden states go back.

torch is only what values travel in, on the CPU.

Legend: B requests, N rows of a request, n live rows, M model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from spec_sdk.contracts import Backend
from spec_sdk.errors import UserError
from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.executor import Cache, Executor, PassOutput, PassPlan
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk.ops.types import PLAIN
from tests.executors.numpy_cache import Array, NumpyCache
from tests.executors.numpy_model import NumpyModel
from tests.executors.numpy_runners import RequestPass, run_of


class NumpyExecutor(Executor):
    """Takes one request of a pass after the other, without its padding; float32."""

    def __init__(self, model: NumpyModel) -> None:
        self.model = model
        self.config = model.config
        self.device = torch.device("cpu")
        self.dtype = torch.float32

    @property
    def layers(self) -> int:
        return len(self.model.layers)

    @property
    def vocabulary(self) -> int:
        return len(self.model.head_VM)

    def new_cache(self) -> NumpyCache:
        return NumpyCache(self.config, self.layers)

    def cut(self, layers: Sequence[int]) -> NumpyExecutor:
        return NumpyExecutor(self.model.subset(layers))

    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        assert isinstance(cache, NumpyCache)
        run = run_of(plan.runner, self.layers)
        requests = [self._request(inputs, b, cache, plan.taps) for b in range(inputs.batch)]
        states, reports = [], []
        for b, request in enumerate(requests):
            h_nM = self.model.embedding_VM[inputs.token_BN.numpy()[b, : len(request.seen_nS)]]
            request.record(0, h_nM)
            h_nM, report = run(request, h_nM)
            states.append(h_nM)
            reports.append(report)
        N = inputs.width
        if plan.logits == "none":
            logits_BNV = torch.empty((inputs.batch, N, 0))
        elif plan.logits == "last":
            logits_BNV = _batched([self.model.logits(h_nM[-1:]) for h_nM in states], 1)
        else:
            logits_BNV = _batched([self.model.logits(h_nM) for h_nM in states], N)
        hidden = {layer: _batched([request.hidden[layer] for request in requests], N) for layer in plan.taps}
        return PassOutput(logits_BNV, hidden, reports)

    def _request(self, inputs: PassInputs, b: int, cache: NumpyCache, taps: tuple[int, ...]) -> RequestPass:
        slot, prefix, write_at, live = (
            int(x.numpy()[b]) for x in (inputs.slot_B, inputs.prefix_B, inputs.write_at_B, inputs.live_B)
        )
        slots = write_at + live - prefix
        start_T, end_T = (x.numpy()[b, :slots] for x in (inputs.key_start_BT, inputs.key_end_BT))
        query_n1 = inputs.query_start_BN.numpy()[b, :live, None]
        seen_nS = np.ones((live, prefix + slots), bool)
        seen_nS[:, prefix:] = (start_T <= query_n1) & (query_n1 < end_T)
        rotation = self.model.rotation(inputs.position_BN.numpy()[b, :live])
        return RequestPass(self.model, cache, slot, prefix, write_at, seen_nS, rotation, taps)


def _batched(parts: Sequence[Array], width: int) -> torch.Tensor:
    """Arrays [n, …] of several requests as one tensor [B, N, …], zeros for padding."""
    whole = np.zeros((len(parts), width, parts[0].shape[-1]), np.float32)
    for b, part in enumerate(parts):
        whole[b, : len(part)] = part
    return torch.from_numpy(whole)


def load_numpy(source: TensorSource, dtype: torch.dtype) -> NumpyExecutor:
    """The model of a checkpoint. Raises UserError for a dtype that is not float32, and for parts that it lacks."""
    if dtype != torch.float32:
        raise UserError(f"model.dtype: backend numpy computes in float32, not in {str(dtype).removeprefix('torch.')}")
    config = source.config
    kinds = {config.layer_kind(layer) for layer in range(config.num_layers)}
    if config.activation != "silu" or any(kind.attention != PLAIN for kind in kinds):
        raise UserError(f"model: backend numpy does not compute {config.architecture} models with these layers")
    return NumpyExecutor(NumpyModel.load(source))


@dataclass
class NumpyConfig:
    """No options."""


class NumpyBackend(Backend):
    """Models in NumPy."""

    name = "numpy"
    Config = NumpyConfig

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def describe(self) -> str:
        return f"NumPy {np.__version__}"

    def load(self, checkpoint: TensorSource, dtype: torch.dtype) -> NumpyExecutor:
        return load_numpy(checkpoint, dtype)

"""An executor on TT-NN: passes come in as values, and logits and hidden states go back to the host.

Legend: B requests, N rows of a request, R rows of the pass on the device, M model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.executor import Cache, Executor, PassOutput, PassPlan
from spec_sdk.ops import host_reads
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk_backends.ttnn.cache import TtnnCache
from spec_sdk_backends.ttnn.forward import TtnnPass
from spec_sdk_backends.ttnn.model import TtnnModel
from spec_sdk_backends.ttnn.operations import DeviceTensor
from spec_sdk_backends.ttnn.runners import Run, run_of


class TtnnExecutor(Executor):
    """All requests of a pass go through linear layers together, and attend one after the other."""

    def __init__(self, model: TtnnModel) -> None:
        self.model = model
        self.config = model.config
        self.device = torch.device("cpu")
        self.dtype = model.operations.dtype

    @property
    def layers(self) -> int:
        return len(self.model.layers)

    @property
    def vocabulary(self) -> int:
        return self.model.vocabulary

    @property
    def form(self) -> str:
        return f"{super().form}, {self.model.operations.describe()}"

    def new_cache(self) -> Cache:
        model = self.model
        return TtnnCache(model.operations, self.layers, self.config.num_kv_heads, model.head_dim)

    def cut(self, layers: Sequence[int]) -> TtnnExecutor:
        return TtnnExecutor(self.model.subset(layers))

    @torch.no_grad()
    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        assert isinstance(cache, TtnnCache)
        return self.run(inputs, cache, plan, run_of(plan.runner, self.layers))

    def run(self, inputs: PassInputs, cache: TtnnCache, plan: PassPlan, run: Run) -> PassOutput:
        """A pass whose blocks ``run`` carries out. Raises UserError for an epilogue, which takes torch's logits."""
        if plan.epilogue is not None:
            raise UserError("backend=ttnn: a pass has no epilogue: its logits are on no torch device")
        work = TtnnPass(self.model, inputs, cache, plan.taps)
        h_RM = work.embedded()
        work.record(0, h_RM)
        h_RM, reports = run(work, h_RM)
        hidden = {layer: self._batched(work, work.hidden[layer], self.config.hidden_size) for layer in plan.taps}
        logits_BNV = self._logits(work, h_RM, plan)
        # what was asked for is read at once, after the last operation of the pass
        host_reads.count()
        return PassOutput(logits_BNV, hidden, reports)

    def _logits(self, work: TtnnPass, h_RM: DeviceTensor, plan: PassPlan) -> torch.Tensor:
        if plan.logits == "none":
            return torch.empty((work.inputs.batch, work.inputs.width, 0), dtype=self.dtype)
        if plan.logits == "all":
            return self._batched(work, self.model.logits(h_RM), self.vocabulary)
        ops = self.model.operations
        last_BR = torch.zeros(len(work.bands), work.rows)
        for b, band in enumerate(work.bands):
            last_BR[b, band.rows.stop - 1] = 1.0
        # a product with ones in the right places takes rows out without a copy to the host
        last_BM = ops.linear(ops.to_device(last_BR), h_RM)
        return ops.to_host(self.model.logits(last_BM), slice(len(work.bands)), self.vocabulary)[:, None]

    def _batched(self, work: TtnnPass, x: DeviceTensor, columns: int) -> torch.Tensor:
        """The live rows of all requests [B, N, columns], zeros for padding."""
        host = self.model.operations.to_host(x, slice(None), columns)
        whole = host.new_zeros(work.inputs.batch, work.inputs.width, columns)
        for b, band in enumerate(work.bands):
            whole[b, : band.part.live] = host[band.rows]
        return whole

"""An executor on a mesh of two TT-NN devices, which speculate on attention side by side; other passes both compute.

Legend: R rows of the pass, M model dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from spec_sdk.model.block_runner import AttentionReport
from spec_sdk.model.executor import Cache, PassOutput, PassPlan
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk_backends.ttnn.attention_speculation import AttentionSpeculation, SpeculationPlan
from spec_sdk_backends.ttnn.cache import TtnnCache
from spec_sdk_backends.ttnn.executor import TtnnExecutor
from spec_sdk_backends.ttnn.forward import TtnnPass
from spec_sdk_backends.ttnn.mesh import DEVICES, Mesh, Observe
from spec_sdk_backends.ttnn.model import TtnnModel
from spec_sdk_backends.ttnn.operations import DeviceTensor
from spec_sdk_backends.ttnn.priority_gating import GatedPass
from spec_sdk_backends.ttnn.runners import Reports, Run, run_of


class MeshCache(Cache):
    """A cache on each device, which hold the same."""

    def __init__(self, devices: Sequence[TtnnCache]) -> None:
        self.devices = devices

    @property
    def slots(self) -> int:
        return self.devices[0].slots

    @property
    def capacity(self) -> int:
        return self.devices[0].capacity

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.devices)

    def reserve(self, slots: int, capacity: int) -> None:
        for cache in self.devices:
            cache.reserve(slots, capacity)

    def commit(self, slots: Sequence[int], prefixes: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        for cache in self.devices:
            cache.commit(slots, prefixes, paths)


class MeshExecutor(TtnnExecutor):
    """Weights and cache are on both devices. ``observe``: see :class:`~spec_sdk_backends.ttnn.mesh.Mesh`."""

    def __init__(self, model: TtnnModel, observe: Observe | None = None) -> None:
        super().__init__(model)
        self._mesh = Mesh(observe)

    @property
    def form(self) -> str:
        return f"{super().form}, {DEVICES} devices"

    def new_cache(self) -> Cache:
        caches = []
        for _ in range(DEVICES):
            cache = super().new_cache()
            assert isinstance(cache, TtnnCache)
            caches.append(cache)
        return MeshCache(caches)

    def cut(self, layers: Sequence[int]) -> TtnnExecutor:
        """On the first device alone: who drafts does not know of the other."""
        return TtnnExecutor(self.model.subset(layers))

    @torch.no_grad()
    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        assert isinstance(cache, MeshCache)
        declaration = plan.runner.declaration()
        if declaration["name"] == "attention_speculative":
            speculation = SpeculationPlan.of(declaration, self.layers)
            return self.run(inputs, cache.devices[0], plan, self._gated(speculation, cache.devices, plan.taps))
        return self.run(inputs, cache.devices[0], plan, self._alike(run_of(plan.runner, self.layers), cache.devices))

    def _alike(self, run: Run, caches: Sequence[TtnnCache]) -> Run:
        """Both devices compute the same."""

        def on_both(work: TtnnPass, h_RM: DeviceTensor) -> tuple[DeviceTensor, Reports]:
            for cache in caches[1:]:
                run(TtnnPass(self.model, work.inputs, cache, ()), h_RM)
            return run(work, h_RM)

        return on_both

    def _gated(self, plan: SpeculationPlan, caches: Sequence[TtnnCache], taps: Sequence[int]) -> Run:
        """One request after the other: which device is ahead is one request's business."""

        def on_two(work: TtnnPass, h_RM: DeviceTensor) -> tuple[DeviceTensor, Reports]:
            states: list[DeviceTensor] = []
            reports: list[AttentionReport | None] = []
            hidden: list[Mapping[int, DeviceTensor]] = []
            for band in work.bands:
                inputs = work.inputs.request(band.part.index)
                works = [TtnnPass(self.model, inputs, cache, taps) for cache in caches]
                h_own = self._mesh.rows(h_RM, band.first, band.end)
                gated = GatedPass(plan, self._mesh, works)
                if gated.guesses:
                    state, report = gated.run(h_own)
                    reports.append(report)
                else:
                    state, unguessed = self._alike(AttentionSpeculation(plan), caches)(works[0], h_own)
                    reports += unguessed
                states.append(state)
                hidden.append(works[0].hidden)
            # what enters layer 0 is recorded before any layer
            for layer in set(taps) - {0}:
                work.record(layer, self._mesh.joined([own[layer] for own in hidden]))
            return self._mesh.joined(states), reports

        return on_two

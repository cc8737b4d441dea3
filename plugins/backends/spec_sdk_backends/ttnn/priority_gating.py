"""Attention-level speculation on a mesh of two devices: SGDC with priority gating (ALSpec, §4.2, Alg. 2, Fig. 6).

The schedule of :mod:`spec_sdk.model.runners.speculative_groups`, dispatched by one host: both devices are given the
same operations of every layer, and priorities say which of them a device skips. Each holds all weights and a cache.

Per layer: the devices that are awake compute q, k and v; priorities are gathered. The sender, which has the right
state, sends it with K and V, predicts attention and sends the prediction. The receiver goes on with that to the end of
the layer, and the sender reads the other keys and verifies. On a hit it skips the rest of this layer and the start of
the next one, where the receiver is the sender. On a miss it computes the rest of the layer from the exact attention,
and what the receiver has computed is replaced by what it is sent in the next layer. A layer that guesses nothing is
computed by the sender alone.

The receiver's operations are dispatched before the sender's second half, and none of them reads what that half makes.

Legend: R rows of the pass, M model dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spec_sdk.model.block_runner import AttentionReport
from spec_sdk_backends.ttnn.attention_speculation import LayerSpeculation, SpeculationPlan, layer_speculation, report_of
from spec_sdk_backends.ttnn.forward import TtnnPass
from spec_sdk_backends.ttnn.mesh import AHEAD, DEVICES, RIGHT, SKIP, Mesh
from spec_sdk_backends.ttnn.operations import DeviceTensor
from spec_sdk_backends.ttnn.speculative_decode import GuessingPart, Verdict

Shared = Sequence[DeviceTensor | None]
"""What each device has; None where it skipped the making of it."""
Projected = tuple[DeviceTensor, DeviceTensor, DeviceTensor]
"""q, k and v."""


class GatedPass:
    """One request's pass over all layers. ``works``: it on each device, which differ in their caches."""

    def __init__(self, plan: SpeculationPlan, mesh: Mesh, works: Sequence[TtnnPass]) -> None:
        self._plan, self._mesh, self._works = plan, mesh, works
        (self._band,) = works[0].bands
        self._speculation: LayerSpeculation = layer_speculation(plan, works[0])
        self._part: GuessingPart | None = self._speculation.part(works[0], self._band)
        self._verdicts: dict[int, Verdict] = {}

    @property
    def guesses(self) -> bool:
        """Whether the prefix is so long that there is something to guess."""
        return self._part is not None

    def run(self, h_RM: DeviceTensor) -> tuple[DeviceTensor, AttentionReport]:
        """Hidden states [R, M] that enter layer 0 → those that leave the last one, and what was measured.

        The states of layers that the pass taps are recorded in the first device's.
        """
        mesh, works = self._mesh, self._works
        h: Shared = [h_RM] * DEVICES
        qkv: list[Projected | None] = [None] * DEVICES
        mesh.start()
        for layer, threshold in enumerate(self._plan.thresholds):
            qkv = mesh.run("awake", "pre_attention", self._pre(layer, h), qkv)
            mesh.gather()
            h = mesh.from_sender(h)
            works[0].record(layer, h[0])
            q, k, v = ([None if own is None else own[i] for own in qkv] for i in range(3))
            for work, k_RGE, v_RGE in zip(works, mesh.from_sender(k), mesh.from_sender(v), strict=True):
                work.write_kv(layer, k_RGE, v_RGE)
            h = self._alone(layer, h, q) if threshold is None else self._guess(layer, h, q)
        mesh.gather()
        h = mesh.from_sender(h)
        works[0].record(len(self._plan.thresholds), h[0])
        return h[0], report_of(self._plan, works[0], self._band, self._verdicts)

    def _pre(self, layer: int, h: Shared) -> Callable[[int], Projected]:
        """q, k and v of the layer."""
        return lambda device: self._works[device].qkv(layer, h[device])

    def _alone(self, layer: int, h: Shared, q: Shared) -> Shared:
        """The sender computes the layer, and stays the sender."""
        mesh, works, sender = self._mesh, self._works, self._mesh.sender
        o = mesh.run("sender", "attention", lambda d: works[d].attend(layer, q[d]), [None] * DEVICES)
        mesh.set_priority(sender, RIGHT)
        mesh.set_priority(1 - sender, SKIP)
        return mesh.run("awake", "post_attention", self._post(layer, h, o), h)

    def _guess(self, layer: int, h: Shared, q: Shared) -> Shared:
        mesh, works, speculation, band, part = self._mesh, self._works, self._speculation, self._band, self._part
        assert part is not None
        sender = mesh.sender
        window = mesh.run(
            "sender", "partial", lambda d: speculation.partial(works[d], layer, band, part, q[d]), [None] * DEVICES
        )
        predicted = mesh.from_sender([None if own is None else own.predicted for own in window])
        mesh.set_priority(1 - sender, AHEAD)
        ahead = mesh.run("receiver", "post_attention", self._post(layer, h, predicted), h)

        def finish(device: int) -> tuple[DeviceTensor, DeviceTensor, Verdict]:
            own = window[device]
            assert own is not None
            return speculation.finish(works[device], layer, band, part, q[device], own)

        (found,) = [made for made in mesh.run("sender", "combine", finish, [None] * DEVICES) if made is not None]
        _, exact, verdict = found
        self._verdicts[layer] = verdict
        mesh.set_priority_after(sender, verdict.misses)
        projected = self._plan.space == "residual"
        return mesh.run("awake_sender", "post_attention", self._post(layer, h, [exact] * DEVICES, projected), ahead)

    def _post(self, layer: int, h: Shared, attended: Shared, projected: bool = False) -> Callable[[int], DeviceTensor]:
        """The rest of the layer from its attention, ``projected`` or not."""

        def post(device: int) -> DeviceTensor:
            model = self._works[device].model
            a_RM = attended[device] if projected else model.project(layer, attended[device])
            return model.post_attention(layer, h[device], a_RM)

        return post

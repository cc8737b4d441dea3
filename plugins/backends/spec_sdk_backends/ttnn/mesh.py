"""Two TT-NN devices as a mesh, and who of them computes: priorities (ALSpec, §4.2, Alg. 2).

A tensor of the mesh has a device's shard behind the other's, along its rows. What one device sends the other goes by
``all_gather``, which gives all shards to both. In the simulator the devices are computed one after the other in one
process, and no link is modelled.

Legend: R rows, X columns of one device's tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import torch

from spec_sdk_backends.ttnn.operations import TILE, DeviceTensor
from spec_sdk_backends.ttnn.simulated import load_simulator

DEVICES = 2
SKIP, AHEAD, RIGHT = 0, 1, 2
"""Priorities: nothing to go on with; a prediction to go on with; the right state."""

Gate = Literal["awake", "sender", "receiver", "awake_sender"]
"""Who computes: a device whose priority is not 0; the one that had the highest when they were gathered; the other one;
the sender unless its priority is 0 by now.
"""

Made = TypeVar("Made")
Observe = Callable[[int, str], None]


class Mesh:
    """The two devices. ``observe`` is told of each operation that a device did not skip: which device, and its name."""

    def __init__(self, observe: Observe | None = None) -> None:
        self._ttnn: Any = load_simulator()
        # it imports the simulator's ttl, which may only be after it was loaded as above
        from spec_sdk_backends.ttnn.kernels import priority

        self._kernels: Any = priority
        self._ttnn.set_fabric_config(self._ttnn.FabricConfig.FABRIC_1D)
        device = self._ttnn.open_mesh_device(self._ttnn.MeshShape(1, DEVICES))
        self._by_rows = self._ttnn.ShardTensorToMesh(device, dim=0)
        self._tiles = [self._tile(value) for value in (SKIP, AHEAD, RIGHT)]
        self._observe = observe
        self.start()

    def start(self) -> None:
        """The priorities with which a pass begins: both devices have the embedding, and the first one goes on."""
        self._priority = self._shards(TILE, TILE, torch.float32)
        for device, value in enumerate((RIGHT, SKIP)):
            self.set_priority(device, value)
        self.gather()

    def run(
        self, gate: Gate, name: str, work: Callable[[int], Made], before: Sequence[Made | None]
    ) -> list[Made | None]:
        """What each device makes of ``work(device)``; where the gate skips it, what it had ``before``.

        The only place where operations are skipped. On hardware a skipped operation is dispatched all the same, and the
        device itself reads the priority; here the host reads it.
        """
        made = list(before)
        for device in range(DEVICES):
            if self._open(gate, device):
                made[device] = work(device)
                if self._observe is not None:
                    self._observe(device, name)
        return made

    def set_priority(self, device: int, value: int) -> None:
        """A device's own priority, which the other one learns of by :meth:`gather`."""
        self._kernels.copy_tiles(self._tiles[value], self._shard(self._priority, device))

    def set_priority_after(self, device: int, misses: DeviceTensor) -> None:
        """That of a device which has verified: 0 on a hit, when the other one has the right state, and 2 on a miss."""
        own = self._shard(self._priority, device)
        self._kernels.after_verdict(misses, self._tiles[SKIP], self._tiles[RIGHT], own)

    def gather(self) -> None:
        """Tell both devices both priorities."""
        self._gathered = self._ttnn.all_gather(self._priority, dim=1)

    @property
    def sender(self) -> int:
        """The device that had the highest priority when they were gathered: it has the right state."""
        first, second = (self._value(self._gathered, device) for device in range(DEVICES))
        return int(second > first)

    def from_sender(self, x: Sequence[DeviceTensor | None]) -> list[DeviceTensor]:
        """What the sender has as ``x`` [R, X], on both devices."""
        sent = x[self.sender]
        assert sent is not None, "the sender has what it sends"
        rows, columns = sent.shape
        shards = self._shards(rows, columns, sent.dtype)
        self._kernels.copy_tiles(sent, self._shard(shards, self.sender))
        gathered = self._ttnn.all_gather(shards, dim=0)
        tiles = rows // TILE
        # a device's part of what is gathered has all shards in order
        starts = [(device * DEVICES + self.sender) * tiles for device in range(DEVICES)]
        return [self.rows(gathered, start, start + tiles) for start in starts]

    def rows(self, x: DeviceTensor, first: int, end: int) -> DeviceTensor:
        """Row tiles ``first`` … ``end - 1`` of a device's tensor: a view."""
        return x[first:end, 0 : x.shape[1] // TILE]

    def joined(self, parts: Sequence[DeviceTensor]) -> DeviceTensor:
        """A device's tensors one below the other."""
        if len(parts) == 1:
            return parts[0]
        whole, at = self._ttnn.empty((sum(part.shape[0] for part in parts), parts[0].shape[1]), parts[0].dtype), 0
        for part in parts:
            end = at + part.shape[0] // TILE
            self._kernels.copy_tiles(part, self.rows(whole, at, end))
            at = end
        return whole

    def _open(self, gate: Gate, device: int) -> bool:
        awake = self._value(self._shard(self._priority, device), 0) != SKIP
        is_sender = device == self.sender
        return {
            "awake": awake,
            "sender": is_sender,
            "receiver": not is_sender,
            "awake_sender": is_sender and awake,
        }[gate]

    def _value(self, x: DeviceTensor, tile: int) -> float:
        """The first value of a tile of the first row."""
        return float(self._ttnn.to_torch(x)[0, tile * TILE])

    def _tile(self, value: float) -> DeviceTensor:
        return self._ttnn.from_torch(torch.full((TILE, TILE), float(value)), dtype=torch.float32)

    def _shards(self, rows: int, columns: int, dtype: torch.dtype) -> DeviceTensor:
        whole = torch.zeros(DEVICES * rows, columns, dtype=dtype)
        return self._ttnn.from_torch(whole, dtype=dtype, mesh_mapper=self._by_rows)

    def _shard(self, x: DeviceTensor, device: int) -> DeviceTensor:
        tiles = x.shape[0] // TILE // DEVICES
        return self.rows(x, device * tiles, (device + 1) * tiles)

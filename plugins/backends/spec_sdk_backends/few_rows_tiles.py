"""Sizes of a program of :mod:`spec_sdk_backends.few_rows_kernel`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk_backends.dependent_launches import SINCE
from spec_sdk_backends.interleaved_weights import Interleaving

IN_BITS = 256
"""Inputs of a step with weights in few bits, where there is room: one or two blocks of theirs."""
WARPS = 8
"""Of a multiprocessor, which make numbers of codes; fewer leave its memory idle."""
RESERVED = 1024
ROOMY = 200 * 1024
"""Bytes of shared memory of a program, from which on blocks of 128 outputs have room."""


@dataclass(frozen=True)
class FewRowsTile:
    """Outputs and inputs of a block, parts of the inputs, stages of the pipeline, and warps of a program; ``ahead``
    inputs of each output are asked for before a program waits for the launch before.
    """

    outputs: int
    inputs: int
    parts: int
    stages: int
    warps: int
    ahead: int

    @staticmethod
    def choose(
        inputs: int,
        outputs: int,
        rows: int,
        device: torch.device,
        whole: bool = False,
        form: Interleaving | None = None,
        offsets: bool = False,
    ) -> FewRowsTile:
        """What was fastest on an H200, or nearly, for the products of two models (benchmarks/gpu/few_rows.py): one
        program for each multiprocessor, with a deep pipeline, or several where there are more blocks of outputs.

        ``whole``: inputs should not be divided, for what the kernel does with the sum. Blocks of so few outputs as give
        every multiprocessor something are then faster, as long as few rows are read again for each. ``form``: of
        weights in few bits, maybe with ``offsets``, whose tiles were chosen by instructions and bytes, and not timed
        yet.
        """
        if form is not None:
            return FewRowsTile._in_bits(inputs, outputs, rows, device, form, offsets)
        blocks, steps = triton.cdiv(outputs, 64), triton.cdiv(inputs, 128)
        at_once = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else blocks
        if whole and rows <= 16 and blocks < at_once:
            return FewRowsTile(16, 256, 1, 5, 1, 512)
        parts = max((parts for parts in (1, 2, 4, 8) if parts * blocks <= at_once and 4 * parts <= steps), default=1)
        if parts * blocks <= at_once:
            return FewRowsTile(64, 128, parts, 5, 4, 512 if rows > 32 else 256)
        return FewRowsTile(64, 128, parts, 4 if rows <= 16 else 5 if rows <= 32 else 3, 4, 256)

    @staticmethod
    def _in_bits(
        inputs: int, outputs: int, rows: int, device: torch.device, form: Interleaving, offsets: bool
    ) -> FewRowsTile:
        """Rows are read again for each block of outputs, from the L2 cache, and are more bytes than codes are: the more
        rows, the larger a block. Inputs are divided until every multiprocessor has its warps, and stages are as many as
        leave room for a second program beside one.
        """
        if device.type == "cuda":
            has = torch.cuda.get_device_properties(device)
            multiprocessors, room, major = has.multi_processor_count, has.shared_memory_per_multiprocessor, has.major
            # the driver takes a part of it for each program
            room -= RESERVED
        else:
            multiprocessors, room, major = 1, ROOMY, SINCE
        of_block = 32 if rows <= 16 else 64 if rows <= 32 or room < ROOMY else 128
        blocks, warps = triton.cdiv(outputs, of_block), of_block // 16
        most = min(WARPS * multiprocessors // (blocks * warps), triton.cdiv(inputs, IN_BITS) // 2)
        parts = max((parts for parts in (1, 2, 4, 8) if parts <= most), default=1)
        # of two stages none is on its way while another is multiplied
        for at_once in (IN_BITS, form.inputs):
            for stages, shared in ((4, room // 2), (3, room // 2), (4, room), (3, room)):
                tile = FewRowsTile(of_block, at_once, parts, stages, warps, 512)
                if tile.shared_bytes(rows, form, offsets, major) <= shared:
                    return tile
        return FewRowsTile(of_block, form.inputs, parts, 2, warps, 512)

    def shared_bytes(self, rows: int, form: Interleaving, offsets: bool, major: int) -> int:
        """Of shared memory that a program takes at most on compute capability ``major``, with rows of 16 bits and
        weights in few bits.
        """
        # what lies in shared memory while the tensor cores of four warps read it has a place more
        held = self.stages if major >= SINCE and self.outputs >= 64 else self.stages - 1
        codes = self.outputs * self.inputs * form.bits // 8
        factors = self.outputs * self.inputs // form.words * (4 if offsets else 2)
        return (codes + factors) * (self.stages - 1) + self.rows_of_block(rows) * self.inputs * 2 * held

    def rows_of_block(self, rows: int) -> int:
        """Of which so many are real: tensor cores take 16, and with 64 outputs are not slower with 32."""
        padded: int = triton.next_power_of_2(rows)
        return max(16 if self.outputs < 64 else 32, padded)

"""The priority of a device of a mesh in TT-Lang, and a copy of tiles (ALSpec, §4.2, Alg. 2)."""

from __future__ import annotations

from typing import Any

from ttl.sim import ttl

from spec_sdk_backends.ttnn.kernels.work import tiles


@ttl.operation(grid=(1, 1))
def after_verdict(misses: Any, none: Any, right: Any, priority: Any) -> None:
    """The priority of the device that has verified: ``right`` if rows miss, 0 on a hit. Of all tiles the first value
    counts.
    """
    misses_dfb = ttl.make_dataflow_buffer_like(misses, shape=(1, 1), block_count=1)
    none_dfb = ttl.make_dataflow_buffer_like(none, shape=(1, 1), block_count=1)
    right_dfb = ttl.make_dataflow_buffer_like(right, shape=(1, 1), block_count=1)
    priority_dfb = ttl.make_dataflow_buffer_like(priority, shape=(1, 1), block_count=1)

    @ttl.datamovement()
    def read() -> None:
        with misses_dfb.reserve() as misses_block, none_dfb.reserve() as none_block, right_dfb.reserve() as right_block:
            misses_copy = ttl.copy(misses[0, 0], misses_block)
            none_copy = ttl.copy(none[0, 0], none_block)
            right_copy = ttl.copy(right[0, 0], right_block)
            misses_copy.wait()
            none_copy.wait()
            right_copy.wait()

    @ttl.compute()
    def decide() -> None:
        with (
            misses_dfb.wait() as misses_block,
            none_dfb.wait() as none_block,
            right_dfb.wait() as right_block,
            priority_dfb.reserve() as priority_block,
        ):
            priority_block.store(ttl.math.gt(misses_block, none_block) * right_block)

    @ttl.datamovement()
    def write() -> None:
        with priority_dfb.wait() as priority_block:
            ttl.copy(priority_block, priority[0, 0]).wait()


@ttl.operation(grid=(1, 1))
def copy_tiles(source: Any, target: Any) -> None:
    """Every tile of ``source`` to its place in ``target``, of the same shape."""
    rows, columns = tiles(source)
    in_dfb = ttl.make_dataflow_buffer_like(source, shape=(1, columns), block_count=2)
    out_dfb = ttl.make_dataflow_buffer_like(target, shape=(1, columns), block_count=2)

    @ttl.datamovement()
    def read() -> None:
        for row in range(rows):
            with in_dfb.reserve() as block:
                ttl.copy(source[row : row + 1, 0:columns], block).wait()

    @ttl.compute()
    def forward() -> None:
        for _ in range(rows):
            with in_dfb.wait() as block, out_dfb.reserve() as out_block:
                out_block.store(block)

    @ttl.datamovement()
    def write() -> None:
        for row in range(rows):
            with out_dfb.wait() as block:
                ttl.copy(block, target[row : row + 1, 0:columns]).wait()

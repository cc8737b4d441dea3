"""The verdict on predicted attention in TT-Lang: the norms of all heads of a row, the rows of a request, the choice.

Legend: R rows in whole tiles, H tiles that a row's squares lie in (of its heads, or of its columns), X columns.
"""

from __future__ import annotations

from typing import Any

from ttl.sim import ttl

from spec_sdk_backends.ttnn.kernels.work import tiles


@ttl.operation(grid=(1, 1))
def squares(predicted: Any, exact: Any, difference_sq: Any, norm_sq: Any) -> None:
    """Of each row, (predicted - exact)² and exact² summed over the columns of a tile: [R, X] twice → [R, X] twice, in
    the first column of each tile. What :func:`verify` takes for a space other than that of the heads.
    """
    rows, columns = tiles(exact)
    predicted_dfb = ttl.make_dataflow_buffer_like(predicted, shape=(rows, 1), block_count=2)
    exact_dfb = ttl.make_dataflow_buffer_like(exact, shape=(rows, 1), block_count=2)
    apart_dfb = ttl.make_dataflow_buffer_like(difference_sq, shape=(rows, 1), block_count=2)
    wide_dfb = ttl.make_dataflow_buffer_like(norm_sq, shape=(rows, 1), block_count=2)
    difference_dfb = ttl.make_dataflow_buffer_like(difference_sq, shape=(rows, 1), block_count=2)
    norm_dfb = ttl.make_dataflow_buffer_like(norm_sq, shape=(rows, 1), block_count=2)

    @ttl.datamovement()
    def read() -> None:
        for column in range(columns):
            with predicted_dfb.reserve() as predicted_block, exact_dfb.reserve() as exact_block:
                predicted_copy = ttl.copy(predicted[0:rows, column : column + 1], predicted_block)
                exact_copy = ttl.copy(exact[0:rows, column : column + 1], exact_block)
                predicted_copy.wait()
                exact_copy.wait()

    @ttl.compute()
    def square() -> None:
        for _ in range(columns):
            with (
                predicted_dfb.wait() as predicted_block,
                exact_dfb.wait() as exact_block,
                apart_dfb.reserve() as apart_block,
                wide_dfb.reserve() as wide_block,
            ):
                # in float32 before they are squared
                apart_block.store(predicted_block - exact_block)
                wide_block.store(exact_block)
            with (
                apart_dfb.wait() as apart_block,
                wide_dfb.wait() as wide_block,
                difference_dfb.reserve() as difference_block,
                norm_dfb.reserve() as norm_block,
            ):
                difference_block.store(ttl.math.reduce_sum(apart_block * apart_block, dims=[-1], shape=(rows, 1)))
                norm_block.store(ttl.math.reduce_sum(wide_block * wide_block, dims=[-1], shape=(rows, 1)))

    @ttl.datamovement()
    def write() -> None:
        for column in range(columns):
            with difference_dfb.wait() as difference_block, norm_dfb.wait() as norm_block:
                difference_copy = ttl.copy(difference_block, difference_sq[0:rows, column : column + 1])
                norm_copy = ttl.copy(norm_block, norm_sq[0:rows, column : column + 1])
                difference_copy.wait()
                norm_copy.wait()


@ttl.operation(grid=(1, 1))
def verify(
    difference_sq: Any, norm_sq: Any, threshold_sq: Any, live: Any, difference: Any, norm: Any, misses: Any
) -> None:
    """Whether each live row has ‖Â - A‖² < λ²‖A‖² (ALSpec, §3.2).

    Read, float32: the squares [R, H·32], ``threshold_sq`` a tile whose first value is λ², ``live`` [R, 32] with 1 in
    the first column of rows that are no padding. Written, float32: in the first column of ``difference`` and ``norm``
    [R, 32] the two sums over H, and in the first value of the tile ``misses`` how many live rows miss: 0 is a hit.
    """
    rows, columns = tiles(difference_sq)
    difference_dfb = ttl.make_dataflow_buffer_like(difference_sq, shape=(rows, 1), block_count=2)
    norm_dfb = ttl.make_dataflow_buffer_like(norm_sq, shape=(rows, 1), block_count=2)
    threshold_dfb = ttl.make_dataflow_buffer_like(threshold_sq, shape=(1, 1), block_count=1)
    live_dfb = ttl.make_dataflow_buffer_like(live, shape=(rows, 1), block_count=1)
    difference_sum_dfb = ttl.make_dataflow_buffer_like(difference, shape=(rows, 1), block_count=2)
    norm_sum_dfb = ttl.make_dataflow_buffer_like(norm, shape=(rows, 1), block_count=2)
    difference_out_dfb = ttl.make_dataflow_buffer_like(difference, shape=(rows, 1), block_count=1)
    norm_out_dfb = ttl.make_dataflow_buffer_like(norm, shape=(rows, 1), block_count=1)
    misses_dfb = ttl.make_dataflow_buffer_like(misses, shape=(1, 1), block_count=1)

    @ttl.datamovement()
    def read() -> None:
        with threshold_dfb.reserve() as threshold_block, live_dfb.reserve() as live_block:
            threshold_copy = ttl.copy(threshold_sq[0, 0], threshold_block)
            live_copy = ttl.copy(live[0:rows, 0:1], live_block)
            threshold_copy.wait()
            live_copy.wait()
        for column in range(columns):
            with difference_dfb.reserve() as difference_block, norm_dfb.reserve() as norm_block:
                difference_copy = ttl.copy(difference_sq[0:rows, column : column + 1], difference_block)
                norm_copy = ttl.copy(norm_sq[0:rows, column : column + 1], norm_block)
                difference_copy.wait()
                norm_copy.wait()

    @ttl.compute()
    def judge() -> None:
        for column in range(columns):
            with difference_dfb.wait() as difference_block, norm_dfb.wait() as norm_block:
                if column == 0:
                    with difference_sum_dfb.reserve() as difference_sum, norm_sum_dfb.reserve() as norm_sum:
                        difference_sum.store(difference_block)
                        norm_sum.store(norm_block)
                    continue
                with (
                    difference_sum_dfb.wait() as difference_before,
                    norm_sum_dfb.wait() as norm_before,
                    difference_sum_dfb.reserve() as difference_sum,
                    norm_sum_dfb.reserve() as norm_sum,
                ):
                    difference_sum.store(difference_before + difference_block)
                    norm_sum.store(norm_before + norm_block)
        with (
            difference_sum_dfb.wait() as difference_sum,
            norm_sum_dfb.wait() as norm_sum,
            threshold_dfb.wait() as threshold_block,
            live_dfb.wait() as live_block,
            difference_out_dfb.reserve() as difference_out,
            norm_out_dfb.reserve() as norm_out,
            misses_dfb.reserve() as misses_block,
        ):
            thresholds = ttl.block.broadcast(threshold_block, dims=[-2, -1], shape=(rows, 1))
            hit = ttl.math.lt(difference_sum, norm_sum * thresholds)
            misses_block.store(ttl.math.reduce_sum(live_block - live_block * hit, dims=[-2, -1], shape=(1, 1)))
            difference_out.store(difference_sum)
            norm_out.store(norm_sum)

    @ttl.datamovement()
    def write() -> None:
        with (
            difference_out_dfb.wait() as difference_block,
            norm_out_dfb.wait() as norm_block,
            misses_dfb.wait() as misses_block,
        ):
            difference_copy = ttl.copy(difference_block, difference[0:rows, 0:1])
            norm_copy = ttl.copy(norm_block, norm[0:rows, 0:1])
            misses_copy = ttl.copy(misses_block, misses[0, 0])
            difference_copy.wait()
            norm_copy.wait()
            misses_copy.wait()


@ttl.operation(grid=(1, 1))
def choose(predicted: Any, exact: Any, misses: Any, none: Any, out: Any) -> None:
    """The prediction [R, X] if ``misses`` is that of a hit, the exact attention otherwise, to ``out``.

    ``none``: a tile of zeros in float32.
    """
    rows, columns = tiles(exact)
    misses_dfb = ttl.make_dataflow_buffer_like(misses, shape=(1, 1), block_count=1)
    none_dfb = ttl.make_dataflow_buffer_like(none, shape=(1, 1), block_count=1)
    predicted_dfb = ttl.make_dataflow_buffer_like(predicted, shape=(rows, 1), block_count=2)
    exact_dfb = ttl.make_dataflow_buffer_like(exact, shape=(rows, 1), block_count=2)
    out_dfb = ttl.make_dataflow_buffer_like(out, shape=(rows, 1), block_count=2)

    @ttl.datamovement()
    def read() -> None:
        with misses_dfb.reserve() as misses_block, none_dfb.reserve() as none_block:
            misses_copy = ttl.copy(misses[0, 0], misses_block)
            none_copy = ttl.copy(none[0, 0], none_block)
            misses_copy.wait()
            none_copy.wait()
        for column in range(columns):
            with predicted_dfb.reserve() as predicted_block, exact_dfb.reserve() as exact_block:
                predicted_copy = ttl.copy(predicted[0:rows, column : column + 1], predicted_block)
                exact_copy = ttl.copy(exact[0:rows, column : column + 1], exact_block)
                predicted_copy.wait()
                exact_copy.wait()

    @ttl.compute()
    def select() -> None:
        with misses_dfb.wait() as misses_block, none_dfb.wait() as none_block:
            hit = ttl.math.eq(misses_block, none_block)
            for _ in range(columns):
                with (
                    predicted_dfb.wait() as predicted_block,
                    exact_dfb.wait() as exact_block,
                    out_dfb.reserve() as out_block,
                ):
                    hits = ttl.block.broadcast(hit, dims=[-2, -1], shape=(rows, 1))
                    out_block.store(ttl.block.where(hits, predicted_block, exact_block))

    @ttl.datamovement()
    def write() -> None:
        for column in range(columns):
            with out_dfb.wait() as out_block:
                ttl.copy(out_block, out[0:rows, column : column + 1]).wait()

"""Sums that depend on the pass, and promises of equal bits that nobody tried, on the CUDA backend."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PACKAGE = "plugins/backends/spec_sdk_backends/"
ATTENTION, PRODUCTS = PACKAGE + "aligned_attention_kernel.py", PACKAGE + "fixed_tile_kernel.py"
OF_ATTENTION, OF_PRODUCTS = "tests/kernels/test_aligned_attention.py", "tests/kernels/test_fixed_tiles.py"
BITS = (f"{OF_ATTENTION}::test_a_node_has_the_bits_of_plain_decoding",)
RIGHT = (f"{OF_ATTENTION}::test_every_kind_of_pass",)
OF_BACKEND = "tests/kernels/test_deterministic_cuda.py"
PROMISED = (f"{OF_BACKEND}::test_what_is_not_promised",)
RESUMED = ("tests/benchmarks/test_bit_equal.py::test_a_proof_goes_on_where_it_ended",)

DETERMINISTIC_CUDA = (
    Mutant(
        "aligned attention: a window's blocks begin at the first key that a row of the tile sees",
        ATTENTION,
        "tl.min(tl.where(in_span_M, first_M, FAR), 0) // BLOCK_K * BLOCK_K, span * SPAN)",
        "tl.min(tl.where(in_span_M, first_M, FAR), 0), span * SPAN)",
        BITS,
    ),
    Mutant(
        "aligned attention: the columns behind the prefix are taken for the ancestors",
        ATTENTION,
        "column_K = tl.where(behind_K, prefix + ancestor_K, number_K)",
        "column_K = number_K",
        RIGHT,
    ),
    Mutant(
        "aligned attention: a last span that is not whole is not joined",
        ATTENTION,
        "range(first // SPAN // BLOCK_S * BLOCK_S, (keys + SPAN - 1) // SPAN, BLOCK_S)",
        "range(first // SPAN // BLOCK_S * BLOCK_S, keys // SPAN, BLOCK_S)",
        RIGHT,
    ),
    Mutant(
        "aligned attention: a slot's whole subtree counts among a row's keys",
        ATTENTION,
        "seen_T = ((start_T <= query) & (query < end_T)).to(tl.int32)",
        "seen_T = ((start_T <= query) & (query <= end_T)).to(tl.int32)",
        RIGHT,
    ),
    Mutant(
        "aligned attention: spans are joined without regard to their largest scores",
        ATTENTION,
        "weight_S = tl.exp2(top_S - new)",
        "weight_S = tl.where(real_S, 1.0, 0.0)",
        RIGHT,
    ),
    Mutant(
        "fixed tiles: the third tile adds to what the second has",
        PRODUCTS,
        "first_row + 2 * TILE_ROWS, K, input_I, there_I, weight_IO, acc2_MO, I)",
        "first_row + TILE_ROWS, K, input_I, there_I, weight_IO, acc2_MO, I)",
        (f"{OF_PRODUCTS}::test_products",),
    ),
    Mutant(
        "fixed tiles: blocks of weights go by the number of rows",
        PACKAGE + "fixed_tile_products.py",
        "blocks = Blocks.choose(x.dtype, bits, x.is_cuda)",
        "blocks = Blocks(32 if K > 1 else 16, 64)",
        (f"{OF_PRODUCTS}::test_a_row_is_the_same_in_every_pass",),
    ),
    Mutant(
        "fixed tiles: a view is read from where it does not begin",
        PACKAGE + "fixed_tile_products.py",
        "tensor = tensor.contiguous()\n    return",
        "return",
        (f"{OF_PRODUCTS}::test_a_view_that_begins_anywhere",),
    ),
    Mutant(
        "promise: a GPU does not try the model",
        PACKAGE + "deterministic_ops.py",
        'return tried(executor) if executor.device.type == "cuda" else None',
        "return None",
        PROMISED,
    ),
    Mutant(
        "promise: made of blocks that the fused kernels do not run",
        PACKAGE + "deterministic_ops.py",
        "    if unfused_because:\n",
        "    if False:\n",
        PROMISED,
    ),
    Mutant(
        "promise: captured passes of some of the blocks do not keep it",
        "spec_sdk/model/graph_executor.py",
        "made.bits_vary = self.bits_vary",
        "pass",
        (f"{OF_BACKEND}::test_captured_passes",),
    ),
    Mutant(
        "proof: goes on with the prompts that it has compared",
        "benchmarks/bit_equal.py",
        "for first in range(answered, len(prompts), options.together):",
        "for first in range(0, len(prompts) - answered, options.together):",
        RESUMED,
    ),
    Mutant(
        "proof: goes on with a report of other options",
        "benchmarks/bit_equal.py",
        'if key not in ("backend", "waiting") and known[key] != value:',
        "if False:",
        RESUMED,
    ),
)

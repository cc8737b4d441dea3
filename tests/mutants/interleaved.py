"""Weights in few bits on a GPU that are wrong where nothing would say so."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PACKAGE = "plugins/backends/spec_sdk_backends/"
KERNELS, LAYOUT = PACKAGE + "interleaved_kernels.py", PACKAGE + "interleaved_weights.py"
FEW_ROWS, PRODUCTS = PACKAGE + "few_rows_block.py", PACKAGE + "interleaved_products.py"
TILES, TRIAL = PACKAGE + "few_rows_tiles.py", PACKAGE + "interleaved_trial.py"
TESTS = "tests/kernels/test_interleaved.py"
KEPT = f"{TESTS}::test_no_weight_is_lost"
PRODUCT = f"{TESTS}::test_products"
AROUND = f"{TESTS}::test_products_with_what_stands_around_them"

INTERLEAVED: tuple[Mutant, ...] = (
    Mutant(
        "in bits: the fifth bit of a code is that of its neighbour",
        KERNELS,
        "_shifted(upper_OW, AT + 4 - PLACE) & (1 << (AT + 4))",
        "_shifted(upper_OW, AT + 5 - PLACE) & (1 << (AT + 4))",
        (KEPT, PRODUCT),
    ),
    Mutant(
        "in bits: a group has the other scale of its pair",
        KERNELS,
        "return _half(pair_O, PLACE % 2 == 1), 0.0",
        "return _half(pair_O, PLACE % 2 == 0), 0.0",
        (KEPT, PRODUCT),
    ),
    Mutant(
        "in bits: codes of 8 bits keep what they are stored with added",
        KERNELS,
        "(offset_O - scale_O * (FIRST + MIDDLE))",
        "(offset_O - scale_O * (FIRST + (0 if BITS == 8 else MIDDLE)))",
        (PRODUCT,),
    ),
    Mutant(
        "in bits: a row that there is not is another",
        KERNELS,
        'none = tl.where((row >= 0) & (row < OUTPUTS), 0.0, float("nan"))',
        "none = tl.where((row >= 0) & (row < OUTPUTS), 0.0, 0.0)",
        (KEPT,),
    ),
    Mutant(
        "in bits: beside offsets codes are centered",
        LAYOUT,
        "code_OI += 0 if offsets and form.bits < 8 else form.middle",
        "code_OI += 0 if offsets else form.middle",
        (KEPT,),
    ),
    Mutant(
        "in bits: rows behind the last are summed into the squares",
        FEW_ROWS,
        "there_O = real_O & (",
        "there_O = (",
        (AROUND,),
    ),
    Mutant(
        "in bits: a part of nothing reads on",
        FEW_ROWS,
        "    WHOLE: tl.constexpr = BLOCKS % (AT_ONCE * PARTS) == 0\n",
        "    WHOLE: tl.constexpr = True\n",
        (f"{TESTS}::test_parts_of_a_product",),
    ),
    Mutant(
        "in bits: the sum is that of the first part",
        PRODUCTS,
        "if len(part_S1KO) == 1 else",
        "if len(part_S1KO) >= 1 else",
        (f"{TESTS}::test_parts_are_summed",),
    ),
    Mutant(
        "in bits: a tile takes more shared memory than there is",
        TILES,
        "for stages, shared in ((4, room // 2), (3, room // 2), (4, room), (3, room)):",
        "for stages, shared in ((4, 4 * room), (3, room // 2), (4, room), (3, room)):",
        (f"{TESTS}::test_tiles",),
    ),
    Mutant(
        "in bits: a wrong product is taken if it is fast",
        TRIAL,
        "if not off_by < CLOSE or seconds",
        "if seconds",
        (f"{TESTS}::test_only_where_they_gain",),
    ),
)

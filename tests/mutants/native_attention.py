"""Native attention that looks where it must not."""

from __future__ import annotations

from spec_sdk.model.compiler import processor
from tests.mutants.mutant import Mutant

SOURCE = "plugins/backends/spec_sdk_backends/native/source/"
TESTS = "tests/native/test_attention.py"

OF_SPECULATION = "tests/native/test_speculative.py"

NATIVE_ATTENTION: tuple[Mutant, ...] = (
    Mutant(
        "native speculation: the last keys are taken from the first on",
        SOURCE + "speculative.h",
        "int64_t at = from * heads.dim;",
        "int64_t at = 0;",
        (OF_SPECULATION,),
    ),
    Mutant(
        "native speculation: the prediction sees no tree",
        SOURCE + "speculative.h",
        "ends.last, ends.last, true, kept[1])",
        "ends.last, ends.last, false, kept[1])",
        (OF_SPECULATION,),
    ),
    Mutant(
        "native speculation: the difference is that of rounded numbers",
        SOURCE + "speculative.h",
        "difference[row] += off * off;",
        "difference[row] += (predicted - exact) * (predicted - exact);",
        (OF_SPECULATION,),
    ),
    Mutant(
        "native speculation: padding is attended for",
        SOURCE + "speculative.h",
        "if (!middle.sight.live(row)) {",
        "if (false) {",
        (OF_SPECULATION,),
    ),
    Mutant(
        "native speculation: a window is not noticed",
        "plugins/backends/spec_sdk_backends/native/speculative.py",
        "B != 1 or mask.window is not None or",
        "B != 1 or",
        (OF_SPECULATION,),
    ),
    Mutant(
        "native attention: the columns behind the prefix are taken for the ancestors",
        SOURCE + "attention_scores.h",
        "own[q * WIDTH + column]",
        "own[q * WIDTH + next[n] - piece.common]",
        (f"{TESTS}::test_dense_float64",),
    ),
    Mutant(
        "native attention: a window hides nothing",
        SOURCE + "attention_scores.h",
        "if (hidden > 0) std::fill",
        "if (false) std::fill",
        (f"{TESTS}::test_dense_float64",),
    ),
    Mutant(
        "native blocks: a row is rotated by its number in the pass",
        SOURCE + "block.h",
        "place = work.position[r] * s.dim",
        "place = r * s.dim",
        ("tests/native/test_decoder.py",),
    ),
    Mutant(
        "native blocks: padding is written to the cache",
        SOURCE + "block.h",
        "if (n >= pass.live[b]) return;",
        "",
        ("tests/native/test_decoder.py",),
    ),
    Mutant(
        "native passes: a row's place in its tree is taken for that in the text",
        "plugins/backends/spec_sdk_backends/native/structures.py",
        "            first + row,\n            first + 2 * row,\n",
        "            first + row,\n            first + row,\n",
        ("tests/native/test_decoder.py",),
    ),
)
if "avx512_bf16" in processor().split():
    NATIVE_ATTENTION += (
        Mutant(
            "native attention: every row gets the values of the longest path",
            SOURCE + "piece.h",
            "if (column(a, j) != column(b, j)) return false;",
            "",
            (f"{TESTS}::test_dense_float64",),
        ),
        Mutant(
            "native attention: a committed key and a node are no pair",
            SOURCE + "attention_pairs.h",
            "(end + 1) / 2 - joint",
            "end / 2 - joint",
            (f"{TESTS}::test_a_path_gets_the_same_bits_as_tree_or_as_prefix",),
        ),
        Mutant(
            "native attention: pairs of committed keys end behind the prefix",
            SOURCE + "attention_pairs.h",
            "int64_t joint = piece.common / 2;",
            "int64_t joint = (piece.common + 1) / 2;",
            (f"{TESTS}::test_dense_float64",),
        ),
        Mutant(
            "native attention: a window hides no key of a pair",
            SOURCE + "attention_pairs.h",
            "std::fill(score, score + hidden, HIDDEN);",
            "",
            (f"{TESTS}::test_dense_float64",),
        ),
        Mutant(
            "native attention: pairs multiply hidden values that are no numbers by 0",
            SOURCE + "attention_pairs.h",
            "if (!finite(value(j), D))",
            "if (false)",
            (f"{TESTS}::test_what_a_row_does_not_see_need_not_be_a_number",),
        ),
    )
if "amx_bf16" in processor().split():
    NATIVE_ATTENTION += (
        Mutant(
            "native attention: AMX multiplies hidden values that are no numbers by 0",
            SOURCE + "attention_amx.h",
            "if (!finite(value(i), D))",
            "if (false)",
            (f"{TESTS}::test_what_a_row_does_not_see_need_not_be_a_number",),
        ),
    )

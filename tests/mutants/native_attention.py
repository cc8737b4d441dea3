"""Native attention that looks where it must not."""

from __future__ import annotations

from spec_sdk.model.compiler import processor
from tests.mutants.mutant import Mutant

SOURCE = "plugins/backends/spec_sdk_backends/native/source/"
TESTS = "tests/native/test_attention.py"

NATIVE_ATTENTION: tuple[Mutant, ...] = (
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
)
if "amx_bf16" in processor().split():
    NATIVE_ATTENTION += (
        Mutant(
            "native attention: AMX gives every row the values of the longest path",
            SOURCE + "attention_amx.h",
            "if (piece.column(a, j) != piece.column(b, j)) return false;",
            "",
            (f"{TESTS}::test_dense_float64",),
        ),
        Mutant(
            "native attention: AMX multiplies hidden values that are no numbers by 0",
            SOURCE + "attention_amx.h",
            "if (!finite(value(i)))",
            "if (false)",
            (f"{TESTS}::test_what_a_row_does_not_see_need_not_be_a_number",),
        ),
    )

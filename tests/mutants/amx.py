"""AMX that cannot be turned off, and figures of products that were measured without it."""

from __future__ import annotations

from spec_sdk.model.compiler import processor
from tests.mutants.mutant import Mutant

LIBRARY = "plugins/backends/spec_sdk_backends/native/library.py"
MEASURED = "plugins/backends/spec_sdk_backends/native/kept_figures.py"
OF_AMX = "tests/native/test_amx.py"

AMX: tuple[Mutant, ...] = (
    Mutant(
        "amx: the variable turns nothing off",
        LIBRARY,
        'use_amx(loaded, os.environ.get(AMX) != "0")',
        "use_amx(loaded, True)",
        (f"{OF_AMX}::test_the_variable_turns_it_off",),
    ),
    Mutant(
        "amx: figures of products without it count with it",
        MEASURED,
        "{library()._name} {uses_amx()} {torch.__version__}",
        "{library()._name} {torch.__version__}",
        (f"{OF_AMX}::test_what_torch_is_faster_at_is_measured_for_both",),
    ),
)
"""Its tests are skipped elsewhere."""
if "amx_int8" not in processor().split():
    AMX = ()

"""Lists of visible blocks, verdict tables and recovery that are wrong where nothing would say so."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PACKAGE = "plugins/backends/spec_sdk_backends/"
TABLES, RECOVERY = PACKAGE + "verdict_tables.py", PACKAGE + "recovery_kernels.py"
BLOCKS = "tests/kernels/test_visible_blocks.py"
LISTED = f"{BLOCKS}::test_a_list_has_the_blocks_that_a_row_sees"
OF_TABLES = "tests/samplers/test_verdict_tables.py"
KNOWN = f"{OF_TABLES}::test_verdicts_are_those_of_launches_that_know_the_trees"
OF_RECOVERY = "tests/kernels/test_recovery.py"
REDONE = f"{OF_RECOVERY}::test_what_was_missed_is_redone_and_nothing_else"

GPU_GRAPHS = (
    Mutant(
        "lists: a slot whose subtree ended before the rows is listed",
        PACKAGE + "tree_attention_kernel.py",
        "seen_YK = (start_YK <= last_query) & (end_YK > first_query)",
        "seen_YK = (start_YK <= last_query) & (end_YK >= first_query)",
        (LISTED,),
    ),
    Mutant(
        "lists: kept beyond their pass",
        PACKAGE + "triton_ops.py",
        "cache.made[key] = visible_blocks(cache.inputs, tiling, R)",
        "cache.made[key] = self.__dict__.setdefault(str(key), visible_blocks(cache.inputs, tiling, R))",
        (f"{BLOCKS}::test_a_pass_makes_one_list_and_the_next_pass_its_own",),
    ),
    Mutant(
        "tables: a second request reads the first one's rows",
        TABLES,
        "offsets[first : first + tree.size] = offset_R[first : first + tree.size]",
        "offsets[first : first + tree.size] = offset_R[: tree.size]",
        (KNOWN,),
    ),
    Mutant(
        "tables: statistics of the first draft distribution for all",
        TABLES,
        "= distributions.offsets[distribution]",
        "= distributions.offsets[0]",
        (KNOWN,),
    ),
    Mutant(
        "recovery: requests with a hit are written too",
        RECOVERY,
        "stored_M = real_M & (tl.load(hit_ptr + row_M // N, mask=real_M, other=1) == 0)",
        "stored_M = real_M",
        (REDONE,),
    ),
    Mutant(
        "recovery: one hit is enough for all to return",
        RECOVERY,
        "return tl.min(hit_B, 0) == 0",
        "return tl.max(hit_B, 0) == 0",
        (REDONE,),
    ),
)

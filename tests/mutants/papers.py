"""What stands beside the papers' tables: estimates, bounds and columns that are of something else."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SCHEDULES = "tests/latency/test_schedules.py"
STRATEGIES = "tests/latency/test_strategies.py"
BOUNDS = "tests/cli/test_error_bounds.py"
ALSPEC = "tests/benchmarks/test_alspec_tables.py"
TASKS = "tests/benchmarks/test_task_rows.py"

PAPERS = (
    Mutant(
        "schedules: a group that attends goes on from a prediction",
        "spec_sdk/latency/schedules.py",
        "free = starts[j + 1 - groups] + times.sender if j + 1 >= groups else 0.0",
        "free = starts[j + 1 - groups] if j + 1 >= groups else 0.0",
        (f"{SCHEDULES}::test_the_mean_is_that_of_all_outcomes",),
    ),
    Mutant(
        "schedules: the last token does not wait for its verdict",
        "spec_sdk/latency/schedules.py",
        "max(starts[left], verified)",
        "starts[left]",
        (f"{SCHEDULES}::test_the_mean_is_that_of_all_outcomes",),
    ),
    Mutant(
        "strategies: every group attends to all keys",
        "spec_sdk/latency/strategies.py",
        "share = -(-context // groups)",
        "share = context",
        (f"{STRATEGIES}::test_every_way_of_two_devices",),
    ),
    Mutant(
        "strategies: only the contexts that are asked for are looked at",
        "spec_sdk/latency/strategies.py",
        "for i in range(64)}",
        "for i in range(1)}",
        (f"{STRATEGIES}::test_crossovers_are_found_to_the_token",),
    ),
    Mutant(
        "bounds: the layer's own rest is not in the first order",
        "spec_sdk/error_bounds.py",
        """        behind += constants["mlp"][i]
        if attention["hit"][i] and attention["difference"][i]:
            bound += _entering(attention, constants, i) * (1 + behind)
""",
        """        if attention["hit"][i] and attention["difference"][i]:
            bound += _entering(attention, constants, i) * (1 + behind)
        behind += constants["mlp"][i]
""",
        (f"{BOUNDS}::test_all_bounds",),
    ),
    Mutant(
        "alspec tables: passes without predictions count",
        "benchmarks/alspec_tables.py",
        "predicting = [layers for layers in passes if any(hit is not None for hit in layers)]",
        "predicting = list(passes)",
        (f"{ALSPEC}::test_the_share_that_is_replaced",),
    ),
    Mutant(
        "task rows: a candidate's row is of prompts that others did not answer",
        "benchmarks/support/task_rows.py",
        "by[answer.question] >= given.intersection(names)",
        "by[answer.question]",
        (f"{TASKS}::test_only_what_all_answered_counts",),
    ),
    Mutant(
        "task rows: recovery is in no stage",
        "benchmarks/support/task_rows.py",
        'stage.get("verify", 0.0) + stage.get("recover", 0.0)',
        'stage.get("verify", 0.0)',
        (f"{TASKS}::test_columns_by_hand",),
    ),
)

"""A policy that misreads trees or costs, and a cost curve that is measured or kept wrongly."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RANKS = "spec_sdk/level_ranks.py"
ACCEPTANCE = "spec_sdk/policy/acceptance.py"
SHAPES = "spec_sdk/policy/shapes.py"
OBTAINED = "spec_sdk/policy/obtained_costs.py"
CURVE = "spec_sdk/bench/cost_curve.py"
KEPT = "spec_sdk/bench/kept_costs.py"
MEASURING = "spec_sdk/bench/measuring.py"
LEVELS = "plugins/growth/spec_sdk_growth/most_probable.py"
OF_RANKS = "tests/tree/test_level_ranks.py"
OF_SHAPES = "tests/policies/test_shapes.py"
OF_CURVE = "tests/bench/test_cost_curve.py"
OF_COSTS = "tests/bench/test_pass_costs.py"
OF_MEASURING = "tests/bench/test_measuring.py"

ADAPTING = (
    Mutant(
        "a late turn is ranked like an early one",
        RANKS,
        "(late_N[node], place_N[node], rank_N[parent_N[node]])",
        "(late_N[node], -place_N[node])",
        (OF_RANKS,),
    ),
    Mutant(
        "narrower trees are not told from wider ones",
        ACCEPTANCE,
        "kept = accepted if narrower == width else",
        "kept = accepted if True else",
        (f"{OF_SHAPES}::test_one_wide_tree_tells_what_narrower_ones_would_have_done",),
    ),
    Mutant(
        "a path that left the narrow tree comes back into it",
        ACCEPTANCE,
        "within[i] = max(within[i - 1], ranks[i])",
        "within[i] = ranks[i]",
        (f"{OF_SHAPES}::test_a_path_that_left_the_narrow_tree_does_not_come_back",),
    ),
    Mutant(
        "the first shape that pays is taken, not the best",
        SHAPES,
        "            elif per_token > WORSE * least_of_width:\n                break\n",
        "            else:\n                return best, least\n",
        (f"{OF_SHAPES}::test_the_best_shape_is_the_one_of_a_full_search",),
    ),
    Mutant("every run measures", OBTAINED, "if tokens is None or tokens < LEAST_TOKENS or", "if", (OF_COSTS,)),
    Mutant(
        "between contexts the curve is that of the shorter one",
        CURVE,
        "return low + (high - low) *",
        "return low + 0 *",
        (OF_CURVE,),
    ),
    Mutant("costs of another machine are taken", KEPT, ' or kept["facts"] != _as_json(facts)', "", (OF_COSTS,)),
    Mutant("costs never get old", KEPT, "not 0 <= age <= LONGEST_KEPT_S or ", "", (OF_COSTS,)),
    Mutant(
        "measuring looks at no time",
        MEASURING,
        "if left <= 0 or ALLOWED * _at_most(points, size) > left:",
        "if left <= 0:",
        (OF_MEASURING,),
    ),
    Mutant(
        "the first level takes all nodes",
        LEVELS,
        "share = fed.room // (depth - level)",
        "share = max(1, fed.room - (depth - level - 1))",
        ("tests/drafters/test_proposals.py::test_a_tree_becomes_narrower_not_shallower_where_nodes_are_few",),
    ),
    Mutant(
        "a pass is divided by rows alone",
        "spec_sdk/engine/time_shares.py",
        "fixed_s / count + row_s * rows for rows in rows_B",
        "row_s * rows for rows in rows_B",
        ("tests/engine/test_time_shares.py",),
    ),
    Mutant(
        "a pass is divided by what it takes less for fewer requests",
        "spec_sdk/engine/time_shares.py",
        "self._of_count.setdefault(count, SizeTimes())",
        "self._of_count.setdefault(0, SizeTimes())",
        ("tests/engine/test_time_shares.py::test_other_numbers_of_requests_are_learned_apart",),
    ),
    Mutant(
        "sizes: what was slow once stays slow",
        "spec_sdk/running_times.py",
        "met <= self._added - FORGET_AFTER and known > 1",
        "False",
        ("tests/policies/test_running_times.py",),
    ),
    Mutant(
        "sizes: plain steps are forgotten",
        "spec_sdk/running_times.py",
        " and known > 1]",
        "]",
        ("tests/policies/test_running_times.py::test_one_row_is_never_forgotten",),
    ),
)

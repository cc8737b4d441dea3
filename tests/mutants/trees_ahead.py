"""Passes over trees that nobody has read yet, wrong where an answer would differ, or where they would be of no use."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CLOSING, SESSION = "spec_sdk/model/tree_closing.py", "spec_sdk/model/session.py"
GRAPHS, ENGINE = "spec_sdk/model/graph_executor.py", "spec_sdk/engine/tree_ahead.py"
GROWN, DRAFTER = "spec_sdk/ops/grown_paths.py", "plugins/drafters/spec_sdk_drafters/growing_drafter.py"
TOLD = "tests/drafters/test_trees_told.py"
AHEAD = "tests/engine/test_tree_ahead.py"
SAME = f"{AHEAD}::test_answers_and_states_are_those_of_passes_behind_the_read[greedy]"


def told(case: str) -> tuple[str]:
    return (f"{TOLD}::test_of_a_draft_model[{case}]",)


TREES_AHEAD = (
    Mutant(
        "trees ahead: of a last level all children are picked",
        "spec_sdk/model/path_levels.py",
        "shares_of(longest)[len(counts)]",
        "longest.width * 3",
        told("beam"),
    ),
    Mutant(
        "trees ahead: picked children compete",
        CLOSING,
        "offered_BC = offered_BC & picked_BC",
        "offered_BC = offered_BC | picked_BC",
        told("beam"),
    ),
    Mutant(
        "trees ahead: levels have no price",
        CLOSING,
        ".exp().sum(1, keepdim=True) < least_B1)",
        ".exp().sum(1, keepdim=True) < 0 * least_B1)",
        told("levels at a price"),
    ),
    Mutant(
        "trees ahead: nodes have no price",
        CLOSING,
        "cumsum(1) - cost_BM",
        "cumsum(1) - 0 * cost_BM.nan_to_num()",
        told("dear nodes"),
    ),
    Mutant(
        "trees ahead: the least probable are kept",
        CLOSING,
        "ordered = joint_BC.sort(dim=1, descending=True, stable=True)",
        "ordered = (-joint_BC).sort(dim=1, descending=True, stable=True)",
        told("dynamic"),
    ),
    Mutant(
        "trees ahead: nodes in the order of their probability",
        CLOSING,
        "kept_B1, order_BM, C).sort(1).values",
        "kept_B1, order_BM, C)",
        told("beam"),
    ),
    Mutant(
        "trees ahead: nodes in the order of creation",
        CLOSING,
        "value=True), start_BN.long(), M + 1)",
        "value=True), torch.arange(M + 1), M + 1)",
        told("dynamic"),
    ),
    Mutant(
        "trees ahead: a fed child is nobody's ancestor",
        CLOSING,
        "ancestor_BNN[:, 1:, 1:] += of_parent",
        "ancestor_BNN[:, 1:, 1:] += 0 * of_parent",
        told("dynamic"),
    ),
    Mutant(
        "trees ahead: places behind the tree hold something",
        CLOSING,
        "return closed.scatter_(",
        "return closed.add_(1).scatter_(",
        told("dear nodes"),
    ),
    Mutant(
        "trees ahead: prices are those of the capture",
        GRAPHS,
        "upload(prices, captured.prices)",
        "upload(captured.prices, captured.prices)",
        (f"{TOLD}::test_prices_may_change",),
    ),
    Mutant(
        "trees ahead: the target is told of a tree that is read",
        GRAPHS,
        "reading = host_reads.begin(made.numbers)",
        "reading = host_reads.begin(host_reads.read(made.numbers)[0])",
        (f"{TOLD}::test_it_is_told_before_it_is_read",),
    ),
    Mutant(
        "trees ahead: the tree goes on behind what was told",
        DRAFTER,
        "            if asks and self._told:\n",
        "            if asks and not self._told:\n",
        (f"{TOLD}::test_a_level_more_than_was_fed_ends_the_tree",),
    ),
    Mutant(
        "trees ahead: as many rows as prices",
        DRAFTER,
        "budget.node_costs[: max(LEAST_ROOM, 1 << last.bit_length())]",
        "budget.node_costs[: max(LEAST_ROOM, 64 << last.bit_length())]",
        (f"{TOLD}::test_under_prices_the_next_tree_has_room_for_twice_as_many_nodes",),
    ),
    Mutant(
        "trees ahead: other trees are taken for the one",
        GROWN,
        "!= [[*tree.token_N[1:]], [*tree.depth_N]",
        "!= [token[1:], [*tree.depth_N]",
        told("dynamic"),
    ),
    Mutant(
        "trees ahead: all rows lie at the root's place",
        SESSION,
        "inputs.position_BN[:, :N].add_(depth_BN)",
        "inputs.position_BN[:, :N].add_(0 * depth_BN)",
        (SAME,),
    ),
    Mutant(
        "trees ahead: nobody sees anybody",
        SESSION,
        "inputs.key_end_BT[:, :N].clamp_(min=end_BN)",
        "inputs.key_end_BT[:, :N].clamp_(min=0 * end_BN)",
        (SAME,),
    ),
    Mutant(
        "trees ahead: windows look at the root's place",
        SESSION,
        "inputs.key_position_BT[:, :N].add_(depth_BN)",
        "inputs.key_position_BT[:, :N].add_(0 * depth_BN)",
        (f"{AHEAD}::test_closed_trees_are_scored_as_the_trees_themselves[mistral_sliding]",),
    ),
    Mutant(
        "trees ahead: a token that the target lacks",
        SESSION,
        ".copy_(token_BN[:, 1:].clamp(0, self.vocabulary - 1))",
        ".copy_(token_BN[:, 1:])",
        (f"{AHEAD}::test_a_token_that_the_target_lacks_breaks_nothing",),
    ),
    Mutant(
        "trees ahead: any tree is handed out",
        ENGINE,
        "return launched.closed.are(trees) and self._target",
        "return self._target",
        (f"{AHEAD}::test_a_pass_over_another_tree_is_made_again",),
    ),
    Mutant(
        "trees ahead: a pass that was written over is handed out",
        ENGINE,
        "and self._target.take_ahead(slots, [tree.token_N for tree in trees])",
        "and (self._target.take_ahead(slots, [tree.token_N for tree in trees]) or True)",
        (f"{AHEAD}::test_a_pass_that_was_written_over_is_made_again",),
    ),
    Mutant(
        "trees ahead: rows behind the tree are told of",
        ENGINE,
        "logits_NV=scores.logits_NV[:size]",
        "logits_NV=scores.logits_NV",
        (f"{AHEAD}::test_scores_are_of_the_trees_alone",),
    ),
    Mutant(
        "trees ahead: some of several requests have a pass",
        ENGINE,
        "and plain and len(asked) == len(turns)):",
        "and plain and asked):",
        (f"{AHEAD}::test_one_that_drafts_beside_one_that_does_not",),
    ),
    Mutant(
        "trees ahead: the last cycle's tree may be told of",
        ENGINE,
        "            self._drafter.trees_told = None\n",
        "            pass\n",
        (f"{AHEAD}::test_a_drafter_that_fails_behind_it",),
    ),
    Mutant(
        "trees ahead: the pass is a part of drafting",
        "spec_sdk/engine/scheduler.py",
        "            marks[1] = launched.began\n",
        "            marks[1] = launched.ended\n",
        (f"{AHEAD}::test_the_pass_is_no_part_of_drafting",),
    ),
    Mutant(
        "trees ahead: a tree of one shape lies in the order of creation",
        "spec_sdk/model/draft_levels.py",
        "token_BX.int()[:, None, order_X]",
        "token_BX.int()[:, None]",
        told("a drawn tree"),
    ),
    Mutant(
        "trees ahead: a tree that the host cuts is told of whole",
        DRAFTER,
        "return shape.drawn or self.growth.most_offered(request) == 0 and not budget.node_costs",
        "return shape.drawn or self.growth.most_offered(request) == 0",
        (f"{TOLD}::test_a_tree_that_may_be_cut_on_the_host_is_not_told",),
    ),
    Mutant(
        "draft levels: a price ends what is drawn",
        DRAFTER,
        "if shape.drawn else not budget.level_cost)",
        "if shape.drawn and not budget.level_cost else not budget.level_cost)",
        ("tests/model/test_path_levels.py::test_a_drafter_drafts_the_same[drawn chain]",),
    ),
    Mutant(
        "trees ahead: requests of less depth have the levels of others",
        CLOSING,
        "(reached_B1 & (levels_B1 >= level))",
        "(reached_B1 & (levels_B1 >= 0))",
        (f"{AHEAD}::test_several_requests_share_a_pass[greedy]",),
    ),
    Mutant(
        "trees ahead: all requests have the prices of one",
        "spec_sdk/model/tree_closing.py",
        "        return torch.tensor(rows, dtype=torch.float64)",
        "        return torch.tensor([rows[0] for _ in rows], dtype=torch.float64)",
        (f"{AHEAD}::test_scores_are_of_the_trees_alone",),
    ),
    Mutant(
        "trees ahead: trees of some requests are told of",
        DRAFTER,
        "together, tells = [requests[i] for i in able], len(able) == len(requests)",
        "together, tells = [requests[i] for i in able], True",
        (f"{TOLD}::test_trees_of_some_requests_are_not_told",),
    ),
    Mutant(
        "trees ahead: places of no node see nothing",
        SESSION,
        "own_ends = range(1, N + 1)",
        "own_ends = unknown",
        (f"{AHEAD}::test_behind_no_prefix_the_places_of_no_node_see_themselves",),
    ),
    Mutant(
        "trees ahead: a target that cannot begin is told",
        ENGINE,
        "if not (self._target.scores_closed and plain",
        "if not (self._target.one_launch and plain",
        (f"{AHEAD}::test_a_target_that_cannot_begin_is_told_of_nothing",),
    ),
    Mutant(
        "trees ahead: a pause is never over",
        "spec_sdk/engine/scheduler.py",
        "goes_on = self._plain_steps.go_on(turns) and verdicts is not None",
        "goes_on = verdicts is not None and self._plain_steps.go_on(turns)",
        (f"{AHEAD}::test_a_single_plain_step_launches_nothing",),
    ),
    Mutant(
        "trees ahead: room is taken from trees that are not told",
        DRAFTER,
        "        if self._told:\n            budgets",
        "        if self.trees_told is not None:\n            budgets",
        (f"{TOLD}::test_a_tree_that_is_not_told_has_all_the_room_that_it_is_granted",),
    ),
    Mutant(
        "trees ahead: of equally probable nodes those that come first in pre-order",
        "plugins/drafters/spec_sdk_drafters/priced_tree.py",
        "(-joint_N[node], tree.depth_N[node], node)",
        "(-joint_N[node], node)",
        (f"{TOLD}::test_of_equally_probable_nodes_both_keep_the_same",),
    ),
    Mutant(
        "trees ahead: of equally probable children those of the lowest token",
        "plugins/growth/spec_sdk_growth/dynamic.py",
        "(-joint, level, parent, rank, offers.token_KW[k][rank])",
        "(-joint, level, parent, offers.token_KW[k][rank], offers.token_KW[k][rank])",
        (f"{TOLD}::test_of_equally_probable_nodes_both_keep_the_same",),
    ),
    Mutant(
        "kit for growths: most_offered is not looked at",
        "spec_sdk/testing/growths.py",
        "        if most is None:\n            return\n",
        "        if most is None or most >= 0:\n            return\n",
        ("tests/losslessness/test_growth_conformance.py::test_a_faulty_growth_is_named",),
    ),
    Mutant(
        "trees ahead: many rows of one request are padded for all",
        GRAPHS,
        "if len(rows) > 1 and padded_rows > MOST_COMMITTED:",
        "if len(rows) > 9 and padded_rows > MOST_COMMITTED:",
        ("tests/model/test_path_levels.py::test_requests_whose_levels_are_unlike_are_fed_by_passes",),
    ),
)

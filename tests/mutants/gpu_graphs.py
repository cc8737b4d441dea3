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
CHOSEN = f"{OF_RECOVERY}::test_captured_passes_are_those_of_the_runner_that_chooses"
IN_PASS, LEVELS = PACKAGE + "verdicts_in_pass.py", "spec_sdk/model/draft_levels.py"
DECIDED = f"{OF_TABLES}::test_decisions_of_a_pass_are_those_after_it"
OF_LEVELS = "tests/model/test_draft_levels.py"
OF_CAPTURES = "tests/model/test_graph_capture.py"
DRAWN = f"{OF_LEVELS}::test_drawn_trees_have_the_tokens_that_a_sampler_draws"
AT_ONCE = f"{OF_LEVELS}::test_levels_at_once_are_those_of_one_after_the_other"

AHEAD, OF_AHEAD = "spec_sdk/engine/pass_ahead.py", "tests/engine/test_pass_ahead.py"
ONE_ROW, OF_ONE_ROW = PACKAGE + "matrix_vector_kernel.py", "tests/kernels/test_matrix_vector.py::test_a_product"
APART = "tests/kernels/test_tree_attention.py"
KEPT, OF_KEPT = PACKAGE + "kept_tokens_kernel.py", "tests/kernels/test_kept_tokens.py"
DRAWING, OF_DRAWING = PACKAGE + "row_drawing.py", "tests/kernels/test_row_drawing.py"
FEW_ROWS, OF_FEW_ROWS = PACKAGE + "few_rows_kernel.py", "tests/kernels/test_few_rows.py"

GPU_GRAPHS = (
    Mutant(
        "steps ahead: a pass over another token is taken",
        AHEAD,
        "            if turn.tree.token_N[0] != self.tokens.get(id(turn.active)):\n                return False\n",
        "",
        (f"{OF_AHEAD}::test_a_pass_over_another_token_is_not_taken",),
    ),
    Mutant(
        "steps ahead: what another pass has written over is taken",
        "spec_sdk/model/session.py",
        "        if not self._ahead.issuperset(slots):\n            return False\n",
        "",
        (f"{OF_AHEAD}::test_a_drafter_in_the_target_s_own_cache",),
    ),
    Mutant(
        "steps ahead: the next pass takes the place of the row before it",
        "spec_sdk/model/session.py",
        "prefixes = [self.length(slot) + 1 for slot in slots]",
        "prefixes = [self.length(slot) for slot in slots]",
        (f"{OF_AHEAD}::test_one_request",),
    ),
    Mutant(
        "steps ahead: the states that a drafter taps are forgotten",
        "spec_sdk/model/session.py",
        "requests, plan, epilogue=epilogue, fill=fill)",
        "requests, self._plan(self.runner), epilogue=epilogue, fill=fill)",
        (f"{OF_AHEAD}::test_where_drafting_has_paused",),
    ),
    Mutant(
        "one row: a norm that is not divided by the number of inputs",
        ONE_ROW,
        "tl.sum(square_I, 0) / INPUTS + epsilon",
        "tl.sum(square_I, 0) / BLOCK_I + epsilon",
        (OF_ONE_ROW,),
    ),
    Mutant(
        "one row: the first weights are multiplied in every step",
        ONE_ROW,
        "        w_OI = next_w_OI\n",
        "",
        (OF_ONE_ROW,),
    ),
    Mutant(
        "few rows: every part has the bias",
        FEW_ROWS,
        "tl.where(part == 0, o_O, OUTPUTS) < OUTPUTS",
        "real_O",
        (f"{OF_FEW_ROWS}::test_parts_of_a_product",),
    ),
    Mutant(
        "few rows: the inputs that are left over are no part's",
        PACKAGE + "few_rows_block.py",
        "(INPUTS + BLOCK_I * PARTS - 1) // (BLOCK_I * PARTS)",
        "tl.constexpr(max(1, INPUTS // (BLOCK_I * PARTS)))",
        (f"{OF_FEW_ROWS}::test_parts_of_a_product",),
    ),
    Mutant(
        "few rows: the last part is not summed",
        PACKAGE + "fused_block_kernels.py",
        "for part in tl.static_range(1, PARTS):",
        "for part in tl.static_range(1, max(1, PARTS - 1)):",
        (f"{OF_FEW_ROWS}::test_a_gate_sums_the_parts",),
    ),
    Mutant(
        "few rows: of any number of rows",
        PACKAGE + "fused_decoder.py",
        "return (rows == 1 or rows in self.few_rows) and self.takes_few_rows",
        "return self.takes_few_rows",
        (f"{OF_FEW_ROWS}::test_other_numbers_of_rows_are_the_library_s",),
    ),
    Mutant(
        "fused blocks: rotations are made when a block asks for them",
        PACKAGE + "fused_decoder.py",
        "        self.reserve_rotations(positions)\n",
        "",
        ("tests/kernels/test_fused_block.py::test_rotations_are_there_before_the_tokens_are_embedded",),
    ),
    Mutant(
        "few rows: up gates the gate",
        FEW_ROWS,
        "o_O // 8 % 2 * APART",
        "(1 - o_O // 8 % 2) * APART",
        (f"{OF_FEW_ROWS}::test_a_gated_product",),
    ),
    Mutant(
        "few rows: the scale of a norm is that of a sum",
        FEW_ROWS,
        "tl.sum(square_QK, 0) / INPUTS + epsilon",
        "tl.sum(square_QK, 0) + epsilon",
        (f"{OF_FEW_ROWS}::test_what_is_summed_is_normalised_by_what_reads_it",),
    ),
    Mutant(
        "few rows: who has come is not forgotten",
        FEW_ROWS,
        "            tl.store(arrived_ptr + block, 0)\n",
        "            pass\n",
        (f"{OF_FEW_ROWS}::test_what_is_summed_is_normalised_by_what_reads_it",),
    ),
    Mutant(
        "few rows: V is rotated",
        FEW_ROWS,
        "tl.store(v_PK, low_PK.to",
        "tl.store(v_PK, turned_low_PK.to",
        (f"{OF_FEW_ROWS}::test_a_rotated_product",),
    ),
    Mutant(
        "few rows: padding is stored",
        FEW_ROWS,
        "real_K & (column_K < tl.load(live_ptr + request_K, mask=real_K, other=0))",
        "real_K",
        (f"{OF_FEW_ROWS}::test_a_rotated_product",),
    ),
    Mutant(
        "greedy choices: of two largest the later",
        PACKAGE + "greedy_choice_kernels.py",
        "tl.min(tl.where(open_X & (value_X == top), number_X, 2147483647), 0)",
        "tl.max(tl.where(open_X & (value_X == top), number_X, -1), 0)",
        ("tests/kernels/test_greedy_choice.py",),
    ),
    Mutant(
        "greedy choices: NaN is no largest",
        PACKAGE + "greedy_choice_kernels.py",
        '    logit_V = tl.where(logit_V == logit_V, logit_V, float("inf"))\n',
        '    logit_V = tl.where(logit_V == logit_V, logit_V, float("-inf"))\n',
        ("tests/kernels/test_greedy_choice.py",),
    ),
    Mutant(
        "top tokens: one comes again",
        PACKAGE + "top_tokens_kernels.py",
        "        open_V = open_V & (token_V != token)\n",
        "",
        ("tests/kernels/test_top_tokens.py",),
    ),
    Mutant(
        "top tokens: parts are summed as if their largest were one",
        PACKAGE + "top_tokens_kernels.py",
        "tl.sum(sum_S * tl.exp(highest_S - base), 0)",
        "tl.sum(sum_S, 0)",
        ("tests/kernels/test_top_tokens.py",),
    ),
    Mutant(
        "draft logits: the reference looks for their largest",
        "spec_sdk/model/session.py",
        "output.token_R, self.executor.vocabulary, self.executor.ops)",
        "output.token_R, self.executor.vocabulary)",
        ("tests/model/test_session.py::test_the_most_probable_are_found_by_the_executor_s_operations",),
    ),
    Mutant(
        "captured heads: the features of the first pass for all",
        "spec_sdk/model/graph_executor.py",
        "            captured.features_BNM.copy_(inputs.features_BNM)\n",
        "            pass\n",
        ("tests/draft_heads/test_captured_passes.py::test_they_draft_the_same",),
    ),
    Mutant(
        "captured heads: padding is a request's last row",
        "spec_sdk/model/session.py",
        "if len(output.logits_BNV) == 1 and rows <= live:",
        "if len(output.logits_BNV) == 1 and output.logits_BNV.shape[1] <= live:",
        ("tests/draft_heads/test_captured_passes.py::test_they_draft_the_same",),
    ),
    Mutant(
        "rotation: of the row's number, not of its position",
        PACKAGE + "fused_block_kernels.py",
        "        turn = tl.load(position_ptr + row).to(tl.int64)\n",
        "        turn = row\n",
        ("tests/kernels/test_fused_block.py::test_rotated_and_stored",),
    ),
    Mutant(
        "draft vocabulary: some tokens only where passes are single launches",
        "plugins/drafters/spec_sdk_drafters/chosen_vocabulary.py",
        "if adds_text and at_once and executor.one_launch else None",
        "if False else None",
        ("tests/drafters/test_chosen_vocabulary.py::test_where_passes_are_single_launches_all_tokens_are_drafted",),
    ),
    Mutant(
        "attention: no split has the tree that comes behind the prefix",
        PACKAGE + "tree_attention_kernel.py",
        "    from_last = splits - 1 - split\n",
        "    from_last = splits - split\n",
        (APART,),
    ),
    Mutant(
        "a cache that doubles grows as others do",
        "spec_sdk/model/kv_cache.py",
        "        if capacity <= self.doubles_up_to:\n",
        "        if False:\n",
        ("tests/tree/test_cache.py::test_one_that_doubles_has_room_to_spare_where_there_is_memory",),
    ),
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
    Mutant(
        "reports: padding counts as a row",
        "spec_sdk/model/unread_reports.py",
        "row_error=tuple(None if row is None else tuple(row[2 : 2 + live]) for row in found)",
        "row_error=tuple(None if row is None else tuple(row[2:]) for row in found)",
        (CHOSEN,),
    ),
    Mutant(
        "in the pass: nodes are numbered without the padding before them",
        IN_PASS,
        "first_node_B = range(0, rows, sizes.rows)",
        "first_node_B = [sum(tree.size for tree in trees[:b]) for b in range(len(trees))]",
        (DECIDED,),
    ),
    Mutant(
        "in the pass: tables of a temperature serve another",
        IN_PASS,
        "key = sizes, sampling, given,",
        "key = sizes, None, given,",
        (f"{OF_TABLES}::test_tables_of_a_temperature_serve_no_other",),
    ),
    Mutant(
        "greedy in the pass: padding is looked at",
        "spec_sdk/ops/in_pass.py",
        "return followed(tree, choice_N[: tree.size].tolist())",
        "return followed(tree, choice_N.tolist())",
        (f"{OF_TABLES}::test_greedy_decisions_of_a_pass",),
    ),
    Mutant(
        "a pass that is made again draws anew",
        "spec_sdk/ops/in_pass.py",
        "        if self._drawn is None:\n",
        "        if True:\n",
        (f"{OF_TABLES}::test_numbers_are_drawn_once",),
    ),
    Mutant(
        "levels: each pass is fed the first level",
        LEVELS,
        "inputs.token_BN.copy_(tokens[-1].clamp_min(0))",
        "inputs.token_BN.copy_(tokens[0][:, :1].clamp_min(0).expand_as(inputs.token_BN))",
        (AT_ONCE,),
    ),
    Mutant(
        "levels: all requests are drawn at the first one's temperature",
        LEVELS,
        "temperature_K1 = temperature_B1.repeat_interleave(",
        "temperature_K1 = temperature_B1[:1].expand_as(temperature_B1).repeat_interleave(",
        (DRAWN,),
    ),
    Mutant(
        "levels: one random number for all of them",
        LEVELS,
        "self.draw_BX[:, first : first + count]",
        "self.draw_BX[:, :1].expand(-1, count)",
        (DRAWN,),
    ),
    Mutant(
        "levels: all requests are filtered as the first one",
        LEVELS,
        "ops.least_kept(score_KR, shaping_B4.contiguous())",
        "ops.least_kept(score_KR, shaping_B4[:1].contiguous())",
        (DRAWN,),
    ),
    Mutant(
        "levels: a capture without filters serves trees with some",
        "spec_sdk/model/graph_executor.py",
        "levels.limit, levels.filtered, columns",
        "levels.limit, columns",
        (f"{OF_LEVELS}::test_a_capture_serves_one_shape",),
    ),
    Mutant(
        "kept tokens: top-p is a share of more than top-k keeps",
        KEPT,
        "tl.sum(tl.where(_ordered(logit_J) >= border.to(tl.int32), weight_J, 0.0), 0)",
        "tl.sum(weight_J, 0)",
        (f"{OF_KEPT}::test_what_is_kept",),
    ),
    Mutant(
        "kept tokens: those for which there is no room are taken from elsewhere",
        KEPT,
        "near = count <= ROOM",
        "near = count <= V",
        (f"{OF_KEPT}::test_what_is_kept",),
    ),
    Mutant(
        "kept tokens: all equals at the border of top-p stay",
        KEPT,
        "before + tl.cumsum(equal_J, 0) == stay",
        "before + tl.cumsum(equal_J, 0) == equals",
        (f"{OF_KEPT}::test_equals_at_the_border",),
    ),
    Mutant(
        "kept tokens: every row is filtered as the first",
        KEPT,
        "shaping_ptr + row // rows_each * 4",
        "shaping_ptr",
        (f"{OF_KEPT}::test_rows_share_out_samplings",),
    ),
    Mutant(
        "draws of a row: a token that was drawn is left for the next draw",
        DRAWING,
        '        left_V[token] = float("-inf")\n',
        "",
        (f"{OF_DRAWING}::test_different_tokens_are_those_that_the_sampler_draws_in_torch",),
    ),
    Mutant(
        "draws of a row: the last token that there is goes",
        DRAWING,
        "        if not others:\n            return\n",
        "",
        (f"{OF_DRAWING}::test_removing",),
    ),
    Mutant(
        "draws of a row: the tile before",
        PACKAGE + "drawing_kernels.py",
        "tl.sum((cdf_T <= goal).to(tl.int32), 0)",
        "tl.sum((cdf_T < goal).to(tl.int32), 0)",
        (f"{OF_DRAWING}::test_every_number_gives_a_token_that_may_come",),
    ),
    Mutant(
        "tables: filters are those of the first step",
        TABLES,
        "torch.zeros(padding, dtype=torch.float64)], shaping)",
        "torch.zeros(padding, dtype=torch.float64)], self._shaping)",
        (DECIDED,),
    ),
    Mutant(
        "in the pass: trees of other filters are decided together",
        IN_PASS,
        "return tuple(numbers_of(recipe.shaping)), recipe.sigmoid",
        "return recipe.shaping.temperature, recipe.sigmoid",
        (f"{OF_TABLES}::test_what_a_pass_cannot_decide_takes_no_numbers",),
    ),
    Mutant(
        "filters: rows judged by their sigmoid have no border",
        PACKAGE + "fused_rejection.py",
        "if rule == BY_SOFTMAX or (filtered and rule == BY_SIGMOID):",
        "if rule == BY_SOFTMAX:",
        (
            "tests/samplers/test_equal_tokens.py::test_draft_rows_that_a_sigmoid_judges_are_read_for_their_filters_alone",
        ),
    ),
    Mutant(
        "levels: a drawn token is left for the draws behind it",
        LEVELS,
        "            if child < width - 1:\n",
        "            if False:\n",
        (DRAWN,),
    ),
    Mutant(
        "levels: a tree that ran out of tokens is taken for whole",
        "plugins/drafters/spec_sdk_drafters/levels_at_once.py",
        "    if any(min(tokens) < 0 for tokens in drawn_KW):\n        return None\n",
        "",
        ("tests/kernels/test_captured_pipelines.py::test_where_tokens_run_out_levels_are_drawn_one_by_one",),
    ),
    Mutant(
        "levels: a capture serves trees of another draft temperature",
        "spec_sdk/model/graph_executor.py",
        "key = levels.shape, root.shape,",
        "key = levels.shape.widths, root.shape,",
        (f"{OF_LEVELS}::test_a_capture_serves_one_shape",),
    ),
    Mutant(
        "draws of rows: the token whose cumulated mass equals the goal",
        "spec_sdk/ops/inversion.py",
        "goal_K1 - before_K1, right=True)",
        "goal_K1 - before_K1, right=False)",
        ("tests/samplers/test_draw_rows.py",),
    ),
    Mutant(
        "levels: random numbers that no launch took are gone",
        "plugins/drafters/spec_sdk_drafters/growing_drafter.py",
        "                    requests[i].rng.set_state(state)\n",
        "                    pass\n",
        ("tests/kernels/test_captured_pipelines.py::test_draft_levels_are_one_launch",),
    ),
    Mutant(
        "captures: a pool whose graphs have ended is used again",
        PACKAGE + "cuda_graphs.py",
        "        if not self._in_pool:\n",
        "        if self._pool is None:\n",
        (f"{OF_CAPTURES}::test_a_pool_whose_graphs_have_ended_is_not_used_again",),
    ),
    Mutant(
        "captures: a pool that a failure left recording is used again",
        PACKAGE + "cuda_graphs.py",
        "self._in_pool, self._stream = weakref.WeakSet(), None",
        "self._stream = None",
        (f"{OF_CAPTURES}::test_a_capture_that_fails_spoils_no_other",),
    ),
    Mutant(
        "captures: what cannot be captured is tried each time",
        "spec_sdk/model/graph_executor.py",
        "                self._cannot.add(key)\n",
        "",
        ("tests/model/test_graph_executor.py::test_a_size_that_cannot_be_captured_runs_without_from_then_on",),
    ),
)

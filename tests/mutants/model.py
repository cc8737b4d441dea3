"""Keys and values in the wrong place, masks that show or hide the wrong nodes, tokens at the wrong positions, and
requests of a batch mixed up in any of these.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CACHE = "spec_sdk/model/kv_cache.py"
MASK = "spec_sdk/ops/attention_mask.py"
SESSION = "spec_sdk/model/session.py"
INPUTS = "spec_sdk/ops/pass_inputs.py"
PASS_CACHE = "spec_sdk/ops/pass_cache.py"
ATTENTION = "spec_sdk/ops/attention.py"
SPECULATING = "spec_sdk/model/runners/attention_speculative.py"
GRAPHS = "spec_sdk/model/graph_executor.py"
COMPILED = "spec_sdk/model/compiled_decoder.py"
OF_CACHE = "tests/tree/test_cache.py"
OF_MASK = "tests/tree/test_attention.py"
OF_SESSION = "tests/model/test_session.py"
BATCH = f"{OF_SESSION}::test_a_batch_gives_each_request_what_it_gets_alone"
REPORTS = f"{OF_SESSION}::test_every_request_has_a_report_of_its_own"
OF_VERDICTS = "tests/model/test_attention_verifiers.py"
OF_SLOTS = "tests/model/test_shared_prefix.py"
OF_INPUTS = "tests/tree/test_pass_inputs.py"
OF_WRITES = "tests/model/test_kv_cache_writes.py"
OF_GRAPHS = "tests/model/test_graph_executor.py"
OF_COMPILATION = "tests/model/test_compilation.py"

MODEL = (
    Mutant(
        "cache: a path that begins at the root is not moved",
        CACHE,
        "if row != place:",
        "if row != place and path[0] != 0:",
        (OF_CACHE,),
    ),
    Mutant(
        "cache: a path's rows are counted from the slot's start",
        CACHE,
        "source.append(prefix + row)",
        "source.append(row)",
        (OF_CACHE,),
    ),
    Mutant(
        "cache: the rows after those of the path",
        CACHE,
        "source.append(prefix + row)",
        "source.append(min(prefix + row + 1, self.capacity - 1))",
        (OF_CACHE,),
    ),
    Mutant(
        "cache: the values stay where they were",
        CACHE,
        "for storage in self._tensors():\n            # reading",
        "for storage in self._tensors()[::2]:\n            # reading",
        (OF_CACHE,),
    ),
    Mutant(
        "session: the length goes up to the path's last row",
        SESSION,
        "extend(fed[row] for row in path)",
        "extend(fed[row] for row in range(path[-1] + 1 if path else 0))",
        (OF_SESSION,),
    ),
    Mutant(
        "cache: rows are moved one by one within the storage",
        CACHE,
        "storage[:, slot_K, :, target_K] = storage[:, slot_K, :, source_K]",
        """for one, column, place in reversed([*zip(slot, source, target, strict=True)]):
                storage[:, one, :, place] = storage[:, one, :, column]""",
        (OF_CACHE,),
    ),
    Mutant(
        "cache: growing loses the last column",
        CACHE,
        "larger[:, :old_slots, :, :old_capacity] = storage",
        "larger[:, :old_slots, :, : max(old_capacity - 1, 0)] = storage[:, :, :, : max(old_capacity - 1, 0)]",
        (OF_CACHE,),
    ),
    Mutant(
        "mask: ancestors are hidden",
        MASK,
        "(self.key_start_T <= query_N1)",
        "(self.key_start_T == query_N1)",
        (OF_MASK,),
    ),
    Mutant(
        "mask: nodes to come are visible",
        MASK,
        "visible_NT = (self.key_start_T <= query_N1) & (query_N1 < self.key_end_T)",
        "visible_NT = query_N1 < self.key_end_T",
        (OF_MASK,),
    ),
    Mutant(
        "mask: siblings are visible",
        MASK,
        "visible_NT = (self.key_start_T <= query_N1) & (query_N1 < self.key_end_T)",
        "visible_NT = self.key_start_T <= query_N1",
        (OF_MASK,),
    ),
    Mutant(
        "mask: intervals end one node late",
        MASK,
        "(query_N1 < self.key_end_T)",
        "(query_N1 <= self.key_end_T)",
        (OF_MASK,),
    ),
    Mutant(
        "mask: a node does not see itself",
        MASK,
        "(self.key_start_T <= query_N1)",
        "(self.key_start_T < query_N1)",
        (OF_MASK,),
    ),
    Mutant(
        "mask: the oldest nodes of a growing tree ask",
        MASK,
        "key_start[-queries:]",
        "key_start[:queries]",
        (OF_MASK,),
    ),
    Mutant(
        "mask: a tree is taken for a chain",
        MASK,
        "is_preorder=True, live=end_N[0])",
        "is_preorder=True, is_chain=True, live=end_N[0])",
        (OF_MASK,),
    ),
    Mutant(
        "session: a tree's nodes lie one behind the other",
        INPUTS,
        "position = [prefix + depth for depth in depth_N]",
        "position = [prefix + place for place in order]",
        (OF_SESSION,),
    ),
    Mutant(
        "session: a tree lies one position late",
        INPUTS,
        "position = [prefix + depth for depth in depth_N]",
        "position = [prefix + depth + 1 for depth in depth_N]",
        (OF_SESSION,),
    ),
    Mutant(
        "session: a growing tree lies one position late",
        INPUTS,
        "position = [prefix - first + depth for depth in",
        "position = [prefix + depth for depth in",
        (OF_SESSION,),
    ),
    Mutant(
        "session: fed tokens lie at the text's start",
        INPUTS,
        "range(count), range(prefix, prefix + count)",
        "range(count), range(count)",
        (OF_SESSION,),
    ),
    Mutant(
        "session: a growing tree overwrites its older nodes",
        INPUTS,
        "write_at=prefix + len(position) - new",
        "write_at=prefix",
        (OF_SESSION,),
    ),
    Mutant(
        "session: the runner does not hear what is kept",
        SESSION,
        "self.runner.commit(slot, path)",
        "pass",
        (f"{OF_VERDICTS}::test_a_predictor_hears_what_is_kept_and_dropped_of_its_own_request",),
    ),
    Mutant(
        "session: the runner does not hear what is dropped",
        SESSION,
        "        self.runner.truncate(slot, length)\n",
        "",
        (f"{OF_VERDICTS}::test_a_predictor_hears_what_is_kept_and_dropped_of_its_own_request",),
    ),
    Mutant(
        "shared prefix: one token too many is taken over",
        "spec_sdk/common_prefix.py",
        "next((i for i, (a, b) in pairs if a != b)",
        "next((i + 1 for i, (a, b) in pairs if a != b)",
        (OF_SLOTS,),
    ),
    Mutant(
        "tree: a second child begins inside the first one's subtree",
        "spec_sdk/tree.py",
        "next_free[parent] += subtree[node]",
        "next_free[parent] += 1",
        (OF_MASK,),
    ),
    Mutant(
        "cache: rows are moved in the first request's slot",
        CACHE,
        "slot.append(request)",
        "slot.append(slots[0])",
        (OF_CACHE,),
    ),
    Mutant(
        "cache: growing loses the last request",
        CACHE,
        "larger[:, :old_slots, :, :old_capacity] = storage",
        "larger[:, : max(1, old_slots - 1), :, :old_capacity] = storage[:, : max(1, old_slots - 1)]",
        (OF_CACHE,),
    ),
    Mutant(
        "cache: a path that leaves the slot is taken",
        CACHE,
        "if path and prefix + path[-1] >= self.capacity:",
        "if path and path[-1] >= self.capacity:",
        (OF_CACHE,),
    ),
    Mutant(
        "pass cache: the first request's keys for all",
        PASS_CACHE,
        "k_gBNGD[i, part.index,",
        "k_gBNGD[i, 0,",
        (OF_CACHE,),
    ),
    Mutant(
        "pass cache: a request's number is taken for its slot",
        PASS_CACHE,
        "self._v_LSGCD[:, part.slot]",
        "self._v_LSGCD[:, part.index]",
        (OF_WRITES,),
    ),
    Mutant(
        "pass cache: a group's layers are written one too early",
        PASS_CACHE,
        "views.new_value_L[first + i]",
        "views.new_value_L[max(first + i - 1, 0)]",
        (OF_WRITES,),
    ),
    Mutant(
        "pass cache: a group reads the model's first layers",
        PASS_CACHE,
        "views.v_LGKD[first:end]",
        "views.v_LGKD[: end - first]",
        ("tests/model/test_fused_groups.py",),
    ),
    Mutant(
        "pass cache: padding is written over the last live column",
        PASS_CACHE,
        "repeated_gBNGD = new_gBNGD.gather(2, row_BN[None, :, :, None, None].expand_as(new_gBNGD))",
        "repeated_gBNGD = new_gBNGD",
        (OF_WRITES,),
    ),
    Mutant(
        "pass cache: padding is written behind the live columns",
        PASS_CACHE,
        "row_BN = torch.minimum(row_N, inputs.live_B[:, None] - 1).long()",
        "row_BN = row_N.long().expand(inputs.batch, -1)",
        (OF_WRITES,),
    ),
    Mutant(
        "pass cache: by index, a request's number is taken for its slot",
        PASS_CACHE,
        "slot_B1 = inputs.slot_B[:, None].long()",
        "slot_B1 = torch.arange(inputs.batch)[:, None]",
        (OF_WRITES,),
    ),
    Mutant(
        "pass cache: by index, new rows go right behind the prefix",
        PASS_CACHE,
        "inputs.write_at_B[:, None].long() + row_BN",
        "inputs.prefix_B[:, None].long() + row_BN",
        (OF_WRITES,),
    ),
    Mutant(
        "inputs: padding sees what the first row sees",
        INPUTS,
        "append(r.query_start, N, -1)",
        "append(r.query_start, N, 0)",
        (OF_INPUTS,),
    ),
    Mutant(
        "inputs: padded slots are seen",
        INPUTS,
        "append(r.key_end, T, 0)",
        "append(r.key_end, T, T)",
        (OF_INPUTS,),
    ),
    Mutant(
        "inputs: all have the first request's prefix",
        INPUTS,
        "(r.slot, r.prefix, r.write_at,",
        "(r.slot, requests[0].prefix, r.write_at,",
        (OF_INPUTS,),
    ),
    Mutant(
        "inputs: all have the first request's rows",
        INPUTS,
        "r.write_at, len(r.token))",
        "r.write_at, len(requests[0].token))",
        (OF_INPUTS,),
    ),
    Mutant(
        "inputs: all have the first request's tree",
        INPUTS,
        "inputs.key_end_BT[index, :slots]",
        "inputs.key_end_BT[0, :slots]",
        (OF_INPUTS,),
    ),
    Mutant(
        "inputs: the rows ask as those of the first request",
        INPUTS,
        "inputs.query_start_BN[index, :live]",
        "inputs.query_start_BN[0, :live]",
        (OF_INPUTS,),
    ),
    Mutant(
        "inputs: a request alone keeps the first one's slot",
        INPUTS,
        "slot_B=self.slot_B[own]",
        "slot_B=self.slot_B[:1]",
        (OF_INPUTS,),
    ),
    Mutant(
        "inputs: a tree is taken for a chain",
        INPUTS,
        'is_chain=inputs.kind == "chain"',
        'is_chain=inputs.kind != "growing"',
        (f"{OF_SESSION}::test_every_node_is_scored_as_if_its_path_were_the_text",),
    ),
    Mutant(
        "attention: the first request's queries for all",
        ATTENTION,
        "self.tree_attention(q_gBNHD[:, part.index, : part.live]",
        "self.tree_attention(q_gBNHD[:, 0, : part.live]",
        (BATCH,),
    ),
    Mutant(
        "attention: the requests' outputs in reverse",
        ATTENTION,
        "torch.stack(outputs, 1)",
        "torch.stack(outputs[::-1], 1)",
        (BATCH,),
    ),
    Mutant(
        "speculation: the neighbour's verdict",
        SPECULATING,
        "verdict = request.measured[layer].verdict",
        "verdict = guessing[0].measured[layer].verdict",
        (f"{BATCH}[attention-as it is]",),
    ),
    Mutant(
        "speculation: the neighbour's predictor",
        SPECULATING,
        "predictor = self.predictor(part.slot)",
        "predictor = self.predictor(guessing[0].part.slot)",
        (f"{BATCH}[attention-as it is]",),
    ),
    Mutant(
        "speculation: the neighbour's norms",
        SPECULATING,
        "torch.linalg.vector_norm(h_BNM[self.part.index, : self.part.live]",
        "torch.linalg.vector_norm(h_BNM[0, : self.part.live]",
        (REPORTS,),
    ),
    Mutant(
        "speculation: a predictor is not dropped with its request",
        SPECULATING,
        "self.predictors.pop(slot, None)",
        "pass",
        (OF_SLOTS,),
    ),
    Mutant(
        "open: one token too many is kept",
        SESSION,
        "kept = self.shared(slot, tokens, encoder_input) if keep else 0",
        "kept = min(self.shared(slot, tokens, encoder_input) + 1, self.length(slot)) if keep else 0",
        (OF_SLOTS,),
    ),
    Mutant(
        "open: what is not to be kept is kept",
        SESSION,
        "self.shared(slot, tokens, encoder_input) if keep else 0",
        "self.shared(slot, tokens, encoder_input)",
        (OF_SLOTS,),
    ),
    Mutant(
        "open: the predictor of the last request is kept",
        SESSION,
        "        self.runner.truncate(slot, 0)\n",
        "",
        (OF_SLOTS,),
    ),
    Mutant(
        "session: scores in the order of their sizes",
        SESSION,
        "return [outputs[i] for i in range(len(requests))]",
        "return list(outputs.values())",
        (BATCH,),
    ),
    Mutant(
        "session: a pass's outputs in reverse",
        SESSION,
        "outputs[i] = part_of(output, b,",
        "outputs[i] = part_of(output, len(group) - 1 - b,",
        (BATCH,),
    ),
    Mutant(
        "session: a pass's padding is returned",
        SESSION,
        "output.logits_BNV[own, :live]",
        "output.logits_BNV[own]",
        (f"{OF_SESSION}::test_passes_are_padded_and_padding_is_no_part_of_what_comes_back",),
    ),
    Mutant(
        "session: all requests get the first one's report",
        SESSION,
        "output.reports[own] if",
        "output.reports[:1] if",
        (REPORTS,),
    ),
    Mutant(
        "session: the neighbour's tree is remembered",
        SESSION,
        "(slot, tree.token_N) for slot, tree in zip(slots, trees, strict=True)",
        "(slot, tree.token_N) for slot, tree in zip(slots, reversed(trees), strict=True)",
        (BATCH,),
    ),
    Mutant(
        "session: a growing tree is remembered with its root",
        SESSION,
        "(slot, tree.token[1:])",
        "(slot, tree.token)",
        ("tests/drafters/test_draft_cache.py",),
    ),
    Mutant(
        "session: rows are committed behind the first request's prefix",
        SESSION,
        "[self.length(slot) for slot in slots], paths)",
        "[self.length(slots[0]) for slot in slots], paths)",
        (BATCH,),
    ),
    Mutant(
        "session: the runner hears of the first slot alone",
        SESSION,
        "self.runner.commit(slot, path)",
        "self.runner.commit(slots[0], path)",
        (f"{BATCH}[attention-as it is]",),
    ),
    Mutant(
        "session: the oldest nodes of a growing tree ask",
        INPUTS,
        "query_start=start_N[-new:]",
        "query_start=start_N[:new]",
        (OF_SESSION,),
    ),
    Mutant(
        "graphs: what a pass returns is overwritten by the next one",
        GRAPHS,
        "output = changed(captured.output, torch.clone)",
        "output = captured.output",
        (f"{OF_GRAPHS}::test_a_result_outlives_the_next_pass",),
    ),
    Mutant(
        "graphs: a replay is given the inputs of its capture",
        GRAPHS,
        "inputs.put_into(captured.flat_I)",
        "captured.flat_I.copy_(captured.flat_I)",
        (f"{OF_GRAPHS}::test_a_larger_cache_is_captured_anew",),
    ),
    Mutant(
        "graphs: a runner inherits that it is capturable",
        "spec_sdk/model/block_runner.py",
        'if "capturable" not in vars(cls):',
        "if not cls.capturable:",
        (f"{OF_GRAPHS}::test_a_runner_says_itself_that_it_is_capturable",),
    ),
    Mutant(
        "compiled: every block has the first one's weights",
        COMPILED,
        "tensors_of(decoder.blocks[layer]))",
        "tensors_of(decoder.blocks[0]))",
        (f"{OF_COMPILATION}::test_a_stage_is_a_function_of_its_tensors",),
    ),
    Mutant(
        "compiled: a graph does not depend on the weights' form",
        COMPILED,
        "{decoder.dtype} {form_of(self.block)}",
        "",
        (f"{OF_COMPILATION}::test_one_graph_for_all_blocks_of_a_form",),
    ),
)

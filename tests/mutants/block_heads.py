"""Heads that draft a block, and what is drafted with them, in another way than DFlash and DSpark say."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROOM = "spec_sdk/model/draft_heads"
DRAFTERS = "plugins/drafters/spec_sdk_drafters"
TESTS = "tests/draft_heads"
FORMULAS = f"{TESTS}/test_block_formulas.py::test_blocks_of_a_batch_over_several_cycles"
TREES = f"{TESTS}/test_block_formulas.py::test_trees_have_the_probabilities_of_their_paths"
FILES = f"{TESTS}/test_block_files.py"
DRAFTER = f"{TESTS}/test_block.py"

BLOCK_HEADS = (
    Mutant(
        "block: a row sees no later rows",
        f"{ROOM}/block_session.py",
        "first, end = [0] * form.size, [form.size] * form.size",
        "first, end = list(order), [form.size] * form.size",
        (FORMULAS,),
    ),
    Mutant(
        "block: its rows stay in the cache",
        f"{ROOM}/block_session.py",
        "        return head.normed(",
        "        self._keep(slots, [[anchor] for anchor in anchors])\n        return head.normed(",
        (f"{DRAFTER}::test_a_drafter_in_use_drafts_as_a_fresh_one_would",),
    ),
    Mutant(
        "block: the context's features are not normalized",
        f"{ROOM}/block_head.py",
        "return self._norm(self._parts.fc(torch.cat(states, dim=-1)), self._parts.context_norm_M)",
        "return self._parts.fc(torch.cat(states, dim=-1))",
        (FORMULAS,),
    ),
    Mutant(
        "block: the context's keys are not normalized",
        f"{ROOM}/block_head.py",
        "if block.k_norm_D is not None:",
        "if False:",
        (FORMULAS,),
    ),
    Mutant(
        "block: no layer is causal",
        f"{ROOM}/block_head.py",
        "if not self.form.causal[layer]:",
        "if True:",
        (FORMULAS,),
    ),
    Mutant(
        "block: a cap lifts the logits of tokens that the head does not know",
        f"{ROOM}/block_head.py",
        '.masked_fill(logits == float("-inf"), float("-inf"))',
        "",
        (FORMULAS,),
    ),
    Mutant(
        "block: the mask token has the row of the embedding, whatever the file has",
        f"{ROOM}/block_head.py",
        "if mask_M is None:",
        "if True:",
        (FORMULAS,),
    ),
    Mutant(
        "block: target_layer_ids count what enters a block",
        f"{ROOM}/tapped_layers.py",
        "(ids := _ids(section, LEAVING, 1)) is not None",
        "(ids := _ids(section, LEAVING, 0)) is not None",
        (f"{FILES}::test_numbers_of_target_layers",),
    ),
    Mutant(
        "block: every head predicts from the anchor's row on",
        f"{DRAFTERS}/block.py",
        "first = 0 if self.head.form.from_anchor else 1",
        "first = 0",
        (f"{DRAFTER}::test_a_chain_is_what_the_formulas_guess",),
    ),
    Mutant(
        "block: a text is drafted for until its last token is at the end of the context",
        f"{DRAFTERS}/block.py",
        "len(request.tokens) - 1 + form.size <= self.session.context",
        "len(request.tokens) <= self.session.context",
        (f"{DRAFTER}::test_drafting_stops_where_a_whole_block_has_no_room",),
    ),
    Mutant(
        "DSpark: the confidence head is not asked",
        f"{DRAFTERS}/markov_levels.py",
        "if head.confidence is not None:",
        "if False:",
        (TREES,),
    ),
    Mutant(
        "DSpark: a state goes on to the wrong nodes",
        f"{DRAFTERS}/markov_levels.py",
        "kept += [first + row for row in trees[r].rows]",
        "kept += [first for _ in trees[r].rows]",
        (TREES,),
    ),
    Mutant(
        "DSpark: a state begins behind the anchor's slot",
        f"{DRAFTERS}/markov_levels.py",
        "if not head.form.from_anchor:",
        "if False:",
        (TREES,),
    ),
    Mutant(
        "DSpark: a gate without what the slot returned",
        f"{ROOM}/markov.py",
        "self.gate(torch.cat((normed_KM, previous_KR), -1))",
        "self.gate(torch.cat((torch.zeros_like(normed_KM), previous_KR), -1))",
        (FORMULAS,),
    ),
    Mutant(
        "level tree: a child is as probable as its token, whatever its parent",
        f"{DRAFTERS}/level_tree.py",
        "joint = above.joint * probability",
        "joint = probability",
        (TREES,),
    ),
    Mutant(
        "unfed states: all but the last are fed twice",
        f"{DRAFTERS}/unfed_states.py",
        "if last else []",
        "if last else noted",
        (f"{DRAFTER}::test_a_drafter_in_use_drafts_as_a_fresh_one_would",),
    ),
)
"""DFlash and DSpark: heads, layouts, the trees of the drafter."""

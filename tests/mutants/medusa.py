"""Medusa heads that compute something else than their paper says, and trees that are not the most probable ones."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROOM = "spec_sdk/model/draft_heads"
DRAFTERS = "plugins/drafters/spec_sdk_drafters"
FILES = "tests/draft_heads/test_medusa_files.py"
DRAFTER = "tests/draft_heads/test_medusa.py"
FORMULA = f"{FILES}::test_heads_compute_the_papers_formula"

MEDUSA = (
    Mutant(
        "Medusa: blocks without their residual",
        f"{ROOM}/medusa.py",
        "h_NM = h_NM + F.silu(block(h_NM))",
        "h_NM = F.silu(block(h_NM))",
        (FORMULA,),
    ),
    Mutant(
        "Medusa: the state before the final norm",
        f"{ROOM}/medusa.py",
        "h_NM = self._target.final_norm(",
        "h_NM = (",
        (FORMULA,),
    ),
    Mutant(
        "Medusa: all positions have the first head",
        f"{ROOM}/medusa.py",
        "for head in self.heads[:positions]]",
        "for head in self.heads[:1] * positions]",
        (FORMULA,),
    ),
    Mutant(
        "Medusa: config.json's number of heads is believed",
        f"{ROOM}/layouts/medusa.py",
        "spec = MedusaSpec(heads, layers, bias=True,",
        "spec = MedusaSpec(said, layers, bias=True,",
        (f"{FILES}::test_how_many_heads_there_are",),
    ),
    Mutant(
        "Medusa of vLLM: a shared output head is always the target's",
        f"{ROOM}/medusa_spec.py",
        'if f"{SHARED_HEAD}.weight" not in weights.tensors:',
        "if True:",
        (f"{FILES}::test_one_output_head_for_all",),
    ),
    Mutant(
        "Medusa of vLLM: logits are not scaled",
        f"{ROOM}/medusa.py",
        "head(h_NM) * self._logit_scale",
        "head(h_NM)",
        (f"{FILES}::test_vllms_conversion_is_the_same",),
    ),
    Mutant(
        "position tree: a child is as probable as its token, whatever its parent",
        f"{DRAFTERS}/position_tree.py",
        "offer(node, -negative, 0)",
        "offer(node, 1.0, 0)",
        (f"{DRAFTER}::test_no_other_tree_is_more_probable",),
    ),
    Mutant(
        "position tree: a sibling is offered only after the node's own children",
        f"{DRAFTERS}/position_tree.py",
        "        offer(parent, joint, rank + 1)\n",
        "        if not offers:\n            offer(parent, joint, rank + 1)\n",
        (f"{DRAFTER}::test_no_other_tree_is_more_probable",),
    ),
    Mutant(
        "medusa: the state of the text's beginning is read",
        f"{DRAFTERS}/medusa.py",
        "hidden[self.taps[0]][-1:].clone()",
        "hidden[self.taps[0]][:1].clone()",
        (f"{DRAFTER}::test_head_i_stands_at_depth_i_plus_1",),
    ),
    Mutant(
        "medusa: a slot's state outlives its request",
        f"{DRAFTERS}/medusa.py",
        "            self._last_1M.pop(request.slot, None)\n            self._note(request, hidden)",
        "            self._note(request, hidden)",
        (f"{DRAFTER}::test_a_new_request_has_no_state_of_the_slots_last_one",),
    ),
    Mutant(
        "medusa: the penalty is for the first position alone",
        f"{DRAFTERS}/position_tree.py",
        "request.sampler.penalise(logits_PV[1:], request.tokens, [()] * (len(logits_PV) - 1))",
        "logits_PV[1:]",
        (f"{DRAFTER}::test_the_repetition_penalty_reaches_every_depth",),
    ),
)
"""Medusa: heads, layouts, the tree of the drafter."""

"""P-EAGLE: heads, layouts and the drafter, in another way than its formulas say."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROOM = "spec_sdk/model/draft_heads"
DRAFTERS = "plugins/drafters/spec_sdk_drafters"
FILES = "tests/draft_heads/test_peagle_files.py"
FORMULAS = f"{FILES}::test_positions_ahead_of_a_batch_over_several_cycles"
DRAFTER = "tests/draft_heads/test_peagle.py"

PEAGLE = (
    Mutant(
        "P-EAGLE: masks have the target's states of the last pair",
        f"{ROOM}/peagle_session.py",
        "torch.cat((features_NM, masked_PM))",
        "torch.cat((features_NM, features_NM[-1:].expand(masks, -1)))",
        (FORMULAS,),
    ),
    Mutant(
        "P-EAGLE: masks stay in the cache",
        f"{ROOM}/peagle_session.py",
        "self._keep(slots, tokens)",
        "self._keep(slots, [[*new, *[head.mask_token] * masks] for new in tokens])",
        (FORMULAS,),
    ),
    Mutant(
        "P-EAGLE: masks are fed the token before them",
        f"{ROOM}/peagle_session.py",
        "*[head.mask_token] * masks",
        "*[new[-1]] * masks",
        (FORMULAS,),
    ),
    Mutant(
        "P-EAGLE: later layers read the embedding too",
        f"{ROOM}/eagle3.py",
        "            return super().attention_input(layer, h_BNM, work)",
        "            h_BNM = h_BNM + work.embedded_BNM  # type: ignore[attr-defined]\n"
        "            return super().attention_input(layer, h_BNM, work)",
        (FORMULAS,),
    ),
    Mutant(
        "P-EAGLE: later layers have the feature's norm",
        f"{ROOM}/peagle_spec.py",
        'weights.block(weights.read(f"{layer}.input_layernorm.weight"), layer)',
        'weights.block(weights.read("layers.0.hidden_norm.weight"), layer)',
        (FORMULAS,),
    ),
    Mutant(
        "P-EAGLE: one layer that runs at once is taken for all of them",
        f"{ROOM}/head.py",
        "ops.head_block(head) if head.layers == 1 else None",
        "ops.head_block(head)",
        ("tests/native/test_head_block.py::test_a_head_of_several_layers_is_run_layer_by_layer",),
    ),
    Mutant(
        "P-EAGLE: files that do not say norm_before_residual mean it",
        f"{ROOM}/layouts/peagle.py",
        "norm_before_residual=False",
        "norm_before_residual=True",
        (FORMULAS,),
    ),
    Mutant(
        "P-EAGLE: it drafts deeper than it was trained",
        f"{DRAFTERS}/peagle.py",
        "return room if self.head.drafts is None else min(room, self.head.drafts)",
        "return room",
        (f"{DRAFTER}::test_how_deep_it_drafts",),
    ),
    Mutant(
        "heads fed pairs: what a slot was fed is fed once more with the last pair",
        f"{DRAFTERS}/feature_drafter.py",
        "self._feed_all_but(self.session.token_offset, request)",
        "self._feed_all_but(0, request)",
        (f"{DRAFTER}::test_conformance", f"{DRAFTER}::test_greedy_answers_are_those_of_plain_decoding"),
    ),
    Mutant(
        "mask token: the first of two that differ is taken",
        f"{ROOM}/layouts/mask_token.py",
        "if another != token:",
        "if False:",
        (f"{FILES}::test_contradictions",),
    ),
)
"""The family's head that guesses several tokens in one pass."""

"""EAGLE heads that compute something else than their papers say, or read their files in another program's way."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROOM = "spec_sdk/model/draft_heads"
FORMULAS = "tests/draft_heads/test_formulas.py::test_trees_of_a_batch_over_several_rounds"
LAYOUTS = "tests/draft_heads/test_layouts.py"
DRAFTER = "tests/draft_heads/test_drafter.py"
TREES = "tests/draft_heads/test_eagle_trees.py"

DRAFT_HEADS = (
    Mutant(
        "EAGLE-3: the feature stands before the embedding",
        f"{ROOM}/eagle3.py",
        "torch.cat((work.embedded_BNM, normed_BNM), dim=-1)",
        "torch.cat((normed_BNM, work.embedded_BNM), dim=-1)",
        (FORMULAS,),
    ),
    Mutant(
        "EAGLE-3: the residual stream is always normalized",
        f"{ROOM}/eagle3.py",
        "self._feature_norm(feature_BNM) if self.variant.norm_before_residual else",
        "self._feature_norm(feature_BNM) if True else",
        (FORMULAS,),
    ),
    Mutant(
        "EAGLE-3: what the children are fed is always normalized",
        f"{ROOM}/eagle3.py",
        "if self.variant.norm_output else h",
        "if True else h",
        (FORMULAS,),
    ),
    Mutant(
        "EAGLE-1: the feature stands before the embedding",
        f"{ROOM}/eagle1.py",
        "torch.cat((embedded_BNM, fed_features(inputs)), dim=-1)",
        "torch.cat((fed_features(inputs), embedded_BNM), dim=-1)",
        (FORMULAS,),
    ),
    Mutant(
        "EAGLE-1: the feature is the state before the final norm",
        f"{ROOM}/eagle1.py",
        "return self._target.final_norm(last_NM)",
        "return last_NM",
        (FORMULAS,),
    ),
    Mutant(
        "EAGLE-1: the logits are those of a normalized feature",
        f"{ROOM}/eagle1.py",
        "return output_head(h_BNM)",
        "return output_head(self._target.final_norm(h_BNM))",
        (FORMULAS,),
    ),
    Mutant(
        "draft vocabulary: d2t is the token itself",
        f"{ROOM}/draft_vocabulary.py",
        "token_W = torch.arange(len(d2t_W)) + d2t_W.long().cpu()",
        "token_W = d2t_W.long().cpu()",
        (f"{LAYOUTS}::test_d2t_is_an_offset",),
    ),
    Mutant(
        "tapped layers: SGLang's numbers are taken for vLLM's",
        f"{ROOM}/tapped_layers.py",
        "inside = _ids(nested, ENTERING, 1)",
        "inside = _ids(nested, ENTERING, 0)",
        (f"{LAYOUTS}::test_numbers_of_target_layers",),
    ),
    Mutant(
        "EAGLE-1: a missing bias key means none",
        f"{ROOM}/layouts/eagle.py",
        'files.config.flag("bias", True)',
        'files.config.flag("bias", False)',
        (f"{LAYOUTS}::test_a_missing_bias_key_means_a_bias",),
    ),
    Mutant(
        "speculators: who does not say norm_before_residual means none",
        f"{ROOM}/layouts/speculators.py",
        "norm_before_residual=True)",
        "norm_before_residual=False)",
        (f"{LAYOUTS}::test_speculators_that_do_not_say_norm_before_residual_mean_it",),
    ),
    Mutant(
        "head session: every node is fed the root's state",
        f"{ROOM}/session.py",
        "numbers_on(self.head.device, tree.parent[-new:])",
        "numbers_on(self.head.device, [0] * new)",
        (FORMULAS,),
    ),
    Mutant(
        "head session: the root's state is that of the first pair",
        f"{ROOM}/session.py",
        "output.hidden[FED_LAYER][0, -1:]",
        "output.hidden[FED_LAYER][0, :1]",
        (FORMULAS,),
    ),
    Mutant(
        "eagle: tokens are paired with the states of their own position",
        "plugins/drafters/spec_sdk_drafters/feature_drafter.py",
        "first = self.session.length(request.slot) + self.session.token_offset",
        "first = self.session.length(request.slot)",
        (f"{TREES}::test_trees_are_the_most_probable_paths_of_the_formulas",),
    ),
    Mutant(
        "eagle: a slot's pairs outlive its request",
        "plugins/drafters/spec_sdk_drafters/feature_drafter.py",
        "self.session.open(request.slot, (), keep=False)",
        "self.session.open(request.slot, self.session.tokens(request.slot))",
        (f"{DRAFTER}::test_tokens_are_the_same_alone_and_among_others", f"{DRAFTER}::test_conformance"),
    ),
)

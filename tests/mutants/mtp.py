"""Prediction modules that compute something else than their family, or read its files in another one's way."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROOM = "spec_sdk/model/draft_heads"
FILES = "tests/draft_heads/test_mtp_files.py"
DRAFTER = "tests/draft_heads/test_mtp.py"
FORMULA = f"{FILES}::test_trees_of_a_batch_over_several_rounds"

MTP = (
    Mutant(
        "MTP: all families join in one order",
        f"{ROOM}/mtp.py",
        "if self.variant.state_first else (embedded_BNM, state_BNM)",
        "if False else (embedded_BNM, state_BNM)",
        (FORMULA,),
    ),
    Mutant(
        "MTP: what the children are fed is always normalized",
        f"{ROOM}/mtp.py",
        "if self.variant.feeds_normalized else h",
        "if True else h",
        (FORMULA,),
    ),
    Mutant(
        "MTP: the state is always the one after the final norm",
        f"{ROOM}/mtp.py",
        "if self.variant.reads_normalized else last_NM",
        "if True else last_NM",
        (FORMULA, f"{FILES}::test_which_state_is_read_can_be_said"),
    ),
    Mutant(
        "MTP: the first pair has its embedding in all families",
        f"{ROOM}/mtp.py",
        "if self.variant.first_embedding_is_zero:",
        "if False:",
        (FORMULA,),
    ),
    Mutant(
        "MTP: the norms before the joining layer change places",
        f"{ROOM}/mtp.py",
        "state_BNM = self._norm(fed_features(inputs), self._state_norm_M)",
        "state_BNM = self._norm(fed_features(inputs), self._token_norm_M)",
        (FORMULA,),
    ),
    Mutant(
        "MTP: a layer without a mixture is taken for one with experts",
        f"{ROOM}/mtp_spec.py",
        "layers=(0,) if sparse else ()",
        "layers=(0,)",
        (FORMULA,),
    ),
    Mutant(
        "MTP: the first of several modules is read",
        f"{ROOM}/layouts/mtp.py",
        "if list(modules) != [first] or said != 1:",
        "if first not in modules:",
        (f"{FILES}::test_modules_that_are_not_read",),
    ),
    Mutant(
        "MTP: another embedding of the module is passed over",
        f"{ROOM}/layouts/mtp.py",
        "return torch.equal(files.store.tensor(stored), files.store.tensor(other))",
        "return True",
        (f"{FILES}::test_copies_of_the_targets_ends_are_not_held_twice",),
    ),
    Mutant(
        "MTP: the target's own module is loaded for texts of any length",
        "spec_sdk/model/models.py",
        "choices = replace(choices, context=choices.context or self._context)",
        "choices = replace(choices, context=choices.context)",
        (f"{DRAFTER}::test_the_targets_own_module",),
    ),
)
"""Modules of DeepSeek's, Qwen's and MiMo's kind, and those of the speculators library."""

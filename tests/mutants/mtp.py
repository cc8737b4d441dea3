"""Prediction modules that compute something else than their family, or read its files in another one's way."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROOM = "spec_sdk/model/draft_heads"
FILES = "tests/draft_heads/test_mtp_files.py"
DRAFTER = "tests/draft_heads/test_mtp.py"
GGUF = "tests/checkpoints/test_gguf_modules.py"
DRAFTED = f"{GGUF}::test_drafts_are_those_of_the_published_module"
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
    Mutant(
        "MTP: gains of a GGUF file's module are taken as they are",
        f"{ROOM}/gguf_module.py",
        "gain_minus_one=less_one and len(shape) == 1,",
        "gain_minus_one=False,",
        (f"{DRAFTED}[qwen35]",),
    ),
    Mutant(
        "MTP: a GGUF file's norms before the joining layer change places",
        f"{ROOM}/gguf_module.py",
        '"enorm": "mtp.pre_fc_norm_embedding",\n        "hnorm": "mtp.pre_fc_norm_hidden",',
        '"enorm": "mtp.pre_fc_norm_hidden",\n        "hnorm": "mtp.pre_fc_norm_embedding",',
        (f"{DRAFTED}[qwen35]",),
    ),
    Mutant(
        "MTP: copies in a GGUF file are told by bytes alone",
        f"{ROOM}/gguf_module.py",
        "return bool(np.square(some - others).sum() < _ROUNDED * np.square(others).sum())",
        "return False",
        (f"{GGUF}::test_copies_of_the_targets_are_not_held_twice",),
    ),
    Mutant(
        "MTP: a GGUF file's embedding is always the target's",
        f"{ROOM}/gguf_module.py",
        "return module.raw(own) == module.raw(theirs)",
        "return True",
        (f"{GGUF}::test_others_are_the_modules_own",),
    ),
    Mutant(
        "MTP: the layer of a module is expanded",
        f"{ROOM}/mtp_spec.py",
        "return None if name in self._packed else self._weights.in_few_bits(name.removeprefix(_MODEL))",
        "return None",
        (f"{GGUF}::test_matrices_in_few_bits_stay_so",),
    ),
    Mutant(
        "MTP: a layer of a GGUF file's model is taken for its module",
        "spec_sdk/model/gguf_module.py",
        "if found != {layers := layers_of(gguf, architecture)}:",
        "if not (layers := min(found)):",
        (f"{GGUF}::test_modules_that_are_not_read",),
    ),
)
"""Modules of DeepSeek's, Qwen's and MiMo's kind, those of the speculators library, and those of GGUF files."""

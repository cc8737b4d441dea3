"""Samples that see each other, labels in the wrong place, steps made twice, chains that are counted too short."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TRAINABLE = "spec_sdk/training/trainable.py"
PACKING = "spec_sdk/training/packing.py"
LOSS = "spec_sdk/training/distillation.py"
LOOP = "spec_sdk/training/training_loop.py"
ACCEPTANCE = "spec_sdk/training/measured_acceptance.py"
CHAINS = "spec_sdk/training/trainable_head.py"
CHAIN_ATTENTION = "spec_sdk/training/chain_attention.py"
CHAIN_BATCH = "spec_sdk/training/chain_batch.py"
BORROWED = "spec_sdk/model/borrowed_weights.py"
OF_MODEL = "tests/training/test_trainable.py"
OF_HEAD = "tests/training/test_trainable_head.py"
OF_LOSS = "tests/training/test_distillation.py"
OF_DIRECTORY = "tests/training/test_draft_directory.py"
OF_FURTHER = "tests/training/test_init_from.py"

TRAINING = (
    Mutant(
        "training: a sample sees those before it in its row",
        TRAINABLE,
        "(same_BNN & seen_NN)",
        "(same_BNN | seen_NN)",
        (OF_MODEL,),
    ),
    Mutant(
        "training: labels stand one place late",
        PACKING,
        "first = at + len(sample.prompt) - 1",
        "first = at + len(sample.prompt)",
        (OF_MODEL,),
    ),
    Mutant(
        "training: the rest of the distribution has no derivative",
        LOSS,
        "(p_A - ratio_A * q_A)",
        "(p_A - 0 * ratio_A * q_A)",
        (OF_LOSS,),
    ),
    Mutant(
        "training: a run that goes on begins its epoch anew",
        LOOP,
        "steps[max(0, self.progress.step - done) :]",
        "steps[max(0, 0 * self.progress.step - done) :]",
        ("tests/training/test_resuming.py::test_a_killed_run_ends_as_one_that_was_not",),
    ),
    Mutant(
        "training: the token after an accepted chain is not counted",
        ACCEPTANCE,
        "min(accepted + 1, length - at)",
        "min(max(accepted, 1), length - at)",
        ("tests/training/test_measured_acceptance.py",),
    ),
    Mutant(
        "head: a chain's rows stand at its anchor's position",
        CHAINS,
        "batch.position_T[pairs_R] + step, longest",
        "batch.position_T[pairs_R], longest",
        (OF_HEAD,),
    ),
    Mutant(
        "head: a chain does not see its own rows",
        CHAIN_ATTENTION,
        "    if step:\n",
        "    if step > 99:\n",
        (OF_HEAD,),
    ),
    Mutant(
        "head: a chain sees true features behind its anchor",
        CHAIN_ATTENTION,
        ".triu(before + 1)",
        ".triu(before + 2)",
        (OF_HEAD,),
    ),
    Mutant(
        "head: a prompt of one token gives its first label to the next anchor",
        CHAIN_BATCH,
        "kept = slice(skipped, skipped + anchors)",
        "kept = slice(0, anchors)",
        (OF_HEAD,),
    ),
    Mutant(
        "draft vocabulary: other tokens have a logit of 0",
        "spec_sdk/ops/vocabulary_row.py",
        'vocabulary), float("-inf"))',
        "vocabulary), 0.0)",
        (OF_DIRECTORY,),
    ),
    Mutant(
        "draft model: its own head gives way to the target's",
        BORROWED,
        'same_head = "head" in takes if "head" in table else',
        'same_head = "embedding" in takes if "head" in table else',
        (OF_DIRECTORY,),
    ),
    Mutant(
        "training: a head that goes on begins as the target's last layer all the same",
        "spec_sdk/training/head_method.py",
        "return start if self._trained is None else self._trained.start(start)",
        "return start",
        (OF_FURTHER,),
    ),
    Mutant(
        "training: a draft model that goes on begins as the target's layers all the same",
        "spec_sdk/training/draft_method.py",
        "        self._source = source\n",
        "",
        (OF_FURTHER,),
    ),
    Mutant(
        "training: output rows of another model pass for the target's",
        "spec_sdk/training/trained_head.py",
        "if own is not None and not _alike(own, theirs):",
        "if False:",
        (OF_FURTHER,),
    ),
)

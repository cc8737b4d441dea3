"""Falcon H1's layers computed otherwise: its multipliers, and attention beside a state."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FALCON = "spec_sdk/model/architectures/falcon_h1.py"
LOADING = "spec_sdk/model/recurrent/loading.py"
SPACE = "spec_sdk/model/recurrent/state_space.py"
LOGITS = "tests/model/test_decoder.py::test_logits_equal_transformers[falcon_h1]"
NORMED = "tests/model/test_decoder.py::test_logits_equal_transformers[normed_falcon_h1]"
TREES = "tests/recurrent/test_sessions.py::test_what_follows_kept_and_rejected_nodes_sees_the_kept_ones_alone"

HYBRIDS = (
    Mutant(
        "falcon h1: keys are not multiplied",
        FALCON,
        'one("key") * (one("attention_in") / entering) ** 2',
        '(one("attention_in") / entering) ** 2',
        (LOGITS,),
    ),
    Mutant(
        "falcon h1: scores grow with the norm's scale",
        FALCON,
        '(one("attention_in") / entering) ** 2',
        '(one("attention_in")) ** 2',
        (LOGITS,),
    ),
    Mutant(
        "falcon h1: state spaces are given what attention is",
        FALCON,
        'own = one("ssm_in") / entering',
        'own = one("ssm_in")',
        (LOGITS,),
    ),
    Mutant(
        "falcon h1: what an MLP gives is not multiplied",
        FALCON,
        "states = down / gate",
        "states = 1 / gate",
        (LOGITS,),
    ),
    Mutant(
        "falcon h1: a norm behind the gate is left out",
        SPACE,
        "if self.normed:",
        "if False:",
        (NORMED,),
    ),
    Mutant(
        "falcon h1: a norm behind the gate that there is not",
        SPACE,
        "if self.normed:",
        "if True:",
        (LOGITS,),
    ),
    Mutant(
        "falcon h1: x, b and c are multiplied as one",
        LOADING,
        "(scales.x, scales.b, scales.c)",
        "(scales.x, scales.x, scales.x)",
        (LOGITS,),
    ),
    Mutant(
        "falcon h1: steps are not multiplied",
        LOADING,
        "step_scale=scales.step",
        "step_scale=1.0",
        (LOGITS,),
    ),
    Mutant(
        "falcon h1: keys and values are not kept beside a state",
        "spec_sdk/model/recurrent/decoder.py",
        "        if self.blocks[layer].attends:\n            super().write_kv",
        "        if layer not in self.mixers:\n            super().write_kv",
        (LOGITS, TREES),
    ),
)

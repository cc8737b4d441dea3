"""Experts cut out wrongly; rotary frequencies that are not the checkpoint's."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROPE = "spec_sdk/model/rope.py"
GGUF = "spec_sdk/model/gguf_tensors.py"
OF_ROPE = "tests/model/test_rope.py"

FAMILIES = (
    Mutant(
        "gguf: every expert is the first",
        GGUF,
        "stored.reshape(shape[0], -1)[expert]",
        "stored.reshape(shape[0], -1)[0]",
        ("tests/checkpoints/test_gguf_conversion.py::test_experts_are_cut_out_of_their_layers_tensor",),
    ),
    Mutant(
        "yarn: the fast frequencies are divided",
        ROPE,
        "frequency / scaling.factor * divided + frequency * (1 - divided)",
        "frequency / scaling.factor * (1 - divided) + frequency * divided",
        (f"{OF_ROPE}::test_rotations_equal_transformers",),
    ),
    Mutant(
        "rope: the attention factor is left out of the sines",
        ROPE,
        "(angle_CD.sin() * self._factor_D)",
        "angle_CD.sin()",
        (f"{OF_ROPE}::test_rotations_equal_transformers",),
    ),
    Mutant(
        "longrope: long factors already in the original context",
        ROPE,
        "scaling.context > scaling.original_max_position",
        "scaling.context >= scaling.original_max_position",
        (f"{OF_ROPE}::test_longrope_goes_by_the_longest_text_of_the_run",),
    ),
    Mutant(
        "dynamic: the base is raised by the factor whatever the context",
        ROPE,
        "reach = max(scaling.context, scaling.original_max_position) / scaling.original_max_position",
        "reach = scaling.factor",
        (f"{OF_ROPE}::test_dynamic_goes_by_the_longest_text_of_the_run",),
    ),
    Mutant(
        "a head that differs from the embedding is left out",
        "spec_sdk/model/own_head.py",
        "if found[head] == shape and all(map(equal, parts)) else untied",
        "if True else untied",
        ("tests/checkpoints/test_own_head.py",),
    ),
)

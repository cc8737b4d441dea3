"""Tokens at other experts, or at theirs with other weights; rotary frequencies that are not the checkpoint's."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FEED_FORWARD = "spec_sdk/ops/feed_forward.py"
ROPE = "spec_sdk/model/rope.py"
GGUF = "spec_sdk/model/gguf_tensors.py"
OF_EXPERTS = "tests/model/test_mixture.py::test_every_row_has_its_own_experts"
OF_ROPE = "tests/model/test_rope.py"

FAMILIES = (
    Mutant(
        "experts: what they return stays in their order",
        FEED_FORWARD,
        "y[order.argsort()].view(K, A, -1)",
        "y.view(K, A, -1)",
        (OF_EXPERTS,),
    ),
    Mutant(
        "experts: the weights of a token's sum to 1 in every model",
        FEED_FORWARD,
        "if self.normalized:",
        "if self.per_token:",
        (OF_EXPERTS,),
    ),
    Mutant(
        "experts: the shared one has no gate",
        FEED_FORWARD,
        "F.sigmoid(F.linear(x_KM, self.shared_gate_1M)) * self.shared(x_KM)",
        "self.shared(x_KM)",
        (OF_EXPERTS,),
    ),
    Mutant(
        "experts: chosen in the dtype of the model",
        FEED_FORWARD,
        "F.linear(x_KM.float(), self.router_EM)",
        "F.linear(x_KM, self.router_EM.to(x_KM.dtype)).float()",
        ("tests/model/test_mixture.py::test_the_choice_is_made_in_float32",),
    ),
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

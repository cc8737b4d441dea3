"""Tokens at other experts than theirs, or at theirs with other weights: in torch, native kernels and GGUF files."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FEED_FORWARD = "spec_sdk/ops/feed_forward.py"
KERNEL = "plugins/backends/spec_sdk_backends/native/source/feed_forward.h"
OF_EXPERTS = "tests/model/test_mixture.py::test_every_row_has_its_own_experts"
NATIVE = "tests/native/test_decoder.py::test_blocks_are_those_of_torch"
OF_GGUF = "tests/checkpoints/test_gguf_families.py"

EXPERTS = (
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
        "if how.normalized:",
        "if how.per_token:",
        (OF_EXPERTS,),
    ),
    Mutant(
        "experts: the shared one has no gate",
        FEED_FORWARD,
        "shared_KM = F.sigmoid(F.linear(x_KM, self.shared_gate_1M)) * shared_KM",
        "pass",
        (OF_EXPERTS,),
    ),
    Mutant(
        "experts: chosen in the dtype of the model",
        FEED_FORWARD,
        "F.linear(x_KM.float(), self.router_EM, self.router_bias_E)",
        "F.linear(x_KM, self.router_EM.to(x_KM.dtype)).float()",
        ("tests/model/test_mixture.py::test_the_choice_is_made_in_float32",),
    ),
    Mutant(
        "experts: a correction weighs",
        FEED_FORWARD,
        "score_KE.gather(-1, chosen_KA)",
        "choice_KE.gather(-1, chosen_KA)",
        (OF_EXPERTS,),
    ),
    Mutant(
        "experts: a group is as good as its best one",
        FEED_FORWARD,
        "choice_KCX.topk(2, dim=-1)",
        "choice_KCX.topk(1, dim=-1)",
        (OF_EXPERTS,),
    ),
    Mutant(
        "experts: weights are not scaled",
        FEED_FORWARD,
        "weight_KA * how.scale",
        "weight_KA",
        (OF_EXPERTS,),
    ),
    Mutant(
        "native experts: a correction weighs",
        KERNEL,
        "sum += weight[a] = _score[_order[a]];",
        "sum += weight[a] = value[_order[a]];",
        (NATIVE,),
    ),
    Mutant(
        "native experts: a correction is left out",
        KERNEL,
        "experts.correction ? _biased.data() : _score.data()",
        "_score.data()",
        (NATIVE,),
    ),
    Mutant(
        "native experts: a group is as good as its best one",
        KERNEL,
        "value[own[0]] + value[own[1]]",
        "value[own[0]]",
        (NATIVE,),
    ),
    Mutant(
        "native experts: weights are not scaled",
        KERNEL,
        "weight[a] *= float(experts.scale);",
        "",
        (NATIVE,),
    ),
    Mutant(
        "native experts: the weights of a row's sum to 1 in every model",
        KERNEL,
        "if (experts.normalised) weight[a] /= sum;",
        "weight[a] /= sum;",
        (NATIVE,),
    ),
    Mutant(
        "native experts: the shared one has no gate",
        KERNEL,
        "routing.shared[r] * to_float(shared",
        "to_float(shared",
        (NATIVE,),
    ),
    Mutant(
        "native experts: all have the first rows",
        KERNEL,
        "own.normal.data() + row[i] * M, M, own.gathered",
        "own.normal.data() + i * M, M, own.gathered",
        (NATIVE,),
    ),
    Mutant(
        "native experts: products are added in the order of experts",
        KERNEL,
        "routing.pair[r * A + a] * M + first",
        "(r * A + a) * M + first",
        (NATIVE,),
    ),
    Mutant(
        "GLM 4.5 in GGUF: a prediction module is a layer",
        "spec_sdk/model/architectures/glm4_moe.py",
        '"num_hidden_layers": layers_of(gguf, _GGUF),',
        "",
        (f"{OF_GGUF}::test_a_glm_with_a_prediction_module",),
    ),
    Mutant(
        "ERNIE in GGUF: the first layer has experts",
        "spec_sdk/model/architectures/ernie4_5_moe.py",
        '"moe_layer_start_index": first,',
        '"moe_layer_start_index": 0,',
        (f"{OF_GGUF}::test_logits_equal_transformers",),
    ),
    Mutant(
        "experts: the shared one has a gate where the first layer has one",
        "spec_sdk/model/load_decoder.py",
        "self._table.name(role, layer) in self._names",
        "self._table.name(role) in self._names",
        ("tests/model/test_decoder.py::test_logits_equal_transformers",),
    ),
    Mutant(
        "experts: weights that sum to less are divided all the same",
        FEED_FORWARD,
        ".clamp_min(how.least_sum)",
        "",
        ("tests/model/test_mixture.py::test_a_sum_has_a_least_value",),
    ),
    Mutant(
        "GGUF: a prediction module's tensors are another model's",
        "spec_sdk/model/gguf_convert.py",
        "range(max(0, blocks - modules), blocks)",
        "range(0)",
        (f"{OF_GGUF}::test_a_glm_with_a_prediction_module",),
    ),
)

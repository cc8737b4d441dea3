"""Falcon H1's and Nemotron H's layers computed otherwise: multipliers, attention beside a state, layers of one part."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FALCON = "spec_sdk/model/architectures/falcon_h1.py"
NEMOTRON = "spec_sdk/model/architectures/nemotron_h.py"
LOADING = "spec_sdk/model/recurrent/loading.py"
SPACE = "spec_sdk/model/recurrent/state_space.py"
LOGITS = "tests/model/test_decoder.py::test_logits_equal_transformers[falcon_h1]"
ALONE = "tests/model/test_decoder.py::test_logits_equal_transformers[nemotron_h]"
SPARSE = "tests/model/test_decoder.py::test_logits_equal_transformers[nemotron_h_moe]"
OF_CONFIGS = "tests/checkpoints/test_recurrent_configs.py"
OF_FILES = "tests/checkpoints/test_gguf_recurrent.py"
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
    Mutant(
        "nemotron h: a layer with an MLP alone has no norm",
        "spec_sdk/model/load_decoder.py",
        'weights.gain_if_any("input_norm" if alone else "post_norm", i, config.post_norm_scale)',
        'weights.gain_if_any("post_norm", i, config.post_norm_scale)',
        (ALONE,),
    ),
    Mutant(
        "nemotron h: MLPs are not squared",
        "spec_sdk/ops/feed_forward.py",
        "F.relu(self.up(x)).square()",
        "F.relu(self.up(x))",
        (ALONE, SPARSE),
    ),
    Mutant(
        "nemotron h: its shared expert is as wide as the others",
        NEMOTRON,
        'shared = fields.size("moe_shared_expert_intermediate_size", 7688)',
        'shared = fields.size("moe_intermediate_size", 7688)',
        (f"{OF_CONFIGS}::test_a_published_nemotron_3_nano", SPARSE),
    ),
    Mutant(
        "nemotron h: attention has rotary positions",
        NEMOTRON,
        "unrotated=range(len(pattern))",
        "unrotated=()",
        (ALONE,),
    ),
    Mutant(
        "nemotron h: older names mean nothing",
        NEMOTRON,
        '("conv_kernel", "mamba_d_conv")',
        '("conv_kernel",)',
        (f"{OF_CONFIGS}::test_older_names_of_a_nemotron_h",),
    ),
    Mutant(
        "nemotron h: a file's epsilon has one name",
        NEMOTRON,
        'layer_norm_rms_epsilon": meta.get(f"{architecture}.attention.layer_norm_epsilon")',
        'layer_norm_rms_epsilon": 1e-5',
        (f"{OF_FILES}::test_a_nemotron_whose_epsilon_has_another_name",),
    ),
    Mutant(
        "nemotron h: a file's layers without KV heads are all state spaces",
        "spec_sdk/model/layer_pattern.py",
        "        if width:\n",
        "        if width and attends:\n",
        (f"{OF_FILES}::test_logits_equal_transformers[nemotron_h]",),
    ),
    Mutant(
        "nemotron h: parts of its layers have the numbers of the whole",
        "spec_sdk/model/config.py",
        "without_attention=numbered(self.without_attention)",
        "without_attention=self.without_attention",
        ("tests/distributed/test_shards.py::test_layers_of_a_nemotron_are_the_subset_of_its_decoder",),
    ),
)

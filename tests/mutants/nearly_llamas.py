"""Heads whose dimensions lie in another order, multipliers that are left out, matrices that are cut out wrongly; and in
the native kernels norms of outputs, GELU, wide gains and scaled embeddings.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROWS = "spec_sdk/model/rotary_rows.py"
ROPE = "spec_sdk/model/rope.py"
TABLE = "spec_sdk/model/weight_table.py"
GRANITE = "spec_sdk/model/granite_like.py"
BLOCK = "plugins/backends/spec_sdk_backends/native/source/block.h"
LOGITS = "tests/model/test_decoder.py::test_logits_equal_transformers"
STATES = "tests/model/test_decoder.py::test_hidden_states_equal_transformers"
OF_GGUF = "tests/checkpoints/test_gguf_families.py"
OF_DRAFTS = "tests/training/test_trainable.py"
OF_CUTS = "tests/bench/peers/test_assistant.py::test_a_cut_of_a_family_whose_layers_differ_or_whose_matrices_are_joined"
NATIVE = "tests/native/test_decoder.py::test_blocks_are_those_of_torch"
WHOLE = "tests/native/test_whole_pass.py::test_the_bits_of_the_stages"

NEARLY_LLAMAS = (
    Mutant(
        "rotary rows: the two of a pair change places",
        ROWS,
        "torch.arange(rotated).view(-1, 2).T",
        "torch.arange(rotated).view(-1, 2).flip(1).T",
        (LOGITS,),
    ),
    Mutant(
        "rotary rows: what stands still comes first",
        ROWS,
        "torch.cat((pairs, still), dim=1)",
        "torch.cat((still, pairs), dim=1)",
        (LOGITS,),
    ),
    Mutant(
        "rotary rows: biases stay as they are stored",
        ROWS,
        '("q", "k", "q_bias", "k_bias", "q_norm", "k_norm")',
        '("q", "k", "q_norm", "k_norm")',
        (LOGITS,),
    ),
    Mutant(
        "rotary rows: a draft model is written in the decoder's order",
        ROWS,
        "rotated_X[row_X.argsort().to(rotated_X.device)]",
        "rotated_X",
        (f"{OF_DRAFTS}::test_tensors_are_those_of_the_target_s_layers",),
    ),
    Mutant(
        "rotary rows: matrices in few bits stay as they are stored",
        ROWS,
        "stored if row_X is None else stored.rows(row_X)",
        "stored",
        (f"{OF_GGUF}::test_matrices_in_few_bits_stay_so",),
    ),
    Mutant(
        "rope: the attention factor is of dimensions that stand still too",
        ROPE,
        "torch.where(self._frequency == 0, 1.0, factor).repeat(2)",
        "torch.full_like(self._frequency, factor).repeat(2)",
        (LOGITS,),
    ),
    Mutant(
        "layers without rotary positions have them",
        "spec_sdk/model/config.py",
        "if layer in self.unrotated:",
        "if layer in ():",
        (LOGITS,),
    ),
    Mutant(
        "layers without rotary positions keep their numbers in a cut",
        "spec_sdk/model/config.py",
        "unrotated=numbered(self.unrotated)",
        "unrotated=self.unrotated",
        (OF_CUTS,),
    ),
    Mutant(
        "joined matrices: every part is the first",
        TABLE,
        "before = sum(heights[: packing.part]) if packing else 0",
        "before = 0",
        (LOGITS,),
    ),
    Mutant(
        "granite: the norm's epsilon is that of scaled states",
        GRANITE,
        "rms_norm_eps=config.rms_norm_eps / residual**2,",
        "rms_norm_eps=config.rms_norm_eps,",
        ("tests/checkpoints/test_config.py::test_a_granite_s_norms_are_of_states_that_are_not_scaled",),
    ),
    Mutant(
        "granite: embeddings are not over the residuals' scale",
        GRANITE,
        "embedding_scale=embedding / residual,",
        "embedding_scale=embedding,",
        (LOGITS,),
    ),
    Mutant(
        "granite: logits are not scaled",
        GRANITE,
        "logit_scale=1.0 / logits,",
        "",
        (LOGITS,),
    ),
    Mutant(
        "granite: drafters are given the decoder's own states",
        "spec_sdk/model/decoder.py",
        "return state if scale == 1.0 else state * scale",
        "return state",
        (STATES,),
    ),
    Mutant(
        "native: what attention gives is added as it is",
        BLOCK,
        "Giving<T> give(norm, work);",
        "Gain none{}; Giving<T> give(none, work);",
        (NATIVE,),
    ),
    Mutant(
        "ministral: the context reaches where queries grow",
        "spec_sdk/model/rope_fields.py",
        "return min(positions, rope.size(",
        "return max(positions, rope.size(",
        ("tests/checkpoints/test_ministral.py::test_the_longest_context_is_that_where_queries_do_not_grow",),
    ),
    Mutant(
        "text models: all of a kind of checkpoint are one family's",
        "spec_sdk/model/text_settings.py",
        "own if own in TEXTS_OF[kind] else TEXTS_OF[kind][0]",
        "TEXTS_OF[kind][0]",
        ("tests/checkpoints/test_ministral.py::test_the_text_of_a_model_that_sees",),
    ),
    Mutant(
        "native: every MLP has SiLU",
        "plugins/backends/spec_sdk_backends/native/source/feed_forward.h",
        "else if (work.shape.activation == 1)",
        "else if (false)",
        (NATIVE,),
    ),
    Mutant(
        "native: gains are of the rows' dtype",
        BLOCK,
        "if (gain.wide)",
        "if (false)",
        (NATIVE,),
    ),
    Mutant(
        "native: scores are not capped within blocks",
        "plugins/backends/spec_sdk_backends/native/source/blocks.h",
        "float(block.cap)",
        "0.0f",
        (NATIVE,),
    ),
    Mutant(
        "native: a whole pass enters embeddings as they are",
        "plugins/backends/spec_sdk_backends/native/source/lookup.h",
        "if (embedding.factor != 1.0)",
        "if (false)",
        (WHOLE,),
    ),
    Mutant(
        "native: a whole pass leaves logits uncapped",
        "plugins/backends/spec_sdk_backends/native/whole_pass.py",
        "decoder.capped(logits_BnR)",
        "logits_BnR",
        (WHOLE,),
    ),
    Mutant(
        "native: norms of all heads together are left out",
        BLOCK,
        "if (!s.wide_qk_norm || !block.q_norm.at) return;",
        "return;",
        (NATIVE,),
    ),
    Mutant(
        "native: norms of all heads of K are those of Q",
        BLOCK,
        "keys ? block.k_norm : block.q_norm, (keys",
        "block.q_norm, (keys",
        (NATIVE,),
    ),
    Mutant(
        "EXAONE: all layers have rotary positions",
        "spec_sdk/model/architectures/exaone4.py",
        "if window is not None and windows[layer] is None",
        "if False",
        (LOGITS,),
    ),
    Mutant(
        "OLMo 3: layers with a window are stretched too",
        "spec_sdk/model/architectures/olmo2.py",
        "return replace(config, windowed_rope=Rope(*rope))",
        "return config",
        (LOGITS,),
    ),
    Mutant(
        "layers of a draft model: windows follow from their new numbers",
        "spec_sdk/model/layers_of.py",
        "elif config.windows:",
        "elif False:",
        ("tests/training/test_draft_directory.py::test_layers_that_differ_by_their_number",),
    ),
)

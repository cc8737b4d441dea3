"""Windows that reach too far or not far enough, and layers that are taken for others of their model."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MASK = "spec_sdk/ops/attention_mask.py"
INPUTS = "spec_sdk/ops/pass_inputs.py"
ATTENTION = "spec_sdk/ops/masked_attention.py"
CONFIG = "spec_sdk/model/config.py"
LOADER = "spec_sdk/model/load_decoder.py"
DECODER = "spec_sdk/model/decoder.py"
GEMMA = "spec_sdk/model/gemma_like.py"
FUSED = "spec_sdk/model/runners/layer_parallel.py"
PREDICTABLE = "spec_sdk/model/predictable.py"
OF_MASK = "tests/tree/test_attention.py"
OF_BLOCKS = "tests/kernels/test_reference_by_blocks.py"
OF_CONFIG = "tests/checkpoints/test_config.py"
OF_FUSED = "tests/model/test_fused_groups.py"
OF_DECODER = "tests/model/test_decoder.py"
LOGITS = f"{OF_DECODER}::test_logits_equal_transformers"
PATHS = f"{OF_DECODER}::test_chunks_single_tokens_and_trees_equal_transformers"
OF_PIPELINES = "tests/pipelines/test_tiny_pipelines.py"

LAYER_KINDS = (
    Mutant(
        "window: one key more",
        MASK,
        "self.query_position_N[:, None] - position_S < window",
        "self.query_position_N[:, None] - position_S <= window",
        (OF_MASK,),
    ),
    Mutant(
        "window: the last key that is in sight is left out",
        MASK,
        "gone = max(0, self.prefix + 1 - window)",
        "gone = max(0, self.prefix + 2 - window)",
        (OF_MASK,),
    ),
    Mutant(
        "window: a mask that hides keys is taken for one that does not",
        MASK,
        "hides = self.keys - gone > window",
        "hides = self.keys - gone > window + 1",
        (OF_MASK,),
    ),
    Mutant(
        "window: positions of the prefix count from its first key that is left",
        MASK,
        "torch.arange(self.first, self.first + self.prefix, device",
        "torch.arange(0, self.prefix, device",
        (OF_MASK,),
    ),
    Mutant(
        "window: in a growing tree the keys lie one position late",
        INPUTS,
        "key_position=position,",
        "key_position=[at + 1 for at in position],",
        (PATHS,),
    ),
    Mutant(
        "window: blocks of queries forget a key in sight",
        ATTENTION,
        "first_seen = mask.query_position_N[block].min() + 1 - mask.window",
        "first_seen = mask.query_position_N[block].min() + 2 - mask.window",
        (OF_BLOCKS,),
    ),
    Mutant(
        "softcap: not for a prompt's first chunk",
        ATTENTION,
        "is_torchs = spec.softcap is None and",
        "is_torchs = (mask.is_causal or spec.softcap is None) and",
        (OF_MASK,),
    ),
    Mutant(
        "kinds: layers with a window turn as the others",
        CONFIG,
        "rope = self.windowed_rope",
        "rope = rope",
        (OF_CONFIG,),
    ),
    Mutant(
        "kinds: a cut keeps the windows of the first layers",
        CONFIG,
        "tuple(self.windows[layer] for layer in layers)",
        "tuple(self.windows[: len(layers)])",
        (OF_CONFIG,),
    ),
    Mutant(
        "kinds: every layer attends as the first",
        DECODER,
        "self.kinds[layer].attention)[0]",
        "self.kinds[0].attention)[0]",
        (LOGITS,),
    ),
    Mutant(
        "kinds: a group is fused whatever its layers are",
        FUSED,
        "runs_of_kind(decoder.kinds[first:end])",
        "[(0, g)]",
        (OF_FUSED,),
    ),
    Mutant(
        "gemma: gains are what is stored",
        LOADER,
        "+ 1.0 if self._table.row(role).gain_minus_one else tensor",
        "if self._table.row(role).gain_minus_one else tensor",
        (LOGITS,),
    ),
    Mutant(
        "gemma: embeddings are not scaled",
        GEMMA,
        "embedding_scale=config.hidden_size**0.5",
        "embedding_scale=1.0",
        (LOGITS,),
    ),
    Mutant(
        "gemma: the MLP's output norm is left out",
        DECODER,
        "self._normed(m_BNM, w.mlp_output_norm_M)",
        "m_BNM",
        (LOGITS,),
    ),
    Mutant(
        "predictors: layers that are not plain are predicted",
        PREDICTABLE,
        "if refused is not None:",
        "if refused is not None and not specs[refused].window:",
        (f"{OF_PIPELINES}::test_predictors_refuse_layers_that_do_not_attend_plainly",),
    ),
)

"""Attention to latents that is read, rotated, scaled or cached otherwise."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LIKE = "spec_sdk/model/latent_like.py"
DECODER = "spec_sdk/model/latent_attention.py"
NATIVE = "plugins/backends/spec_sdk_backends/native/source/latents.h"
OF_DECODER = "tests/latents/test_latent_decoder.py"
OF_GGUF = "tests/checkpoints/test_gguf_latents.py"
OF_TORCH = "tests/native/test_decoder.py::test_blocks_are_those_of_torch"
LIKE_TRANSFORMERS = f"{OF_DECODER}::test_decoding_is_that_of_keys_and_values_of_every_token"

LATENTS = (
    Mutant(
        "latents: scores are scaled by what the cache has of a token",
        LIKE,
        "attention_scale=latent.qk_head_dim**-0.5 * yarn_temperature(fields) ** 2",
        "attention_scale=latent.width**-0.5 * yarn_temperature(fields) ** 2",
        (LIKE_TRANSFORMERS,),
    ),
    Mutant(
        "latents: YaRN's temperature scales scores once",
        LIKE,
        "attention_scale=latent.qk_head_dim**-0.5 * yarn_temperature(fields) ** 2",
        "attention_scale=latent.qk_head_dim**-0.5 * yarn_temperature(fields)",
        (f"{OF_DECODER}::test_yarn_scales_scores_too",),
    ),
    Mutant(
        "latents: a GGUF file's weight of YaRN is taken as it stands",
        LIKE,
        'weight := 10 * meta.number(key("rope.scaling.yarn_log_multiplier"), 0.0)',
        'weight := meta.number(key("rope.scaling.yarn_log_multiplier"), 0.0)',
        (f"{OF_GGUF}::test_logits_equal_transformers",),
    ),
    Mutant(
        "latents: pairs of the shared key are taken for halves",
        "spec_sdk/model/rotary_rows.py",
        '_OF_LATENTS = ("query_up", "latent", "latent_bias")',
        '_OF_LATENTS = ("query_up",)',
        (LIKE_TRANSFORMERS,),
    ),
    Mutant(
        "latents: rows of values are taken for those of keys",
        "spec_sdk/model/weight_table.py",
        "starts = range(before // groups, sum(heights), sum(heights) // groups)",
        "starts = range(before, sum(heights), height // groups)",
        (f"{OF_GGUF}::test_tensors_are_the_models",),
    ),
    Mutant(
        "latents: one goes into the cache without its norm",
        DECODER,
        "self._norm(latent_BNR.contiguous(), of.latent_norm_R)[:, :, None]",
        "latent_BNR.contiguous()[:, :, None]",
        (LIKE_TRANSFORMERS,),
    ),
    Mutant(
        "latents: values are made of rotated dims, too",
        DECODER,
        "o_BNHR = o_BNHD[..., : self.latent.kv_lora_rank].to(self.dtype)",
        "o_BNHR = o_BNHD[..., -self.latent.kv_lora_rank :].to(self.dtype)",
        (LIKE_TRANSFORMERS,),
    ),
    Mutant(
        "latents: a cache that grows has values of its own",
        "spec_sdk/model/kv_cache.py",
        '        if "v_LSGCD" not in self._of_its_own:\n            self.v_LSGCD = self.k_LSGCD\n',
        "",
        (f"{OF_DECODER}::test_the_cache_has_one_vector_of_a_token",),
    ),
    Mutant(
        "latents: experts chosen by probability have a correction",
        "spec_sdk/model/deepseek_mixture.py",
        'corrected=scored_by == "sigmoid",',
        "corrected=True,",
        (f"{OF_DECODER}::test_missing_keys_mean_what_they_mean_to_transformers",),
    ),
    Mutant(
        "native latents: the query's latent has no norm",
        NATIVE,
        "if (of.has_queries()) normalise<T>(query, of.query_norm, block.qkv.outputs, epsilon, query);",
        "",
        (OF_TORCH,),
    ),
    Mutant(
        "native latents: a head of Q is not rotated",
        NATIVE,
        "    part = Team::part_of(work.rows * heads.queries);\n",
        "    part = {0, 0};\n",
        (OF_TORCH,),
    ),
    Mutant(
        "native latents: heads beyond the first 64 see other keys",
        NATIVE,
        "    shared.head_stride = 0;\n",
        "",
        (f"{OF_DECODER}::test_native_attention_of_576_dims",),
    ),
    Mutant(
        "native latents: padding goes into the cache",
        NATIVE,
        "    if (n >= pass.live[b]) return;\n",
        "",
        (f"{OF_DECODER}::test_padding_is_not_cached",),
    ),
)

"""Passes in parts that are not the whole pass, and promises that are not kept."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

IN_PARTS = "plugins/backends/spec_sdk_backends/native/in_parts.py"
DECODER = "plugins/backends/spec_sdk_backends/native/decoder.py"
PARTS = "plugins/backends/spec_sdk_backends/native/prompts_in_parts.py"
OF_PARTS = "tests/native/test_prompts_in_parts.py"
PASS = "spec_sdk/ops/pass_inputs.py"
PIPELINE = "spec_sdk/pipeline.py"
OF_BITS = "tests/native/test_deterministic.py"
OF_PIPELINES = "tests/native/test_deterministic_pipelines.py"
WIDE = (f"{OF_BITS}::test_trees_wider_than_one_native_call",)
REFUSED = (f"{OF_PIPELINES}::test_what_is_refused",)

DETERMINISTIC = (
    Mutant(
        "parts: every part is rotated as the first one",
        "spec_sdk/model/decoder.py",
        "rotations=self.rotations_of(requests, rows)",
        "rotations=self.rotations_of(requests, slice(0, rows.stop - rows.start))",
        WIDE,
    ),
    Mutant(
        "parts: wide passes are torch's all the same",
        DECODER,
        "return self.blocks_in_parts(h_BNM, work, first, end) if self.in_parts else None",
        "return None",
        WIDE,
    ),
    Mutant(
        "parts: wide logits are torch's all the same",
        IN_PARTS,
        "if not self.in_parts or self.narrow(h_BNM):",
        "if self.in_parts or self.narrow(h_BNM):",
        (f"{OF_BITS}::test_logits_of_the_last_rows_of_many_requests",),
    ),
    Mutant(
        "parts: a part's tapped states are those that leave its last block",
        IN_PARTS,
        "states_BNM[requests, rows] = part.hidden[layer]",
        "states_BNM[requests, rows] = result",
        WIDE,
    ),
    Mutant(
        "parts: a decoder of some of the blocks runs wide passes in torch",
        DECODER,
        "NativeDecoder(super().subset(layers), self.in_parts)",
        "NativeDecoder(super().subset(layers))",
        (f"{OF_BITS}::test_some_of_the_blocks",),
    ),
    Mutant(
        "parts: every part is written where the first one is",
        PASS,
        "write_at_B=self.write_at_B[requests] + rows.start,",
        "write_at_B=self.write_at_B[requests],",
        WIDE,
    ),
    Mutant(
        "same bits: zeros of both signs are the same",
        "spec_sdk/testing/same_bits.py",
        "torch.equal(one.contiguous().view(whole), other.contiguous().view(whole))",
        "torch.equal(one, other)",
        (f"{OF_BITS}::test_bits_are_told_apart",),
    ),
    Mutant(
        "deterministic: promised of every model that runs natively",
        "plugins/backends/spec_sdk_backends/cpu.py",
        'bits_vary = None if in_parts else "wide passes are torch\'s"',
        "bits_vary = None",
        (f"{OF_BITS}::test_without_it_bits_depend_on_how_a_prompt_was_fed",),
    ),
    Mutant(
        "parts: wide passes run in torch where parts are as fast",
        PARTS,
        "return blocks_round_rows(decoder) or parts_are_as_fast(decoder, ops)",
        "return blocks_round_rows(decoder)",
        (f"{OF_BITS}::test_nobody_need_ask_for_it_where_parts_are_as_fast",),
    ),
    Mutant(
        "parts: wide passes run natively where torch is faster",
        PARTS,
        "return blocks_round_rows(decoder) or parts_are_as_fast(decoder, ops)",
        "return True",
        (f"{OF_BITS}::test_without_it_bits_depend_on_how_a_prompt_was_fed",),
    ),
    Mutant(
        "parts: measured the wrong way round",
        PARTS,
        "return min(taken[True][1:]) <= MARGIN * min(taken[False][1:])",
        "return min(taken[False][1:]) <= MARGIN * min(taken[True][1:])",
        (OF_PARTS,),
    ),
    Mutant(
        "parts: both ways are timed in whole passes",
        PARTS,
        "decoder.in_parts = in_parts",
        "decoder.in_parts = False",
        (OF_PARTS,),
    ),
    Mutant(
        "parts: a model's shape is not asked for",
        PARTS,
        "{blocks} of {of_block} {c.num_heads}",
        "{blocks} {c.num_heads}",
        (OF_PARTS,),
    ),
    Mutant(
        "deterministic: promised over a cache in 8 bits",
        "spec_sdk/model/torch_executor.py",
        'self.bits_vary = f"attention over a cache in {form} is torch\'s; use model.kv_cache=exact"',
        "pass",
        REFUSED,
    ),
    Mutant(
        "deterministic: nobody asks the target whether it can",
        PIPELINE,
        "if settings.deterministic and models.target.executor.bits_vary is not None:",
        "if False:",
        REFUSED,
    ),
    Mutant(
        "deterministic: a relaxed pipeline is taken",
        PIPELINE,
        'if settings.deterministic and pipeline.guarantee == "relaxed":',
        "if False:",
        REFUSED,
    ),
    Mutant(
        "deterministic: task=bench excuses near-ties",
        "spec_sdk/bench/greedy_checks.py",
        "apart.tie and self._ties",
        "apart.tie",
        (f"{OF_PIPELINES}::test_bench_excuses_no_near_tie",),
    ),
)

"""gpt-oss computed otherwise: its sinks, its activation, its experts' rows; codes that stand for levels."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SOURCE = "plugins/backends/spec_sdk_backends/native/source/"
BACKENDS = "plugins/backends/spec_sdk_backends/"
MASKED = "spec_sdk/ops/masked_attention.py"
PACKED = "spec_sdk/model/packed_weights.py"
STORED = "spec_sdk/model/mxfp4_weights.py"
OF_MASK = "tests/tree/test_attention.py::test_a_closed_tree"
OF_NATIVE = "tests/native/test_attention.py::test_dense_float64"
OF_CACHE = "tests/kernels/test_cached_attention.py::test_every_request_has_its_own"
OF_PRODUCTS = "tests/native/test_products.py::test_quantized"
OF_ROUNDED = "tests/native/test_rounded_rows.py::test_a_product_is_that_of_the_rounded_rows"
OF_LEVELS = "tests/model/test_levels.py"
OF_MXFP4 = "tests/checkpoints/test_mxfp4.py"
OF_TORCH = "tests/native/test_decoder.py::test_blocks_are_those_of_torch"
OF_NAMES = "tests/checkpoints/test_published_names.py"

GPT_OSS = (
    Mutant(
        "sinks: they are scaled",
        MASKED,
        "sinks_H.to(wide).repeat_interleave(N)",
        "(sinks_H.to(wide) * spec.scale_for(D)).repeat_interleave(N)",
        (OF_MASK,),
    ),
    Mutant(
        "sinks: heads take turns",
        MASKED,
        "sinks_H.to(wide).repeat_interleave(N).view(G, -1)",
        "sinks_H.to(wide).repeat(N).view(G, -1)",
        (OF_MASK,),
    ),
    Mutant(
        "native sinks: all heads have the first one's",
        SOURCE + "attention.h",
        "joined.add_sink(_heads.sinks[h])",
        "joined.add_sink(_heads.sinks[0])",
        (OF_NATIVE,),
    ),
    Mutant(
        "native sinks: not within a pass's one call",
        SOURCE + "blocks.h",
        "block.window, block.sinks}",
        "block.window, nullptr}",
        (OF_TORCH,),
    ),
    Mutant(
        "sinks on GPUs: every split has one",
        BACKENDS + "tree_attention_kernel.py",
        "m_M = tl.where(split == 0, sink_M, m_M)\n        l_M = tl.where(split == 0, 1.0, l_M)",
        "m_M, l_M = sink_M, l_M + 1.0",
        (OF_CACHE,),
    ),
    Mutant(
        "sinks on GPUs: prompts' first chunks have none",
        BACKENDS + "triton_ops.py",
        "spec.softcap is None and spec.sinks is None and",
        "spec.softcap is None and",
        ("tests/kernels/test_cached_attention.py::test_the_ops_read_no_tensor_of_the_device",),
    ),
    Mutant(
        "sinks: layers with some are predicted",
        "spec_sdk/model/predictable.py",
        "if config.attention_sinks:",
        "if False:",
        ("tests/checkpoints/test_gpt_oss.py::test_attention_is_not_predicted",),
    ),
    Mutant(
        "swiglu: the gate is held from below",
        "spec_sdk/ops/feed_forward.py",
        "gate.clamp(max=SWIGLU_LIMIT)",
        "gate.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)",
        ("tests/model/test_mixture.py::test_a_clamped_swiglu",),
    ),
    Mutant(
        "native swiglu: what the gate multiplies is not held",
        SOURCE + "scalars.h",
        "up = up > LIMIT ? LIMIT : up < -LIMIT ? -LIMIT : up;",
        "",
        (OF_TORCH,),
    ),
    Mutant(
        "native experts: routers have no bias",
        SOURCE + "feed_forward.h",
        "experts.router_bias ? experts.router_bias[e] : 0.0f",
        "0.0f",
        (OF_TORCH,),
    ),
    Mutant(
        "gpt-oss: gates are the first half of an expert's rows",
        "spec_sdk/model/weight_table.py",
        "return range(packing.part, sum(heights), len(heights))",
        "pass",
        (f"{OF_NAMES}::test_a_model_as_transformers_has_it_in_memory_and_writes_it",),
    ),
    Mutant(
        "gpt-oss: draft models are written with rows in turns no more",
        PACKED,
        "torch.stack(own, 1).flatten(0, 1) if interleaved",
        "torch.cat(own) if interleaved",
        (f"{OF_NAMES}::test_they_are_transformers",),
    ),
    Mutant(
        "gpt-oss: the even layers see all",
        "spec_sdk/model/architectures/gpt_oss.py",
        "[layer % 2 == 0 for",
        "[layer % 2 == 1 for",
        ("tests/checkpoints/test_gpt_oss.py::test_what_a_config_leaves_out",),
    ),
    Mutant(
        "gpt-oss in GGUF: the ends of YaRN's ramp are rounded",
        "spec_sdk/model/architectures/gpt_oss.py",
        'rope = rope | {"truncate": False}',
        "pass",
        ("tests/checkpoints/test_gguf_families.py::test_logits_equal_transformers",),
    ),
    Mutant(
        "levels: rows of a matrix forget them",
        "spec_sdk/ops/quantized.py",
        "replace(QuantizedMatrix(*(change(part) for part in self.parts())), levels=self.levels)",
        "QuantizedMatrix(*(change(part) for part in self.parts()))",
        (f"{OF_LEVELS}::test_parts",),
    ),
    Mutant(
        "levels: matrices of different ones are joined as they are",
        "spec_sdk/ops/quantized.py",
        "if len({matrix.levels for matrix in matrices}) > 1:",
        "if False:",
        (f"{OF_LEVELS}::test_beside_others",),
    ),
    Mutant(
        "levels: five bits hold all of them",
        "spec_sdk/ops/quantized.py",
        "bits = 5 if -middle <= min(self.levels) and max(self.levels) < middle else 8",
        "bits = 5",
        (f"{OF_LEVELS}::test_without_levels",),
    ),
    Mutant(
        "native levels: sums have a middle to be taken off",
        SOURCE + "quantized.h",
        "return levels ? 0 : middle_of(bits, offsets);",
        "return middle_of(bits, offsets);",
        (OF_PRODUCTS,),
    ),
    Mutant(
        "native levels: rows of a matrix are its codes",
        SOURCE + "quantized.h",
        "numbers[i] = float(records.levels[int(numbers[i])]);",
        "{}",
        ("tests/native/test_products.py::test_side_by_side_is_the_same_matrix",),
    ),
    Mutant(
        "native levels: rounded rows are multiplied with codes",
        SOURCE + "quantized_tiles.h",
        "auto tile = records.levels      ? rounded_tile<BY_LEVELS, R>",
        "auto tile = false               ? rounded_tile<BY_LEVELS, R>",
        (OF_ROUNDED,),
    ),
    Mutant(
        "native levels: tokens look codes up",
        SOURCE + "lookup.h",
        "return embedding.levels ? embedding.levels[code] : code - middle;",
        "return code - middle;",
        ("tests/native/test_whole_pass.py::test_an_embedding_by_levels",),
    ),
    Mutant(
        "MXFP4: neighbours of a byte change places",
        STORED,
        "first_RGC & 15 | second_RGC << 4, first_RGC >> 4 | second_RGC & 240",
        "first_RGC >> 4 | second_RGC & 240, first_RGC & 15 | second_RGC << 4",
        (f"{OF_MXFP4}::test_experts_are_what_transformers_expands",),
    ),
    Mutant(
        "MXFP4: parts of gates begin where gates do",
        STORED,
        "first, end = of.first + rows.start * of.step,",
        "first, end = of.first,",
        (f"{OF_MXFP4}::test_parts_of_experts",),
    ),
    Mutant(
        "MXFP4: levels are not halved",
        "spec_sdk/model/mxfp4.py",
        "exponent_X.astype(np.int32) - 128",
        "exponent_X.astype(np.int32) - 127",
        (f"{OF_MXFP4}::test_experts_are_what_transformers_expands",),
    ),
)

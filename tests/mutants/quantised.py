"""Codes at the wrong inputs, scales of other groups, bits that nobody asked for, cache rows without their scale."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MATRIX = "spec_sdk/ops/quantized.py"
BLOCKS = "spec_sdk/model/gguf_blocks.py"
CHOICE = "spec_sdk/model/chosen_weights.py"
LOADER = "spec_sdk/model/load_decoder.py"
SHARDS = "spec_sdk/model/shards.py"
CACHE = "spec_sdk/model/quantized_kv_cache.py"
PASS_CACHE = "spec_sdk/ops/quantized_pass_cache.py"
OF_MATRIX = "tests/model/test_quantized.py"
OF_CHOICE = "tests/model/test_chosen_weights.py"
OF_LOADING = "tests/distributed/test_loading.py"
OF_CACHE = "tests/model/test_quantized_kv_cache.py"
ROUNDED = "spec_sdk/ops/rounded_rows.py"
LINEAR = "spec_sdk/ops/quantized_linear.py"
OPS = "spec_sdk/ops/attention.py"
OF_ROUNDING = "tests/native/test_rounded_rows.py"

ROUNDED_CACHE = "spec_sdk/ops/rounded_pass_cache.py"
EXECUTOR = "spec_sdk/model/torch_executor.py"
CPU = "plugins/backends/spec_sdk_backends/cpu.py"
OF_ROUNDED_CACHE = "tests/model/test_rounded_kv_cache.py"

SOURCE = "plugins/backends/spec_sdk_backends/native/source/"
FIELDS = "spec_sdk/model/gguf_fields.py"
OF_SCALES = "tests/checkpoints/test_gguf_in_own_bits.py::test_scales_that_float16_cannot_hold"
OF_FUSED = f"{OF_CHOICE}::test_a_fused_matrix_of_different_parts_has_the_most_bits_of_them"
LAYING = "plugins/backends/spec_sdk_backends/native/source/laying.h"
OF_PRODUCTS = "tests/native/test_products.py"

QUANTISED = (
    Mutant(
        "laying: what fills up a panel is whatever was there",
        LAYING,
        "step[c] = c < there ? read<uint32_t>(row + (c * steps + s) * 4) : 0;",
        "if (c < there) step[c] = read<uint32_t>(row + (c * steps + s) * 4);",
        (f"{OF_PRODUCTS}::test_panels_are_the_matrix",),
    ),
    Mutant(
        "laying: what fills up a block is whatever was there",
        LAYING,
        "if (there < BESIDE) std::memset(record, 0, records.size());",
        "",
        (f"{OF_PRODUCTS}::test_outputs_that_fill_up_a_block_are_zeros",),
    ),
    Mutant(
        "laying: halves of the second half of a group are the lower ones too",
        LAYING,
        "(line < 2 ? 0 : 4)",
        "0",
        (f"{OF_PRODUCTS}::test_side_by_side_is_the_same_matrix",),
    ),
    Mutant(
        "rounded cache: it says that it lies as a pass takes it",
        ROUNDED_CACHE,
        "in_place = False",
        "in_place = True",
        (OF_ROUNDED_CACHE,),
    ),
    Mutant(
        "rounded cache: whatever is loaded has one",
        CPU,
        "            if blocks_round_rows(decoder):",
        "            if True:",
        (f"{OF_ROUNDED_CACHE}::test_auto_rounds_where_rows_are_rounded",),
    ),
    Mutant(
        "rounded cache: nothing that is loaded has one",
        CPU,
        "            if blocks_round_rows(decoder):",
        "            if False:",
        (f"{OF_ROUNDED_CACHE}::test_auto_rounds_where_rows_are_rounded",),
    ),
    Mutant(
        "rounded cache: a cut draft's is exact",
        EXECUTOR,
        "self.ops, self.bits_vary)\n        made._cache_form = self._cache_form\n",
        "self.ops, self.bits_vary)\n",
        (f"{OF_ROUNDED_CACHE}::test_auto_rounds_where_rows_are_rounded",),
    ),
    Mutant("rounded rows: codes go to 128", ROUNDED, "MOST_CODE = 127", "MOST_CODE = 128", (OF_ROUNDING,)),
    Mutant(
        "rounded rows: wide passes do not round", LINEAR, "        if self.rounds:", "        if False:", (OF_ROUNDING,)
    ),
    Mutant(
        "rounded rows: without native kernels nothing is rounded",
        OPS,
        "return QuantizedProjection(matrix, bias_O, self.rounds_rows)",
        "return QuantizedProjection(matrix, bias_O)",
        (OF_ROUNDING,),
    ),
    Mutant(
        "few bits: the two halves of a byte are exchanged",
        MATRIX,
        "codes_OGK[..., : GROUP // 2] = halves_OGK & 15\n        codes_OGK[..., GROUP // 2 :] = halves_OGK >> 4",
        "codes_OGK[..., : GROUP // 2] = halves_OGK >> 4\n        codes_OGK[..., GROUP // 2 :] = halves_OGK & 15",
        (OF_MATRIX,),
    ),
    Mutant(
        "few bits: columns of a shard begin at the first group",
        MATRIX,
        "[:, first // GROUP : end // GROUP]",
        "[:, : (end - first) // GROUP]",
        (OF_MATRIX,),
    ),
    Mutant(
        "gguf: the scale of Q4_1 is its minimum",
        BLOCKS,
        "    return halves(blocks, 2)",
        "    return halves(blocks, 0)",
        (OF_MATRIX,),
    ),
    Mutant(
        "gguf: Q4_0's codes mean 0 at 7",
        MATRIX,
        "return 0 if bits == 8 else 1 << (bits - 1)",
        "return 0 if bits == 8 else (1 << (bits - 1)) - 1",
        (OF_MATRIX,),
    ),
    Mutant(
        "laying: offsets are left out where the first of them centers codes",
        MATRIX,
        "torch.equal(self.offset_OG, self.scale_OG * -middle_of(self.bits))",
        "bool(self.offset_OG[0, 0] == self.scale_OG[0, 0] * -middle_of(self.bits))",
        (f"{OF_PRODUCTS}::test_offsets_that_center_codes_are_not_kept",),
    ),
    Mutant(
        "products: codes with offsets are centered too",
        SOURCE + "quantized.h",
        "bits == 8 || offsets ? 0 :",
        "bits == 8 ? 0 :",
        (f"{OF_PRODUCTS}::test_quantized",),
    ),
    Mutant(
        "weights: the output head has 4 bits",
        CHOICE,
        'choice == "int8" or role in LOOKED_UP',
        'choice == "int8" or role == LOOKED_UP[0]',
        (f"{OF_CHOICE}::test_the_bits_of_a_matrix",),
    ),
    Mutant(
        "weights: auto keeps bits that are slow",
        CHOICE,
        "stored is not None and fast(stored)",
        "stored is not None",
        (f"{OF_CHOICE}::test_the_bits_of_a_matrix",),
    ),
    Mutant(
        "weights: parts of 6 and of 8 bits are joined",
        MATRIX,
        " or bits == 8 and any(m.bits == 6 for m in matrices):",
        ":",
        (OF_FUSED,),
    ),
    Mutant(
        "weights: parts in fewer bits than others have the scales of other groups",
        MATRIX,
        "part.repeat_interleave(each, 1)",
        "part.repeat(1, each)",
        (OF_FUSED,),
    ),
    Mutant(
        "weights: what is added to some parts is added to all of them",
        MATRIX,
        "torch.zeros_like(self.scale_OG) if added is None",
        "torch.ones_like(self.scale_OG) if added is None",
        (OF_FUSED,),
    ),
    Mutant(
        "weights: centered codes beside others keep their middle",
        MATRIX,
        "added = self.scale_OG * -middle_of(self.bits)",
        "added = torch.zeros_like(self.scale_OG)",
        (OF_FUSED,),
    ),
    Mutant(
        "six bits: the upper bits are those of the next code",
        MATRIX,
        "upper_OGC >> 2 * field & 3 for field in range(4)",
        "upper_OGC >> 2 * field & 3 for field in (1, 2, 3, 0)",
        (OF_MATRIX,),
    ),
    Mutant(
        "six bits: both halves of a group have the first one's scale",
        SOURCE + "rounded_avx512.h",
        "_mm256_loadu_si256(factors + p)",
        "_mm256_loadu_si256(factors)",
        (f"{OF_ROUNDING}::test_a_product_is_that_of_the_rounded_rows",),
    ),
    Mutant(
        "six bits: what is above the codes is taken off for one half",
        SOURCE + "rounded_avx512.h",
        "wholes[at * PARTS + p * rows.count + r]",
        "wholes[at * PARTS + r]",
        (f"{OF_ROUNDING}::test_a_product_is_that_of_the_rounded_rows",),
    ),
    Mutant(
        "bands: rounded rows begin anew with every stretch",
        SOURCE + "rounded_avx512.h",
        "stretch.start ? load(y + r * y_stride) : zeros()",
        "zeros()",
        (f"{OF_ROUNDING}::test_a_product_is_that_of_the_rounded_rows",),
    ),
    Mutant(
        "bands: rows begin anew with every stretch",
        SOURCE + "quantized_avx512.h",
        "stretch.start ? load(y + r * y_stride) : zeros()",
        "zeros()",
        (f"{OF_PRODUCTS}::test_quantized",),
    ),
    Mutant(
        "bands: the last one is as wide as the others",
        SOURCE + "quantized.h",
        "std::min<int64_t>(BAND, blocks - of_band)",
        "BAND",
        (f"{OF_PRODUCTS}::test_side_by_side_is_the_same_matrix",),
    ),
    Mutant(
        "six bits: upper bits of a half's second line are the first's",
        SOURCE + "quantized_avx512.h",
        "4 - upper_place(BITS, line, v)",
        "4 - upper_place(BITS, 0, v)",
        (f"{OF_PRODUCTS}::test_quantized",),
    ),
    Mutant(
        "upper bits: those of 5 are looked for where 6 bits have them",
        SOURCE + "quantized.h",
        "BITS == 6 ? upper[input % 8] >> input / 8 * 2 & 3 : upper[input / 8] >> input % 8 & 1;",
        "BITS == 6 ? upper[input % 8] >> input / 8 * 2 & 3 : upper[input % 4] >> input / 4 & 1;",
        (f"{OF_PRODUCTS}::test_side_by_side_is_the_same_matrix",),
    ),
    Mutant(
        "upper bits: a row of an embedding has none",
        SOURCE + "lookup.h",
        "return has_upper(BITS) ? code +",
        "return false ? code +",
        ("tests/native/test_growing.py::test_an_embedding_is_read_in_rows_too",),
    ),
    Mutant(
        "five bits: the upper ones are taken from the lowest",
        "plugins/backends/spec_sdk_backends/fixed_tile_kernel.py",
        "code_OI += (upper_OI & 1) * 16",
        "code_OI += (byte_OI & 1) * 16",
        ("tests/kernels/test_fixed_tiles.py::test_products",),
    ),
    Mutant(
        "laying: upper bits of the second half of a group are the first's",
        LAYING,
        "upper[upper_line(BITS, line) - LINES] |=",
        "upper[0] |=",
        (f"{OF_PRODUCTS}::test_side_by_side_is_the_same_matrix",),
    ),
    Mutant(
        "gguf: the mins of Q4_K's second half have the scales' upper bits",
        FIELDS,
        "rest >> 4 | low >> 6 << 4",
        "rest >> 4 | scale >> 6 << 4",
        (OF_MATRIX,),
    ),
    Mutant(
        "gguf: Q3_K's codes are 4 less where the mask has a bit",
        BLOCKS,
        "+ 4 * fields(blocks[..., :32], 1, 32) - 4 +",
        "- 4 * fields(blocks[..., :32], 1, 32) +",
        (OF_MATRIX,),
    ),
    Mutant(
        "gguf: products that float16 cannot hold are kept",
        "spec_sdk/model/gguf_tensors.py",
        "LAYOUTS[kind].stored or all(",
        "True or all(",
        (OF_SCALES,),
    ),
    Mutant(
        "gguf: scales that float16 cannot hold are kept where there are no offsets",
        "spec_sdk/model/gguf_tensors.py",
        "for part in (scales_of(stored, kind), offsets_of(stored, kind))",
        "for part in (offsets_of(stored, kind),)",
        (OF_SCALES,),
    ),
    Mutant(
        "weights: every rank has the head's first rows",
        SHARDS,
        "VOCABULARY: (first, end),",
        "VOCABULARY: (0, end - first),",
        (f"{OF_CHOICE}::test_shards_have_the_weights_of_the_whole",),
    ),
    Mutant(
        "weights: a rank reads all columns and keeps its own",
        "spec_sdk/model/packed_weights.py",
        "return rows, range(first, end)",
        "return rows, range(end)",
        (OF_LOADING,),
    ),
    Mutant(
        "weights: a part of an expert is the first expert's",
        "spec_sdk/model/packed_weights.py",
        "range(expert * height + rows.start, expert * height + rows.stop)",
        "rows",
        (OF_LOADING,),
    ),
    Mutant(
        "cache in 8 bits: scales stay where they were",
        CACHE,
        'storages = (*KVCache.storages, "k_scale_LSGC1", "v_scale_LSGC1")',
        "storages = KVCache.storages",
        (OF_CACHE,),
    ),
    Mutant(
        "cache in 8 bits: values have the keys' scales",
        PASS_CACHE,
        "self._scales.write(first, k_scales, v_scales)",
        "self._scales.write(first, k_scales, k_scales)",
        (f"{OF_CACHE}::test_what_a_pass_writes_it_reads_rounded",),
    ),
)

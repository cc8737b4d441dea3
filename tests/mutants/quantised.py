"""Codes at the wrong inputs, scales of other groups, bits that nobody asked for, cache rows without their scale."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MATRIX = "spec_sdk/ops/quantized.py"
BLOCKS = "spec_sdk/model/gguf_blocks.py"
CHOICE = "spec_sdk/model/chosen_weights.py"
LOADER = "spec_sdk/model/load_decoder.py"
SHARDS = "spec_sdk/model/tensor_parallel.py"
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
        "            if rounds_rows(decoder):",
        "            if True:",
        (f"{OF_ROUNDED_CACHE}::test_auto_rounds_where_rows_are_rounded",),
    ),
    Mutant(
        "rounded cache: nothing that is loaded has one",
        CPU,
        "            if rounds_rows(decoder):",
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
        "return _halves(_blocks(stored, layout), 2)",
        "return _halves(_blocks(stored, layout), 0)",
        (OF_MATRIX,),
    ),
    Mutant(
        "gguf: Q4_0's codes mean 0 at 7",
        BLOCKS,
        "offset=True, zero=8)",
        "offset=True, zero=7)",
        (OF_MATRIX,),
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
        "weights: parts of different bits are joined",
        LOADER,
        "if part is None or not part.like((parts or [part])[0]):",
        "if part is None:",
        (f"{OF_CHOICE}::test_a_fused_matrix_of_different_parts_is_dense",),
    ),
    Mutant(
        "weights: every rank has the head's first rows",
        SHARDS,
        "self._source.quantized_part(theirs, 0, first, end)",
        "self._source.quantized_part(theirs, 0, 0, end - first)",
        (f"{OF_CHOICE}::test_shards_have_the_weights_of_the_whole",),
    ),
    Mutant(
        "weights: a rank reads all columns and keeps its own",
        "spec_sdk/model/packed_weights.py",
        "return range(before, before + rows), range(first, end)",
        "return range(before, before + rows), range(end)",
        (OF_LOADING,),
    ),
    Mutant(
        "weights: a part of an expert is the first expert's",
        "spec_sdk/model/packed_weights.py",
        "row.packing.parts * (expert if row.per_expert else 0)",
        "row.packing.parts * 0",
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

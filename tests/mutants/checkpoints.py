"""Weights of a checkpoint in few bits that are others, parts of files that are left out, answers that do not end."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

INTEGERS = "spec_sdk/model/integer_weights.py"
LAYOUTS = "spec_sdk/model/integer_layouts.py"
FLOAT8 = "spec_sdk/model/float8_weights.py"
GGUF = "spec_sdk/model/gguf_tensors.py"
READER = "spec_sdk/model/gguf_reader.py"
CONVERT = "spec_sdk/model/gguf_convert.py"
TOKENIZER = "spec_sdk/model/gguf_tokenizer.py"
HUB = "spec_sdk/model/source_hub_gguf.py"
OF_INTEGERS = "tests/checkpoints/test_integer_weights.py::test_weights_are_what_is_stored"
OF_ORDER = "tests/checkpoints/test_integer_weights.py::test_inputs_out_of_order_are_expanded"
OF_FLOAT8 = "tests/checkpoints/test_float8.py::test_weights_are_what_is_stored_times_its_scales"
OF_GGUF = "tests/checkpoints/test_gguf_conversion.py"
OF_TOKENIZER = "tests/checkpoints/test_gguf_tokenizer.py"
OF_PARTS = "tests/checkpoints/test_gguf_parts.py"

CHECKPOINTS = (
    Mutant("gptq: zero points as they are stored", LAYOUTS, "else 1)", "else 0)", (OF_INTEGERS,)),
    Mutant(
        "awq: codes in the order of gptq",
        LAYOUTS,
        "super().__init__(4, AWQ_ORDER)",
        "super().__init__(4)",
        (OF_INTEGERS,),
    ),
    Mutant(
        "compressed-tensors: zero points are those of the first outputs",
        LAYOUTS,
        "zero_PGN.transpose(1, 2).flatten(0, 1)[outputs.start : outputs.stop]",
        "zero_PGN.transpose(1, 2).flatten(0, 1)[: len(outputs)]",
        (OF_INTEGERS,),
    ),
    Mutant(
        "8 bits: codes without a sign are taken for ones with it",
        INTEGERS,
        "return (code_RI ^ SIGN).view(torch.int8)",
        "return code_RI.view(torch.int8)",
        (OF_INTEGERS,),
    ),
    Mutant(
        "4 bits: the first byte's codes are swapped",
        LAYOUTS,
        "(byte_XPB & 15, byte_XPB >> 4)",
        "(byte_XPB >> 4, byte_XPB & 15)",
        (OF_INTEGERS,),
    ),
    Mutant(
        "4 bits: inputs out of order are taken as they come",
        LAYOUTS,
        "        if name not in files.shapes:\n            return None\n        group_I",
        "        return None\n        group_I",
        (OF_ORDER,),
    ),
    Mutant(
        "8 bits: an expanded part has the scales of the first rows",
        INTEGERS,
        "scale_RG = layout.zero_RG(files, stem, rows), layout.scale_RG(files, stem, rows)",
        "scale_RG = layout.zero_RG(files, stem, rows), layout.scale_RG(files, stem, range(len(rows)))",
        (OF_ORDER,),
    ),
    Mutant(
        "8 bits: scales that float16 does not hold are rounded to it",
        INTEGERS,
        "close_OG.all() and size_OG.max()",
        "size_OG.max()",
        ("tests/checkpoints/test_integer_weights.py::test_scales_that_float16_does_not_hold_are_expanded",),
    ),
    Mutant(
        "compressed-tensors: a zero point that is missing is the middle",
        LAYOUTS,
        "self.asked_for = not symmetric",
        "self.asked_for = False",
        ("tests/checkpoints/test_integer_weights.py::test_what_does_not_fit",),
    ),
    Mutant(
        "fp8: the scale of the first row's block for all rows",
        FLOAT8,
        "scale_BB[row_R[:, None], column_C]",
        "scale_BB[row_R[:1, None], column_C]",
        (OF_FLOAT8,),
    ),
    Mutant(
        "fp8: a part has the scales of the first rows",
        FLOAT8,
        "torch.arange(rows.start, rows.stop) // height",
        "torch.arange(len(rows)) // height",
        (OF_FLOAT8,),
    ),
    Mutant(
        "gguf: the scale of a tensor is left out",
        GGUF,
        "floats = floats * scale",
        "pass",
        (f"{OF_GGUF}::test_scales_of_whole_tensors_multiply_them",),
    ),
    Mutant(
        "gguf: every expert has the scale of the first",
        GGUF,
        "scales[place.expert if place.row.per_expert else 0]",
        "scales[0]",
        (f"{OF_GGUF}::test_every_expert_has_a_scale_of_its_own",),
    ),
    Mutant(
        "gguf: tensors of another model are left out",
        CONVERT,
        "    check_all_read(gguf, table)\n",
        "",
        (f"{OF_GGUF}::test_tensors_that_would_be_left_out_are_refused",),
    ),
    Mutant(
        "gguf: a tensor is looked for in the first part",
        READER,
        "self._parts[tensor.part]",
        "self._parts[0]",
        (f"{OF_PARTS}::test_all_of_it_is_read",),
    ),
    Mutant(
        "gguf: an answer ends where the file says alone",
        TOKENIZER,
        "[*ids, *named]",
        "ids",
        (f"{OF_TOKENIZER}::test_tokens_that_end_a_turn_stop_by_their_names",),
    ),
    Mutant(
        "hub: a file whose name ends alike is taken from the cache",
        HUB,
        "if _is_called(parts[0], quantization)]",
        "if parts]",
        ("tests/checkpoints/test_hub_gguf.py::test_what_ends_alike_in_the_cache_is_another_file",),
    ),
)

"""Layers with heads of different shapes, of which some attend to others' K and V and some have inputs (Gemma 4)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BLOCKS = "plugins/backends/spec_sdk_backends/native/source/varied_blocks.h"
NATIVE = "plugins/backends/spec_sdk_backends/native/varied_decoder.py"
CONFIG = "spec_sdk/model/config.py"
ARCHITECTURE = "spec_sdk/model/architectures/gemma4.py"
OF_BLOCKS = "tests/native/test_varied_decoder.py"
OF_CONFIG = "tests/checkpoints/test_gemma4.py"
OF_FILES = "tests/checkpoints/test_gguf_gemma4.py"

VARIED = (
    Mutant(
        "varied blocks: V of one matrix with K is another head's",
        BLOCKS,
        "normalise<T>(of.made == 1 ? x : x + G * D, of.value_norm",
        "normalise<T>(of.made == 1 ? x - D : x + G * D, of.value_norm",
        (f"{OF_BLOCKS}::test_logits_are_those_of_float64",),
    ),
    Mutant(
        "varied blocks: all rows have the first one's inputs",
        BLOCKS,
        "inputs[r * more.stride + first + c]",
        "inputs[first + c]",
        (f"{OF_BLOCKS}::test_logits_are_those_of_float64",),
    ),
    Mutant(
        "varied blocks: the mixture reads what the MLP gave",
        BLOCKS,
        "apart.fed = work.h, apart.h = sum;",
        "apart.h = sum;",
        (f"{OF_BLOCKS}::test_logits_are_those_of_float64",),
    ),
    Mutant(
        "layers' inputs: wide passes round them in other places",
        NATIVE,
        "if self.in_parts and x.dim() > 3:",
        "if False:",
        (f"{OF_BLOCKS}::test_a_row_has_the_same_bits_in_every_pass",),
    ),
    Mutant(
        "layers' inputs: parts have those of the pass's first rows",
        "spec_sdk/model/varied_decoder.py",
        "layer_input_BNLP=self.layer_input_BNLP[requests, rows]",
        "layer_input_BNLP=self.layer_input_BNLP[requests, : rows.stop - rows.start]",
        (f"{OF_BLOCKS}::test_a_row_has_the_same_bits_in_every_pass",),
    ),
    Mutant(
        "shared K and V: a layer attends to the first one of its kind",
        ARCHITECTURE,
        "sources.append(alike[-1])",
        "sources.append(alike[0])",
        (f"{OF_CONFIG}::test_layers_attend_to_the_last_of_their_kind",),
    ),
    Mutant(
        "shared K and V: of some layers, a layer attends to whatever is before it",
        CONFIG,
        "alike = [i for i in own if self.is_global(layers[i]) == kind]",
        "alike = own",
        (f"{OF_CONFIG}::test_layers_whose_source_is_left_out",),
    ),
    Mutant(
        "shared K and V: drafting leaves out layers that others attend to",
        "plugins/drafters/spec_sdk_drafters/skipped_layers.py",
        "self.kept = sorted({*self.kept, *(kv_sources[layer] for layer in self.kept if kv_sources)})",
        "self.kept = sorted(self.kept)",
        ("tests/varied/test_pipelines.py::test_layers_whose_k_and_v_others_attend_to_are_kept",),
    ),
    Mutant(
        "gguf: experts of a Gemma 4 are scaled twice",
        "spec_sdk/model/gguf_tensors.py",
        "if tensor is None or tensor.name in self._table.gguf_shapes:",
        "if tensor is None:",
        (f"{OF_FILES}::test_logits_and_tensors_are_the_models",),
    ),
    Mutant(
        "gguf: a Gemma 4's text may begin without BOS",
        "spec_sdk/model/gguf_tokenizer.py",
        'begins = kind == "gemma4" or meta.flag(',
        "begins = meta.flag(",
        ("tests/checkpoints/test_gguf_tokenizer.py::test_a_gemma_4_s_tokenizer",),
    ),
)

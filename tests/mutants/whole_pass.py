"""Passes in one native call that are not those of their stages."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SOURCE = "plugins/backends/spec_sdk_backends/native/source/"
WHOLE = ("tests/native/test_whole_pass.py",)

WHOLE_PASS: tuple[Mutant, ...] = (
    Mutant(
        "whole pass: logits are those of the first rows",
        SOURCE + "forward.h",
        "(scored.row ? scored.row[r] : r)",
        "r",
        WHOLE,
    ),
    Mutant(
        "whole pass: tokens that there are not are looked up",
        SOURCE + "forward.h",
        "t < 0 || t >= model.tokens",
        "t < 0 || t > model.tokens",
        WHOLE,
    ),
    Mutant(
        "whole pass: negative tokens are looked up",
        SOURCE + "forward.h",
        "t < 0 || t >= model.tokens",
        "t >= model.tokens",
        WHOLE,
    ),
    Mutant(
        "whole pass: a tapped state is what leaves the block behind its own",
        "plugins/backends/spec_sdk_backends/native/whole_pass.py",
        "places[layer - 1] = state_BNM",
        "places[layer] = state_BNM",
        WHOLE,
    ),
    Mutant(
        "whole pass: every runner is taken for a plain one",
        "spec_sdk/model/torch_executor.py",
        "return groups is not None and [*map(tuple, groups)] == [(layer,) for layer in range(layers)]",
        "return True",
        WHOLE,
    ),
    Mutant(
        "whole pass: runners are told apart by how many groups they have",
        "spec_sdk/model/torch_executor.py",
        "[*map(tuple, groups)] == [(layer,) for layer in range(layers)]",
        "len(groups) == layers",
        WHOLE,
    ),
    Mutant(
        "whole pass: an embedding that was laid out anew is read where it lay",
        "plugins/backends/spec_sdk_backends/native/whole_pass.py",
        "return decoder.embedding.held, decoder.output_head,",
        "return None, decoder.output_head,",
        WHOLE,
    ),
    Mutant(
        "whole pass: another output head is not looked at",
        "plugins/backends/spec_sdk_backends/native/whole_pass.py",
        "return decoder.embedding.held, decoder.output_head,",
        "return decoder.embedding.held, None,",
        WHOLE,
    ),
    Mutant(
        "whole pass: another final norm is not looked at",
        "plugins/backends/spec_sdk_backends/native/whole_pass.py",
        "decoder.output_head, decoder.final_norm_M\n",
        "decoder.output_head, None\n",
        WHOLE,
    ),
    Mutant(
        "whole pass: a request without rows gets those of another",
        "plugins/backends/spec_sdk_backends/native/whole_pass.py",
        "if min(live) < 1:",
        "if False:",
        WHOLE,
    ),
    Mutant(
        "whole pass: states that no block leaves are asked for",
        "plugins/backends/spec_sdk_backends/native/whole_pass.py",
        "0 < layer <= decoder.layers for",
        "layer <= decoder.layers for",
        WHOLE,
    ),
    Mutant(
        "whole pass: every cache is read as one of floating point",
        "plugins/backends/spec_sdk_backends/native/whole_pass.py",
        " or type(cache) not in (KVCache, RoundedKVCache)",
        "",
        WHOLE,
    ),
    Mutant(
        "whole pass: a norm in a dtype that the kernels do not read",
        "plugins/backends/spec_sdk_backends/native/structures.py",
        "return gain is None or gain.dtype in (dtype, torch.float32)",
        "return True",
        WHOLE,
    ),
    Mutant(
        "native products: rows behind the last are zeros",
        "plugins/backends/spec_sdk_backends/native/row_numbers.py",
        "least < 0 or most >= rows:",
        "least < 0:",
        ("tests/native/test_products.py::test_rows_that_there_are_not",),
    ),
)

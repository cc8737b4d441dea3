"""Native recurrent layers that go on from rows or states that they must not."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SOURCE = "plugins/backends/spec_sdk_backends/native/source/"
MIXERS = "tests/native/test_recurrent.py"
DECODERS = "tests/native/test_recurrent_decoder.py"

NATIVE_RECURRENT: tuple[Mutant, ...] = (
    Mutant(
        "native recurrent layers: a convolution sees the rows right before it",
        SOURCE + "paths.h",
        "return rows.prefix + (i < 0 ? i : slot(n)[i]);",
        "return rows.first + n - back;",
        (MIXERS,),
    ),
    Mutant(
        "native delta nets: earlier rows do not fade",
        SOURCE + "gated_delta.h",
        "float left = exponential(float(decay - path[j]));",
        "float left = 1.0f;",
        (MIXERS,),
    ),
    Mutant(
        "native delta nets: what a row adds is not corrected by the state's guess",
        SOURCE + "gated_delta.h",
        "to[i] = gain * (v[i] - left * of_key[i] - sum[i]);",
        "to[i] = gain * (v[i] - sum[i]);",
        (MIXERS,),
    ),
    Mutant(
        "native delta nets: tiled value heads are taken for neighbours",
        SOURCE + "gated_delta.h",
        "return tiled ? i * key_heads + g : g * shared() + i;",
        "return g * shared() + i;",
        (MIXERS,),
    ),
    Mutant(
        "native states: rows are folded in as they were when they came",
        SOURCE + "folding.h",
        "float left = exponential(float(last - path[i]));",
        "float left = 1.0f;",
        (MIXERS,),
    ),
    Mutant(
        "native states: the rows of one head do not move up",
        SOURCE + "folding.h",
        "move_up(kept.u + h * kept.room * V, count, reach, V);",
        "if (h) move_up(kept.u + h * kept.room * V, count, reach, V);",
        (MIXERS,),
    ),
    Mutant(
        "native state spaces: a row's own x is not skipped to its output",
        SOURCE + "state_space.h",
        "skip = _space.skip[h];",
        "skip = 0.0f;",
        (MIXERS,),
    ),
    Mutant(
        "native state spaces: the scores of another group",
        SOURCE + "state_space.h",
        "if (g != last) {",
        "if (last < 0) {",
        (MIXERS,),
    ),
    Mutant(
        "native state spaces: outputs are normalised where there is no norm",
        SOURCE + "state_space.h",
        "if (_space.normed) factor",
        "factor",
        (DECODERS,),
    ),
    Mutant(
        "native state spaces: gates are not scaled",
        SOURCE + "state_space.h",
        "silu(to_float(row[h * V + i]) * float(_space.gate_scale))",
        "silu(to_float(row[h * V + i]))",
        (DECODERS,),
    ),
    Mutant(
        "native blocks: a layer with a state has no attention beside it",
        SOURCE + "mixed_blocks.h",
        "if (of[i].attends()) add_attention(block, work, own);",
        "if (of[i].attends() && !of[i].carries()) add_attention(block, work, own);",
        (DECODERS,),
    ),
    Mutant(
        "native blocks: attention reads what the state beside it has added",
        SOURCE + "mixed_blocks.h",
        "carry_states(of[i], states, paths, work, given, gated);",
        "carry_states(of[i], states, paths, work, given, gated), team.meet(), "
        "add_output(of[i].leaving, block.attention_output_norm, given, work, own);",
        (DECODERS,),
    ),
    Mutant(
        "native MLPs without gates: negative numbers are squared, too",
        SOURCE + "feed_forward.h",
        "float positive = std::max(y[r * stride + c], 0.0f);",
        "float positive = y[r * stride + c];",
        (DECODERS,),
    ),
    Mutant(
        "native blocks: attention goes without its gates",
        SOURCE + "mixed_blocks.h",
        "if (of[i].gated) team.meet(), apply_gates(block, work);",
        "if (of[i].gated) team.meet();",
        (DECODERS,),
    ),
    Mutant(
        "native blocks: all layers carry the first one's states",
        SOURCE + "mixed_blocks.h",
        "states += pass.requests;",
        "",
        (DECODERS,),
    ),
)

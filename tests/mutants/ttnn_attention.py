"""Speculation on attention on TT-NN: keys read twice or not at all, norms and verdicts of others, a wrong device."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PACKAGE = "plugins/backends/spec_sdk_backends/ttnn/"
KERNELS = PACKAGE + "kernels/"
OF_DECODE = "tests/ttnn/speculative_decode_cases.py"
PARITY = f"{OF_DECODE}::test_prediction_attention_and_norms"
OF_GATING = "tests/ttnn/priority_gating_cases.py"
MESH = f"{OF_GATING}::test_a_mesh_computes_what_one_device_does"

TTNN_ATTENTION = (
    Mutant(
        "TT-NN: a prediction lacks the first of its last keys",
        PACKAGE + "speculative_decode.py",
        "mask_RS[:, last:prefix] = 0",
        "mask_RS[:, last + 1 : prefix] = 0",
        (PARITY,),
    ),
    Mutant(
        "TT-NN: the first keys that share a tile with others count twice",
        PACKAGE + "speculative_decode.py",
        "edges[:, : ends.first - between[0] * TILE] = HIDDEN",
        "edges[:, : ends.first - between[0] * TILE] = 0.0",
        (PARITY,),
    ),
    Mutant(
        "TT-NN: the last share's last tile is left out",
        PACKAGE + "speculative_decode.py",
        "between = range(ends.first // TILE, -(-last // TILE))",
        "between = range(ends.first // TILE, max(ends.first // TILE + 1, last // TILE))",
        (PARITY,),
    ),
    Mutant(
        "TT-NN: what other workers send is merged as if their scores were as large",
        KERNELS + "online_softmax.py",
        "l_next.store(l_block * own + l_part * other)",
        "l_next.store(l_block * own + l_part)",
        (PARITY,),
    ),
    Mutant(
        "TT-NN: the norm is that of the difference from the keys between",
        KERNELS + "rest_attention.py",
        "difference = (predicted - between) * shares_wide",
        "difference = predicted - between",
        (PARITY,),
    ),
    Mutant(
        "TT-NN: rows of padding can miss",
        KERNELS + "verification.py",
        "live_block - live_block * hit",
        "ttl.block.fill(1.0, shape=(rows, 1)) - hit",
        (f"{OF_DECODE}::test_a_pass_hits_only_if_every_live_row_does",),
    ),
    Mutant(
        "TT-NN: the norms of the first head only",
        KERNELS + "verification.py",
        "difference_sum.store(difference_before + difference_block)",
        "difference_sum.store(difference_before)",
        (PARITY,),
    ),
    Mutant(
        "TT-NN: a verdict compares norms with the threshold itself",
        PACKAGE + "speculative_decode.py",
        "min(threshold * threshold, -HIDDEN)",
        "min(threshold, -HIDDEN)",
        (f"{OF_DECODE}::test_a_pass_hits_only_if_every_live_row_does",),
    ),
    Mutant(
        "TT-NN: a device gets its own state for the sender's",
        PACKAGE + "mesh.py",
        "(device * DEVICES + self.sender) * tiles",
        "(device * DEVICES + device) * tiles",
        (MESH,),
    ),
    Mutant(
        "TT-NN: the receiver of a prediction does not come awake",
        PACKAGE + "priority_gating.py",
        "mesh.set_priority(1 - sender, AHEAD)",
        "mesh.set_priority(1 - sender, SKIP)",
        (MESH,),
    ),
    Mutant(
        "TT-NN: after a hit the sender goes on all the same",
        KERNELS + "priority.py",
        "ttl.math.gt(misses_block, none_block) * right_block",
        "right_block + misses_block * none_block",
        (MESH,),
    ),
    Mutant(
        "TT-NN: the receiver waits for the verdict",
        PACKAGE + "priority_gating.py",
        '"receiver", "post_attention", self._post(layer, h, predicted), h)',
        '"sender", "post_attention", self._post(layer, h, predicted), h)',
        (MESH,),
    ),
    Mutant(
        "TT-NN: the second device does not see prompts",
        PACKAGE + "mesh_executor.py",
        "run(TtnnPass(self.model, work.inputs, cache, ()), h_RM)",
        "TtnnPass(self.model, work.inputs, cache, ())",
        (MESH,),
    ),
)

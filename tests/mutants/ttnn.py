"""Passes on TT-NN: rows, masks and rotations of other requests or places, caches that keep the wrong rows."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PACKAGE = "plugins/backends/spec_sdk_backends/ttnn/"
OF_THE_DEVICE = "tests/ttnn/test_device_adapter.py"
SUITE = f"{OF_THE_DEVICE}::test_it_passes_the_conformance_suite"
WINDOWS = f"{OF_THE_DEVICE}::test_windows_and_scales_are_those_of_the_layer"

TTNN = (
    Mutant(
        "TT-NN: a tree's nodes see one another",
        PACKAGE + "forward.py",
        "= bias_nS.clamp_min(HIDDEN)",
        "= 0.0",
        (SUITE,),
    ),
    Mutant(
        "TT-NN: a window hides nothing",
        PACKAGE + "forward.py",
        "replace(seen, window=window,",
        "replace(seen, window=None,",
        (WINDOWS,),
    ),
    Mutant(
        "TT-NN: scores are scaled by the head's size whatever the layer says",
        PACKAGE + "forward.py",
        "attention.scale_for(config.head_dim)",
        "config.head_dim**-0.5",
        (WINDOWS,),
    ),
    Mutant(
        "TT-NN: every request has the positions of the first one",
        PACKAGE + "forward.py",
        "self.inputs.position_BN[band.part.index, : band.part.live]",
        "self.inputs.position_BN[0, : band.part.live]",
        (SUITE,),
    ),
    Mutant(
        "TT-NN: a head's halves are filled up in front",
        PACKAGE + "model.py",
        "spread[:, :half] = ",
        "spread[:, full - half :] = ",
        (SUITE,),
    ),
    Mutant(
        "TT-NN: a commit moves rows that are in place, and others too far",
        PACKAGE + "cache.py",
        "for row in path[in_place:]]",
        "for row in path]",
        (SUITE,),
    ),
    Mutant(
        "TT-NN: a larger cache is empty",
        PACKAGE + "cache.py",
        "        self._operations.write_cache(larger, self._operations.read_cache(cache))\n",
        "",
        (SUITE,),
    ),
    Mutant(
        "TT-NN: the first row's logits for the last one's",
        PACKAGE + "executor.py",
        "last_BR[b, band.rows.stop - 1] = 1.0",
        "last_BR[b, band.rows.start] = 1.0",
        (SUITE,),
    ),
    Mutant(
        "TT-NN: the layers that were to be left out are run",
        PACKAGE + "runners.py",
        "if layer in kept:",
        "if layer not in kept:",
        (SUITE,),
    ),
    Mutant(
        "TT-NN: a group's layers attend one after the other",
        PACKAGE + "runners.py",
        'return grouped(declaration["groups"])',
        "return grouped([[layer] for layer in range(layers)])",
        (SUITE,),
    ),
)

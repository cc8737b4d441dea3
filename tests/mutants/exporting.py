"""Exports that other programs read, and read wrongly without a word."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROOM = "spec_sdk/export"
ROUND = "tests/export/test_round_trips.py"
DEPTH = "tests/export/test_recommended_depth.py"
SERVING = "tests/export/test_serving_plugin.py"
PLUGIN = "docs/serving_plugin/spec_sdk_serving"

EXPORTING = (
    Mutant(
        "export: SGLang's list of layers is vLLM's",
        f"{ROOM}/safeailab_format.py",
        "[tap - 1 for tap in head.taps]",
        "list(head.taps)",
        (f"{ROUND}::test_the_lists_of_layers_that_both_programs_read",),
    ),
    Mutant(
        "export: vLLM is told that blocks see no later rows",
        f"{ROOM}/speculators_format.py",
        '"sliding_window_non_causal": not any(sliding),',
        '"sliding_window_non_causal": False,',
        (f"{ROUND}::test_the_lists_of_layers_that_both_programs_read",),
    ),
    Mutant(
        "export: output rows stay in the order of the file",
        f"{ROOM}/exported_head.py",
        "tensors[name] = tensors[name][order_W].contiguous()",
        "tensors[name] = tensors[name].contiguous()",
        (ROUND,),
    ),
    Mutant(
        "export: d2t holds tokens",
        f"{ROOM}/exported_head.py",
        'tensors["d2t"] = token_W - torch.arange(len(token_W))',
        'tensors["d2t"] = token_W',
        (ROUND,),
    ),
    Mutant(
        "export: the rotary base is left to the reader",
        f"{ROOM}/layer_settings.py",
        "return {**written, **kept, **_rotary(config, values)}",
        "return {**written, **kept}",
        (ROUND,),
    ),
    Mutant(
        "export: a DSpark head is one that fills in",
        f"{ROOM}/zlab_format.py",
        '            "sample_from_anchor": spec.form.from_anchor,\n            "dspark_bonus_anchor"',
        '            "sample_from_anchor": False,\n            "dspark_bonus_anchor"',
        (ROUND,),
    ),
    Mutant(
        "export: a drafted token is for free",
        f"{ROOM}/recommended_depth.py",
        "mat / (1 + cost * (1 if at_once else depth))",
        "mat / (1 + cost)",
        (f"{DEPTH}::test_the_best_depth_is_the_fastest_of_all",),
    ),
    Mutant(
        "serving plug-in: a node sees itself and the root alone",
        f"{PLUGIN}/sglang_plugin.py",
        "mask_NN[node] |= mask_NN[parent_N[node]]",
        "mask_NN[node] |= mask_NN[0]",
        (SERVING,),
    ),
    Mutant(
        "serving plug-in: with overlap the last step's tokens are missing",
        f"{PLUGIN}/sglang_worker.py",
        "recent = accepted[first : first + length]",
        "recent = accepted[first : first + length - 1]",
        (SERVING,),
    ),
)

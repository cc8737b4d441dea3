"""Trees that grow in one launch, and heads in fused kernels, that are wrong where nothing would say so."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LEVELS, GRAPHS = "spec_sdk/model/path_levels.py", "spec_sdk/model/graph_executor.py"
INTERVALS_OF = "spec_sdk/model/tree_intervals.py"
HEAD = "plugins/backends/spec_sdk_backends/fused_head.py"
OF_LEVELS, OF_HEAD = "tests/model/test_path_levels.py", "tests/kernels/test_fused_head.py"
INTERVALS = f"{OF_LEVELS}::test_intervals_are_those_of_the_host"
OF_A_MODEL = f"{OF_LEVELS}::test_of_a_model"
A_HEAD = f"{OF_LEVELS}::test_of_a_head[eagle3]"
DRAFTED = f"{OF_LEVELS}::test_a_drafter_drafts_the_same"
FUSED = f"{OF_HEAD}::test_passes_over_one_row_over_few_and_over_more[eagle3]"

PATH_LEVELS = (
    Mutant(
        "path levels: later siblings come before",
        INTERVALS_OF,
        ".tril(-1)",
        ".triu(1)",
        (INTERVALS,),
    ),
    Mutant(
        "path levels: a child lies under its rank",
        LEVELS,
        "first + best_BK // self.width",
        "first + best_BK % self.width",
        (f"{OF_A_MODEL}[plain]",),
    ),
    Mutant(
        "path levels: nodes in the order of their probability",
        LEVELS,
        ".indices[:, :count].sort(1).values",
        ".indices[:, :count]",
        (f"{OF_A_MODEL}[plain]",),
    ),
    Mutant(
        "path levels: a token's own probability alone",
        LEVELS,
        "joint_BK[:, :, None] + logprob_BKW.double()",
        "0 * joint_BK[:, :, None] + logprob_BKW.double()",
        (f"{OF_A_MODEL}[plain]",),
    ),
    Mutant(
        "path levels: the first level takes all the room",
        LEVELS,
        "(nodes - size) // (depth - level)",
        "nodes - size",
        (f"{OF_LEVELS}::test_every_level_gets_its_share",),
    ),
    Mutant(
        "path levels: every node is fed the youngest ones' states",
        LEVELS,
        "torch.cat(states, 1).take_along_dim(above_BK[:, :, None], 1)",
        "torch.cat(states, 1)[:, -1:].expand(-1, count, -1)",
        (A_HEAD,),
    ),
    Mutant(
        "path levels: positions are counted from the text's start",
        LEVELS,
        "prefixes[0] * self.per_prefix",
        "0 * self.per_prefix",
        (f"{OF_A_MODEL}[plain]",),
    ),
    Mutant(
        "path levels: the rows that are committed are fed roughly",
        GRAPHS,
        "of_rows if is_root else of_levels)",
        "replace(of_levels, logits=of_rows.logits) if is_root else of_levels)",
        (f"{OF_A_MODEL}[layer-parallel]",),
    ),
    Mutant(
        "path levels: levels of a layer-parallel model are fed layer by layer",
        GRAPHS,
        "PLAIN if groups is None or max(map(len, groups)) < 2 else",
        "PLAIN if groups is None or max(map(len, groups)) < 9 else",
        (f"{OF_A_MODEL}[layer-parallel]",),
    ),
    Mutant(
        "path levels: a head's root has the state of a row of padding",
        GRAPHS,
        "state_of(last_live_row(left_BNM, inputs) if is_root else left_BNM)",
        "state_of(left_BNM[:, -1:] if is_root else left_BNM)",
        (A_HEAD,),
    ),
    Mutant(
        "path levels: whatever may be drafted at once is not grown",
        "plugins/drafters/spec_sdk_drafters/growing_drafter.py",
        "budget, depth) is not None:\n            return None\n        width",
        "budget, depth) is not None or self.drafts_at_once:\n            return None\n        width",
        (DRAFTED,),
    ),
    Mutant(
        "path levels: what was fed is never what is asked for",
        "plugins/drafters/spec_sdk_drafters/growing_draft.py",
        "            asked == len(level.token_K)\n",
        "            asked != len(level.token_K)\n",
        (DRAFTED,),
    ),
    Mutant(
        "path levels: padding is drafted",
        LEVELS,
        "            logits_BKR = logits_BKR[..., :limit]\n            logits.append",
        "            logits.append",
        (f"{OF_LEVELS}::test_tokens_that_the_target_lacks_are_not_drafted",),
    ),
    Mutant(
        "fused heads: the residual of few rows is that of the attention's input",
        HEAD,
        "self._stages.attend(0, q_BNHD, work), h_BNM, None)",
        "self._stages.attend(0, q_BNHD, work), 2 * h_BNM, None)",
        (FUSED,),
    ),
    Mutant(
        "fused heads: the residual of one row is left out",
        HEAD,
        "stages.attend(0, q_11HD, work), h_11M.contiguous())",
        "stages.attend(0, q_11HD, work), 0 * h_11M.contiguous())",
        (FUSED,),
    ),
    Mutant(
        "fused heads: the MLP of many rows reads what has no norm",
        HEAD,
        "h_BNM + gated_mlp(w.mlp, x_BNM)",
        "h_BNM + gated_mlp(w.mlp, h_BNM)",
        (FUSED,),
    ),
    Mutant(
        "trees: a chosen token forgets how probable it was",
        "spec_sdk/ops/draws.py",
        "sequence=None, probability=probability",
        "sequence=None, probability=None",
        ("tests/drafters/test_priced_tree.py",),
    ),
    Mutant(
        "path levels: all requests are in the place of the first",
        LEVELS,
        "torch.tensor(own, dtype=torch.int32)[self.owner]",
        "torch.tensor(own, dtype=torch.int32)[0 * self.owner]",
        (f"{OF_LEVELS}::test_several_requests_at_once[model]",),
    ),
    Mutant(
        "path levels: of several requests the first one's features",
        GRAPHS,
        "for place_NM, own_NM in zip(captured.features_BNM, features, strict=True):",
        "for place_NM, own_NM in zip(captured.features_BNM, [features[0]] * len(features), strict=True):",
        (f"{OF_LEVELS}::test_several_requests_at_once[head]",),
    ),
    Mutant(
        "path levels: levels of unlike shares are fed together",
        LEVELS,
        "if any(own.width != paths[0].width or shares_of(own) != longest[: own.depth] for own in paths):",
        "if any(own.width != paths[0].width for own in paths):",
        (f"{OF_LEVELS}::test_requests_whose_levels_are_unlike_are_fed_by_passes",),
    ),
)

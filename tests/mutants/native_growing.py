"""Trees that are fed in one native call, and are not those that a growth would have fed."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SOURCE = "plugins/backends/spec_sdk_backends/native/source/"
GROWING = SOURCE + "growing.h"
TESTS = "tests/native/test_growing.py"
GROWING_PROJECTION = "plugins/backends/spec_sdk_backends/native/growing_projection.py"
OF_ROWS = "tests/native/test_growing_projection.py"
OF_A_HEAD = (f"{TESTS}::test_a_head_grows_what_its_passes_would",)
OF_A_MODEL = (f"{TESTS}::test_a_draft_model_grows_what_its_passes_would",)
OF_PIPELINES = (f"{TESTS}::test_a_pipeline_drafts_the_same_trees",)
PARALLEL = (f"{TESTS}::test_layers_that_run_in_parallel",)

NATIVE_GROWING: tuple[Mutant, ...] = (
    Mutant(
        "native growing: paths are kept in the order of their probability",
        GROWING,
        "    std::sort(offers.begin(), offers.end(), place);\n",
        "",
        OF_A_HEAD,
    ),
    Mutant(
        "native growing: a path is as probable as its last token",
        GROWING,
        "joint[first + k] + double(",
        "0 * joint[first + k] + double(",
        OF_A_HEAD,
    ),
    Mutant(
        "native growing: the first levels take all the room",
        GROWING,
        "(growing.nodes - size) / (growing.depth - level)",
        "growing.nodes - size",
        OF_A_HEAD,
    ),
    Mutant(
        "native growing: a level is as probable as its last node",
        GROWING,
        "reach += reached.back();",
        "reach = reached.back();",
        OF_A_HEAD,
    ),
    Mutant(
        "native growing: children are fed what their number's node left",
        GROWING,
        "state + parent[size + i] * M, M, &features",
        "state + (size + i - 1) * M, M, &features",
        OF_A_HEAD,
    ),
    Mutant(
        "native growing: nodes see their uncles",
        GROWING,
        "made.start.push_back(seen.start[node]), made.end.push_back(seen.end[node]);",
        "made.start.push_back(0), made.end.push_back(seen.end[0]);",
        OF_A_MODEL,
    ),
    Mutant(
        "native growing: a level stands a position too far",
        GROWING,
        "made.position.push_back(prefix - 1 + depth[node])",
        "made.position.push_back(prefix + depth[node])",
        OF_A_MODEL,
    ),
    Mutant(
        "native growing: a head's children are never fed what is normalised",
        GROWING,
        "_model.feeds_normed ? _normal.data() : last",
        "last",
        OF_A_HEAD,
    ),
    Mutant(
        "native growing: a feature enters as it is",
        GROWING,
        "if (_model.entering_norm.at)",
        "if (false)",
        OF_A_HEAD,
    ),
    Mutant(
        "native growing: tokens are called by their places",
        GROWING,
        "_growing.token_of && i < nodes",
        "false && i < nodes",
        OF_A_HEAD,
    ),
    Mutant(
        "native growing: the last head's logits stand where the first one's do",
        GROWING,
        "at += _growing.head[i++].outputs",
        "i++",
        (f"{TESTS}::test_the_tokens_of_a_text_are_drafted_too",),
    ),
    Mutant(
        "native growing: half of a group's codes are read twice",
        SOURCE + "lookup.h",
        ">> input / (GROUP / 2) * 4 & 15;",
        "& 15;",
        (f"{TESTS}::test_an_embedding_is_read_in_rows_too",),
    ),
    Mutant(
        "native growing: the root is fed with layers in parallel too",
        GROWING,
        "first ? _growing.group : nullptr",
        "_growing.group",
        PARALLEL,
    ),
    Mutant(
        "native blocks: every layer enters its group anew",
        SOURCE + "blocks.h",
        "group[i] != group[i - 1]",
        "true",
        PARALLEL,
    ),
    Mutant(
        "growing drafts: what was fed is taken for what is asked for",
        "plugins/drafters/spec_sdk_drafters/growing_draft.py",
        "            and tree.token[-asked:] == list(level.token_K)\n"
        "            and tree.parent[-asked:] == list(level.parent_K)\n",
        "",
        OF_PIPELINES,
    ),
    Mutant(
        "draft heads: states of nodes that nobody asked for stay",
        "spec_sdk/model/draft_heads/session.py",
        "self._states_TM[slot][: 1 + nodes]",
        "self._states_TM[slot]",
        OF_PIPELINES,
    ),
    Mutant(
        "draft models: nodes that were fed ahead are not committed as what they are",
        "spec_sdk/model/session.py",
        "self._fed[slot] = tree.token[1 : 1 + nodes]",
        "self._fed[slot] = tree.token[:nodes]",
        OF_A_MODEL,
    ),
    Mutant(
        "context vocabulary: rows of a text's tokens are normalised by torch",
        "spec_sdk/model/context_vocabulary.py",
        "    @torch.no_grad()\n    def completed",
        "    def completed",
        (f"{TESTS}::test_a_pipeline_drafts_the_same_trees",),
    ),
    Mutant(
        "growing projection: what was there is lost when there is no more room",
        GROWING_PROJECTION,
        "            wider_PSCD[:P] = panels_PSCD\n",
        "",
        (f"{OF_ROWS}::test_rows_that_are_added_lie_where_a_whole_matrix_has_them",),
    ),
    Mutant(
        "growing projection: a panel more at a time",
        GROWING_PROJECTION,
        "max(needed, 2 * P)",
        "needed",
        (f"{OF_ROWS}::test_few_copies_are_made_and_none_in_the_weights_large_pages",),
    ),
    Mutant(
        "growing projection: rows lie in the first panel",
        SOURCE + "laying.h",
        "panels + output / PANEL * steps * PANEL + output % PANEL",
        "panels + output % PANEL",
        (f"{OF_ROWS}::test_rows_that_are_added_lie_where_a_whole_matrix_has_them",),
    ),
    Mutant(
        "native decoders: a group's attention is torch's",
        "plugins/backends/spec_sdk_backends/native/decoder.py",
        "fuses_groups = False",
        "fuses_groups = True",
        PARALLEL,
    ),
    Mutant(
        "native growing: tokens that the model lacks are looked up",
        "plugins/backends/spec_sdk_backends/native/growing.py",
        "and max(rows.tokens) < self._tokens",
        "and max(rows.tokens) <= self._tokens",
        (f"{TESTS}::test_tokens_that_the_model_lacks_are_named_by_a_pass",),
    ),
    Mutant(
        "native growing: negative tokens are looked up",
        "plugins/backends/spec_sdk_backends/native/growing.py",
        "            and min(rows.tokens) >= 0\n",
        "",
        (f"{TESTS}::test_tokens_that_the_model_lacks_are_named_by_a_pass",),
    ),
    Mutant(
        "native growing: an embedding that was laid out anew is read where it lay",
        "plugins/backends/spec_sdk_backends/native/growing.py",
        "        self._follow()\n",
        "",
        (f"{TESTS}::test_an_embedding_that_is_laid_out_anew",),
    ),
    Mutant(
        "kit for runners: attention_groups is not looked at",
        "spec_sdk/testing/runners.py",
        "if (groups := runner.attention_groups(executor.layers)) is not None:",
        "if (groups := runner.attention_groups(executor.layers)) is None:",
        ("tests/model/test_runner_conformance.py",),
    ),
    Mutant(
        "kit for executors: trees that grow in one call are not looked at",
        "spec_sdk/testing/executors.py",
        "    if not executor.grows_paths:\n        return\n",
        "    return\n",
        ("tests/executors/test_conformance.py",),
    ),
    Mutant(
        "block runners: one that changes a pass passes for its base",
        "spec_sdk/model/block_runner.py",
        'BlockRunner.attention_groups, ["run"])',
        "BlockRunner.attention_groups, [])",
        PARALLEL,
    ),
    Mutant(
        "growths: one of its own keeps what its base says of paths",
        "spec_sdk/contracts/growth.py",
        'for described in ("fixed_shape", "kept_paths", "most_offered")',
        'for described in ("fixed_shape",)',
        ("tests/losslessness/test_growth_conformance.py",),
    ),
    Mutant(
        "kit for growths: kept_paths is not looked at",
        "spec_sdk/testing/growths.py",
        "if self._kept is not None:\n            self._check_kept(",
        "if False:\n            self._check_kept(",
        ("tests/losslessness/test_growth_conformance.py",),
    ),
)

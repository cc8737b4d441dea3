"""A target that drafts for itself with the wrong layers, in the wrong place, or leaving something behind."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RUNNER = "plugins/drafters/spec_sdk_drafters/skipped_layers.py"
DRAFTER = "plugins/drafters/spec_sdk_drafters/layer_skip.py"
SESSION = "spec_sdk/model/session.py"
OF_DRAFTER = "tests/drafters/test_layer_skip.py"
IDENTITY = f"{OF_DRAFTER}::test_a_draft_is_the_target_with_blocks_that_add_nothing"
OF_RUNNER = "tests/model/test_runner_conformance.py"

SELF_DRAFTING = (
    Mutant(
        "self-drafting: a tree whose root is fed lies one position early",
        "spec_sdk/ops/pass_inputs.py",
        "position = [prefix - first + depth for depth in",
        "position = [prefix - 1 + depth for depth in",
        (IDENTITY,),
    ),
    Mutant(
        "self-drafting: drafting passes run all layers",
        SESSION,
        "self._plan(runner))]",
        "self._plan(self.runner))]",
        (IDENTITY,),
    ),
    Mutant(
        "self-drafting: what was drafted counts as fed by the target",
        SESSION,
        """        return [self._logits(output) for output in self._run("growing", requests, self._plan(runner))]
""",
        """        outputs = [self._logits(output) for output in self._run("growing", requests, self._plan(runner))]
        for slot, tree in zip(slots, trees, strict=True):
            self._tokens[slot].append(tree.token[0])
        return outputs
""",
        (IDENTITY,),
    ),
    Mutant(
        "self-drafting: a root has its neighbour's logits",
        DRAFTER,
        "zip(requests, trees, budgets, roots, strict=True)",
        "zip(requests, trees, budgets, roots[::-1], strict=True)",
        (f"{OF_DRAFTER}::test_conformance",),
    ),
    Mutant(
        "self-drafting: every tree has the first request's depth",
        DRAFTER,
        "self.growth.growing(tree, root, budget.depth,",
        "self.growth.growing(tree, root, budgets[0].depth,",
        (f"{OF_DRAFTER}::test_requests_of_one_step_have_budgets_of_their_own",),
    ),
    Mutant(
        "self-drafting: the penalty is left out at the root",
        DRAFTER,
        "request.process_draft(logits, [()])",
        "logits",
        (f"{OF_DRAFTER}::test_a_penalty_holds_at_every_node",),
    ),
    Mutant(
        "layer skip: hidden states of skipped layers are recorded one too early",
        RUNNER,
        "work.record(skipped + 1, h_BNM)",
        "work.record(skipped, h_BNM)",
        (f"{OF_RUNNER}::test_layer_skip_runners_conform",),
    ),
    Mutant(
        "layer skip: a draft model keeps the K and V of passes without some layers",
        RUNNER,
        "keeps_kv = False",
        "keeps_kv = True",
        ("tests/drafters/test_draft_cache.py::test_the_cache_equals_a_plain_prefill",),
    ),
    Mutant(
        "layer skip: the layers given are those that run",
        RUNNER,
        "if layer not in skip]",
        "if layer in skip]",
        (IDENTITY,),
    ),
    Mutant(
        "native: a run of blocks begins with the first one's weights",
        "plugins/backends/spec_sdk_backends/native/decoder.py",
        "block, count = self.native_blocks[first],",
        "block, count = self.native_blocks[0],",
        ("tests/native/test_decoder.py::test_runs_of_blocks_agree_with_their_stages_to_the_bit",),
    ),
    Mutant(
        "native: a tapped state is what leaves the block behind its own",
        "plugins/backends/spec_sdk_backends/native/decoder.py",
        "places[layer - first - 1]",
        "places[layer - first]",
        ("tests/native/test_decoder.py::test_runs_of_blocks_agree_with_their_stages_to_the_bit",),
    ),
    Mutant(
        "native: of a tapped state one thread keeps its part alone",
        "plugins/backends/spec_sdk_backends/native/source/blocks.h",
        "std::copy(work.h + part.first, work.h + part.end, to + part.first);",
        "if (!omp_get_thread_num()) std::copy(work.h + part.first, work.h + part.end, to + part.first);",
        ("tests/native/test_decoder.py::test_stages_agree_with_whole_blocks_to_the_bit",),
    ),
    Mutant(
        "adaptive: a drafter in the target's cache is thought to catch up",
        "spec_sdk/policy/stage_times.py",
        "return unfed >= CATCH_UP and self.catches_up",
        "return unfed >= CATCH_UP",
        ("tests/policies/test_adaptive.py::test_a_drafter_without_a_cache_of_its_own_is_tried_behind_a_long_prompt",),
    ),
    Mutant(
        "merged: it need not catch up if one member need not",
        "plugins/drafters/spec_sdk_drafters/merged.py",
        "any(member.catches_up",
        "all(member.catches_up",
        (f"{OF_DRAFTER}::test_members_of_one_tree",),
    ),
)

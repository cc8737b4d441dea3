"""Masks of other places, trees that lose draws, and what a constraint must not let through."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MATCHER = "plugins/constraints/spec_sdk_constraints/grammar_matcher.py"
TREE = "spec_sdk/engine/constrained_tree.py"
OF_MATCHER = "tests/losslessness/test_grammar_matcher.py"
OF_TREES = "tests/losslessness/test_constraints.py"

CONSTRAINING = (
    Mutant(
        "a place's mask is taken for that of the place before",
        MATCHER,
        "allowed = allowed_in(self._mask(place, path[:depth]), token)",
        "allowed = True",
        (f"{OF_MATCHER}::test_masks_are_those_of_the_language",),
    ),
    Mutant(
        "the parser is not brought back from another path",
        MATCHER,
        "parser.rollback(len(here) - common)",
        "pass",
        (f"{OF_MATCHER}::test_walking_back_and_forth",),
    ),
    Mutant(
        "the answer goes on, and what was known stays at its place",
        MATCHER,
        "self._known_answer, self._known_place = [*known, *new], place",
        "self._known_answer = [*known, *new]",
        (f"{OF_MATCHER}::test_walking_back_and_forth",),
    ),
    Mutant(
        "an end is a token like others",
        MATCHER,
        "Where.end if token in self._ends else Where.inside",
        "Where.inside",
        (OF_MATCHER,),
    ),
    Mutant(
        "drawn tokens that may not follow are forgotten",
        TREE,
        'if not allowed and draw.kind == "chosen":',
        "if not allowed:",
        (f"{OF_TREES}::test_a_tree_is_pruned_and_what_is_forced_is_added",),
    ),
    Mutant(
        "forced tokens go beyond the depth that was granted",
        TREE,
        "if not built.room or built.depth[node] >= budget.depth or",
        "if not built.room or",
        (f"{OF_TREES}::test_a_tree_is_pruned_and_what_is_forced_is_added",),
    ),
    Mutant(
        "answers share one matcher",
        "spec_sdk/engine/token_engine.py",
        "else request.constraint.begin(),",
        "else request.constraint,",
        ("tests/pipelines/test_constrained.py::test_answers_of_one_constraint_beside_one_another",),
    ),
    Mutant(
        "a draft model of few tokens drafts nothing where it has none that is allowed",
        "spec_sdk/contracts/request.py",
        "processed_KV = torch.where(none_left_K1, even_KV, processed_KV)",
        "pass",
        ("tests/model/test_draft_logits.py::test_a_constraint_that_leaves_nothing_the_model_can_draft",),
    ),
    Mutant(
        "a schema may say how strictly it is read",
        "plugins/constraints/spec_sdk_constraints/schema_keywords.py",
        'if keyword == "x-guidance":',
        "if False:",
        ("tests/pipelines/test_constrained.py::test_what_is_refused",),
    ),
)

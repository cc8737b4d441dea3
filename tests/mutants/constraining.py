"""Masks of other places, trees that lose draws, and what a constraint must not let through."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MATCHER = "plugins/constraints/spec_sdk_constraints/grammar_matcher.py"
TREE = "spec_sdk/engine/constrained_tree.py"
FORCED = "spec_sdk/engine/forced_tokens.py"
TURN = "spec_sdk/engine/turn.py"
REQUEST = "spec_sdk/contracts/request.py"
SCHEDULER = "spec_sdk/engine/scheduler.py"
ROSTER = "spec_sdk/engine/roster.py"
COMMITTED = "spec_sdk/engine/committed_tokens.py"
OF_FORCED = "tests/losslessness/test_forced_tokens.py"
OF_MATCHER = "tests/losslessness/test_grammar_matcher.py"
OF_LIMITS = "tests/losslessness/test_constraint_limits.py"
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
        "if not built.room or built.depth[leaf] >= budget.depth:",
        "if not built.room:",
        (f"{OF_TREES}::test_a_tree_is_pruned_and_what_is_forced_is_added",),
    ),
    Mutant(
        "forced tokens are taken beyond the answer's end",
        FORCED,
        "if token in request.stop_ids:",
        "if False:",
        (f"{OF_FORCED}::test_a_run_goes_as_far_as_there_is_no_choice",),
    ),
    Mutant(
        "the logits of forced rows are taken for those of the tree",
        TURN,
        "return logits_NV[len(self.above) :] if self.above else logits_NV",
        "return logits_NV[: self.tree.size]",
        (f"{OF_FORCED}::test_greedy_answers_are_those_without",),
    ),
    Mutant(
        "the rows of forced tokens are not committed where the tree's are",
        TURN,
        "return path_behind(self.above, self.path)",
        "return [*range(len(self.above)), *self.path]",
        (f"{OF_FORCED}::test_greedy_answers_are_those_without",),
    ),
    Mutant(
        "drafters that need states are asked ahead of them",
        SCHEDULER,
        "if len(unscored) > 1 and (self.drafter.taps or not self.drafter.drafts_ahead):",
        "if False:",
        (f"{OF_FORCED}::test_states_of_forced_tokens_come_with_the_next",),
    ),
    Mutant(
        "the states of a long forced run are lost",
        TURN,
        "if not self.fed_hidden:\n            return hidden",
        "if True:\n            return hidden",
        (f"{OF_FORCED}::test_states_of_forced_tokens_come_with_the_next",),
    ),
    Mutant(
        "forced tokens behind a draft count as the drafter's",
        TURN,
        "return self.tree if self.constrained is None else self.constrained.drafted",
        "return self.tree",
        (f"{OF_FORCED}::test_what_was_forced_is_no_merit_of_the_drafter",),
    ),
    Mutant(
        "what forced tokens cost and give is booked as drafting's",
        "spec_sdk/policy/forced_token_costs.py",
        "if told is None:",
        "if True:",
        ("tests/policies/test_forced_token_costs.py",),
    ),
    Mutant(
        "a token is credited to the source that is least sure of it",
        "plugins/drafters/spec_sdk_drafters/guessing.py",
        "max(rates, key=",
        "min(rates, key=",
        ("tests/drafters/test_retrieval.py::test_a_token_is_credited_to_the_source_that_is_surest_of_it",),
    ),
    Mutant(
        "an interval is of the numbers, not of their median",
        "spec_sdk/bench/intervals.py",
        "medians = np.median(numbers[drawn], axis=1)",
        "medians = numbers",
        ("tests/bench/test_intervals.py",),
    ),
    Mutant(
        "answers share one matcher",
        "spec_sdk/engine/token_engine.py",
        "else begun(request.constraint),",
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
    Mutant(
        "a verdict goes on where the constraint cannot be followed",
        COMMITTED,
        "if tuple(tokens[:count]) in unfollowed:",
        "if False:",
        (f"{OF_LIMITS}::test_answers_end_where_plain_decoding_ends",),
    ),
    Mutant(
        "a limit behind a drafted path ends the answer",
        REQUEST,
        "limit = limit if path else error",
        "limit = error",
        (f"{OF_LIMITS}::test_answers_end_where_plain_decoding_ends",),
    ),
    Mutant(
        "a limit that a drafter meets ends all requests of the step",
        REQUEST,
        "        self._constrain(processed_KV, paths)\n        if",
        "        if (limit := self._constrain(processed_KV, paths)) is not None:\n            raise limit\n        if",
        (f"{OF_LIMITS}::test_a_request_that_ends_there_ends_no_other",),
    ),
    Mutant(
        "a parser that gave up is asked for other paths",
        MATCHER,
        "        if self._known_parser.is_error():\n            # it says",
        "        if False:\n            # it says",
        ("tests/pipelines/test_constrained.py::test_a_limit_behind_drafted_tokens_says_nothing_of_others",),
    ),
    Mutant(
        "a limit that a drafter raises ends all requests of the step",
        ROSTER,
        "isinstance(error, RequestError | ConstraintLimit)",
        "isinstance(error, RequestError)",
        (f"{OF_LIMITS}::test_a_request_that_ends_there_ends_no_other",),
    ),
    Mutant(
        "a full lexer stays the grammar's",
        "plugins/constraints/spec_sdk_constraints/grammar_parsers.py",
        "if len(self._served) < 2 and self._masks < RENEWED_AFTER:",
        "if True:",
        (f"{OF_MATCHER}::test_a_lexer_that_others_filled_is_made_anew",),
    ),
    Mutant(
        "what one other answer was is a limit of the next",
        "plugins/constraints/spec_sdk_constraints/grammar_parsers.py",
        "if len(self._served) < 2 and self._masks < RENEWED_AFTER:",
        "if self._masks < RENEWED_AFTER:",
        (f"{OF_MATCHER}::test_a_lexer_that_one_other_answer_filled_is_made_anew",),
    ),
    Mutant(
        "a grammar is compiled anew at every limit",
        "plugins/constraints/spec_sdk_constraints/grammar_parsers.py",
        "if len(self._served) < 2 and self._masks < RENEWED_AFTER:",
        "if False:",
        (f"{OF_MATCHER}::test_a_lexer_that_one_answer_fills_is_a_limit",),
    ),
    Mutant(
        "an answer beside one that compiled the grammar anew compiles it too",
        MATCHER,
        "if self._copied_of is self._parsers.first and not self._parsers.renew():",
        "if not self._parsers.renew():",
        (f"{OF_MATCHER}::test_a_lexer_that_others_filled_is_made_anew",),
    ),
)

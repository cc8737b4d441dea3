"""Guesses from the wrong place, counted wrongly, or more of them than the budget has room for; draws that are lost."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

DRAFTERS = "plugins/drafters/spec_sdk_drafters"
AUTOMATON = f"{DRAFTERS}/suffix_automaton.py"
LOOKUP = f"{DRAFTERS}/prompt_lookup.py"
SUFFIX = f"{DRAFTERS}/suffix_source.py"
TABLE = f"{DRAFTERS}/recycling_table.py"
GUESSING = f"{DRAFTERS}/guessing.py"
RATES = f"{DRAFTERS}/acceptance_rates.py"
MIXED = f"{DRAFTERS}/mixed.py"
ASKED = f"{DRAFTERS}/asked_model.py"
WORTH = f"{DRAFTERS}/model_worth.py"
MODEL_SOURCE = f"{DRAFTERS}/model_source.py"
GROWING = f"{DRAFTERS}/growing_draft.py"
SCHEDULER = "spec_sdk/engine/scheduler.py"
VERIFICATION = "spec_sdk/engine/verification.py"
POLICY, PRICES, DRAFTING = (f"spec_sdk/policy/{name}.py" for name in ("break_even", "prices", "drafting_worth"))
OF_AUTOMATON = "tests/drafters/test_suffix_automaton.py::test_runs_and_followers_are_those_that_counting_finds"
OF_DRAFTERS = "tests/drafters/test_retrieval.py"
OF_MIXED = "tests/drafters/test_mixed.py"
OF_POLICY = "tests/policies/test_break_even.py"
OUTCOMES = "tests/losslessness/test_node_budgets.py::test_every_outcome_of_a_cycle"
MATCHES = f"{OF_DRAFTERS}::test_several_matches_are_merged_longest_run_and_latest_first"

RETRIEVAL = (
    Mutant(
        "automaton: a split state forgets its count",
        AUTOMATON,
        "        self._count[short] = self._count[after]\n",
        "",
        (OF_AUTOMATON,),
    ),
    Mutant(
        "automaton: counts are of runs one token too short",
        AUTOMATON,
        "self._counted.length + 1), self.longest + 1",
        "self._counted.length + 1), self.longest",
        (OF_AUTOMATON,),
    ),
    Mutant(
        "automaton: the text's end counts as an occurrence before",
        AUTOMATON,
        "while state != ROOT and not self._next[state]:",
        "while False:",
        (OF_AUTOMATON,),
    ),
    Mutant(
        "automaton: a token after a path is looked up from its whole text",
        AUTOMATON,
        "        state, length = cursor\n        while state != ROOT and token not in self._next[state]:",
        "        state, length = self.end()\n        while state != ROOT and token not in self._next[state]:",
        (OF_AUTOMATON,),
    ),
    Mutant(
        "prompt lookup: the earliest occurrence first",
        LOOKUP,
        "for position in reversed(self._follows.get(tuple(tokens[-n:]), ())):",
        "for position in self._follows.get(tuple(tokens[-n:]), ()):",
        (f"{OF_DRAFTERS}::test_where_nodes_are_few_the_latest_match_has_them",),
    ),
    Mutant(
        "prompt lookup: a match that adds nothing counts",
        LOOKUP,
        "paths += tree.size > before",
        "paths += 1",
        (f"{OF_DRAFTERS}::test_a_match_that_goes_on_like_another_is_no_second_path",),
    ),
    Mutant(
        "suffix: a run reaches from one kept answer into the next",
        SUFFIX,
        "self.automata[-1].extend([*answer, -1])",
        "self.automata[-1].extend([*answer])",
        (f"{OF_DRAFTERS}::test_a_kept_answer_ends_where_it_ended",),
    ),
    Mutant(
        "suffix: shorter runs overrule longer ones",
        SUFFIX,
        "runs.sort(key=lambda item: -item[1].length)",
        "runs.sort(key=lambda item: item[1].length)",
        (f"{OF_DRAFTERS}::test_a_longer_run_is_believed_before_a_shorter_one",),
    ),
    Mutant(
        "suffix: kept answers are never dropped",
        SUFFIX,
        "self.automata = [self.automata[-1], SuffixAutomaton(LONGEST)]",
        "self.automata = [*self.automata, SuffixAutomaton(LONGEST)]",
        (f"{OF_DRAFTERS}::test_no_more_answers_are_kept_than_asked_for",),
    ),
    Mutant(
        "recycling: the table is keyed by the parent's token",
        TABLE,
        "self.rows[tree.token_N[node]] = tuple(",
        "self.rows[tree.token_N[max(0, tree.parent_N[node])]] = tuple(",
        (f"{OF_DRAFTERS}::test_the_table_has_what_the_target_thought_of_every_node",),
    ),
    Mutant(
        "recycling: only the accepted path is kept",
        TABLE,
        "for node in [*range(tree.size), *path]:",
        "for node in path:",
        (f"{OF_DRAFTERS}::test_the_table_has_what_the_target_thought_of_every_node",),
    ),
    Mutant(
        "recycling: a rejected node overrules the accepted one",
        TABLE,
        "for node in [*range(tree.size), *path]:",
        "for node in [*path, *range(tree.size)]:",
        (f"{OF_DRAFTERS}::test_the_table_has_what_the_target_thought_of_every_node",),
    ),
    Mutant(
        "recycling: tokens that are ruled out are guessed",
        TABLE,
        "if probability > 0 and (",
        "if (rank == 0) or (",
        (f"{OF_DRAFTERS}::test_the_table_has_what_the_target_thought_of_every_node",),
    ),
    Mutant(
        "learning after the target's answer is known",
        GUESSING,
        """        self.learn(tokens)
        for source in self.sources:
            source.record(tree, top, path)
""",
        """        for source in self.sources:
            source.record(tree, top, path)
        self.learn(tokens)
""",
        (f"{OF_DRAFTERS}::test_learning_comes_before_the_target_s_answer_is_known",),
    ),
    Mutant(
        "guesses: a path is as probable as its last token",
        GUESSING,
        "heapq.heappush(offers, (-joint * probability, found,",
        "heapq.heappush(offers, (-probability, found,",
        (f"{OF_DRAFTERS}::test_the_tree_has_the_most_probable_paths",),
    ),
    Mutant(
        "guesses: a node deeper than the budget",
        GUESSING,
        "if tree.depth[node] < budget.depth and tree.room:",
        "if tree.depth[node] <= budget.depth and tree.room:",
        (f"{OF_DRAFTERS}::test_the_tree_has_the_most_probable_paths", OF_DRAFTERS),
    ),
    Mutant(
        "guesses: prices are off by one node",
        GUESSING,
        "zip(probabilities, node_costs[1:], strict=False)",
        "zip(probabilities, node_costs, strict=False)",
        (f"{OF_DRAFTERS}::test_as_many_nodes_as_pay",),
    ),
    Mutant(
        "rates: the prior is not weighed against what was tried",
        RATES,
        "known = right / (self._tried.get(kind, 0.0) + PRIOR_WEIGHT)",
        "known = right / (self._tried.get(kind, 0.0) + PRIOR_WEIGHT + 1)",
        (f"{OF_DRAFTERS}::test_rates_are_discounted_counts_drawn_towards_the_prior",),
    ),
    Mutant(
        "rates: a guess that was wrong counts as right",
        GUESSING,
        "source.rates.observe(kind, guess == token)",
        "source.rates.observe(kind, guess != token)",
        (f"{OF_DRAFTERS}::test_a_drafter_learns_which_guesses_are_right",),
    ),
    Mutant(
        "mixed: what the model drew and nobody guessed is left out where there are guesses",
        MIXED,
        "trees[i] = merge([proposal.tree, without] if fits else [proposal.tree], self.name)",
        "trees[i] = merge([proposal.tree, without]) if without.size == 1 else without",
        (f"{OF_DRAFTERS}::test_no_draw_of_the_model_is_lost",),
    ),
    Mutant(
        "mixed: guesses that the model drew replace its draws",
        MIXED,
        "trees[i] = merge([proposal.tree, without] if fits else [proposal.tree], self.name)",
        """trees[i] = without
                if proposal.tree.token_N[1:2] != without.token_N[1:2]:
                    trees[i] = merge([proposal.tree, without])""",
        (
            f"{OUTCOMES}[mixed, drawn with replacement-5-temperature 1]",
            f"{OUTCOMES}[mixed, drawn without replacement-5-temperature 1]",
        ),
    ),
    Mutant(
        "mixed: the model may use up the nodes of the guesses",
        MIXED,
        "nodes=budget.nodes - (tree.size - 1),",
        "nodes=budget.nodes,",
        (f"{OF_MIXED}::test_draws_leave_the_guesses_their_share",),
    ),
    Mutant(
        "mixed: prices beside guesses are those of the first nodes",
        MIXED,
        "tuple(cost - costs[0] for cost in costs)",
        "tuple(costs)",
        (f"{OF_MIXED}::test_draws_leave_the_guesses_their_share",),
    ),
    Mutant(
        "mixed: drawn tokens are pruned as chosen ones",
        MIXED,
        "if proposal.drawn:",
        "if False:",
        (
            f"{OF_DRAFTERS}::test_no_draw_of_the_model_is_lost",
            f"{OUTCOMES}[mixed, drawn with replacement-5-temperature 1]",
        ),
    ),
    Mutant(
        "worth: a second costs nothing",
        WORTH,
        "gained = gain - seconds * tokens_per_second",
        "gained = gain",
        (f"{OF_MIXED}::test_a_model_that_is_never_right_is_hardly_ever_asked",),
    ),
    Mutant(
        "worth: every pause is as long as the first",
        WORTH,
        "min(FIRST_PAUSE << self._failures, LONGEST_PAUSE)",
        "FIRST_PAUSE",
        (f"{OF_MIXED}::test_a_model_that_is_never_right_is_hardly_ever_asked",),
    ),
    Mutant(
        "worth: how sure the guesses are does not matter",
        WORTH,
        "return bisect_right(SURENESS, surest)",
        "return 0",
        (f"{OF_MIXED}::test_worth_is_weighed_by_how_sure_the_guesses_are",),
    ),
    Mutant(
        "worth: catching up is free",
        WORTH,
        "if gain > 0 and price <= ",
        "if gain > 0 or price <= ",
        (f"{OF_MIXED}::test_catching_up_must_pay_before_the_answer_ends",),
    ),
    Mutant(
        "asked model: states of later steps are not kept until it is started",
        ASKED,
        "self._hidden[request.slot].append(path_hidden[i])",
        "pass",
        (f"{OF_MIXED}::test_the_model_is_started_when_it_is_first_asked_with_all_states_until_then",),
    ),
    Mutant(
        "asked model: a gain counts what the guesses alone had right",
        ASKED,
        "gain = len(committed[i]) - 1 - accepted(question.without, committed[i]) - question.price",
        "gain = len(committed[i]) - 1 - question.price",
        (f"{OF_MIXED}::test_a_model_that_agrees_with_the_guesses_gains_nothing",),
    ),
    Mutant(
        "model source: the model's own probability is believed",
        MODEL_SOURCE,
        "reached[self._children[node][token]] = reached[node] * self.rates.rate(kind)",
        "reached[self._children[node][token]] = reached[node] * self._chances[node].get(token, 1.0)",
        (f"{OF_MIXED}::test_levels_are_worth_what_they_gave",),
    ),
    Mutant(
        "growing: a level is fed whatever it costs",
        GROWING,
        "if (logits is None or len(logits)) and self._reach() < self.level_cost:",
        "if False:",
        (f"{OF_MIXED}::test_a_level_that_is_not_worth_its_time_is_not_drafted",),
    ),
    Mutant(
        "growing: nodes are fed to the target whatever they cost",
        GROWING,
        "self.closed = worth_its_price(done.value, self._node_costs)",
        "self.closed = done.value",
        ("tests/drafters/test_priced_tree.py",),
    ),
    Mutant(
        "prices: a node's own probability counts, not its path's",
        "plugins/drafters/spec_sdk_drafters/priced_tree.py",
        "joint_N.append(joint_N[tree.parent_N[node]] * (own[node].probability or 0.0))",
        "joint_N.append(own[node].probability or 0.0)",
        ("tests/drafters/test_priced_tree.py",),
    ),
    Mutant(
        "prices: draws are dropped for what they gave",
        "plugins/drafters/spec_sdk_drafters/priced_tree.py",
        'any(draw.kind != "chosen" or draw.probability is None for draw in draws)',
        "not draws",
        ("tests/drafters/test_priced_tree.py",),
    ),
    Mutant(
        "growing: drawn levels end for what was drawn",
        GROWING,
        """            if chance is None:
                return math.inf
""",
        """            if chance is None:
                chance = 0.5 if tree.token[node] % 2 else 0.01
""",
        (f"{OF_MIXED}::test_a_level_that_is_not_worth_its_time_is_not_drafted",),
    ),
    Mutant(
        "a model's worth: credit is not waited for",
        WORTH,
        "            self._credit += EARNED\n",
        "            pass\n",
        (f"{OF_MIXED}::test_what_catching_up_takes_may_be_waited_for",),
    ),
    Mutant(
        "a model's worth: what was waited for is lost to another question",
        WORTH,
        "max(self._credit, MOST_CREDIT))",
        "MOST_CREDIT)",
        (f"{OF_MIXED}::test_what_was_waited_for_is_not_lost_to_others",),
    ),
    Mutant(
        "a model's worth: hopeless questions earn credit",
        WORTH,
        "if gain > 0 and price <= gain * max(remaining, 4) / 4:",
        "if gain > 0:",
        (f"{OF_MIXED}::test_what_catching_up_takes_may_be_waited_for",),
    ),
    Mutant(
        "mixed: whether a model draws is taken from an earlier request",
        ASKED,
        "            self._drew.pop(request.slot, None)\n",
        "",
        (f"{OF_MIXED}::test_what_a_request_drafts_does_not_hang_on_others",),
    ),
    Mutant(
        "mixed: a model's share goes by its layers",
        ASKED,
        "return executor.layers * sum(per_layer) / len(per_layer)",
        "return float(executor.layers)",
        (f"{OF_MIXED}::test_a_model_is_as_large_as_its_matrices",),
    ),
    Mutant(
        "break_even: what was never tried stays dear",
        PRICES,
        "(UNTRIED_SINCE if known else UNTRIED)",
        "(UNTRIED_SINCE if known else 1e9)",
        (f"{OF_POLICY}::test_what_is_unknown_becomes_cheaper_until_it_is_tried",),
    ),
    Mutant(
        "break_even: what looked dear once is never tried again",
        PRICES,
        "max(prices[-1], reduced * costs_s / token_s)",
        "max(prices[-1], (1 if known else reduced) * costs_s / token_s)",
        (f"{OF_POLICY}::test_a_slow_first_pass_is_not_the_last",),
    ),
    Mutant(
        "break_even: what was tried again stays cheap",
        PRICES,
        "            self._untried, self.of_nodes = 0, ()\n",
        "            pass\n",
        (f"{OF_POLICY}::test_where_nothing_pays_it_is_hardly_tried",),
    ),
    Mutant(
        "break_even: a level's price is of a whole draft",
        PRICES,
        "self._times.draft_level() * self.tokens_per_second",
        "self._times.draft(12) * self.tokens_per_second",
        (f"{OF_POLICY}::test_what_a_level_and_a_second_are_worth_is_said",),
    ),
    Mutant(
        "rates: a temperature changes nothing",
        RATES,
        "return float(prior(kind) ** (1 + FLATTER * temperature))",
        "return float(prior(kind))",
        (f"{OF_DRAFTERS}::test_rates_begin_lower_where_answers_are_sampled",),
    ),
    Mutant(
        "rates: those of all temperatures are kept as one",
        RATES,
        "return min(round(temperature, 1), WARMEST)",
        "return 0.0",
        (f"{OF_DRAFTERS}::test_rates_begin_lower_where_answers_are_sampled",),
    ),
    Mutant(
        "top tokens of another request",
        VERIFICATION,
        "for turn, top in zip(asking, read_tops(tops), strict=True):",
        "for turn, top in zip(asking, reversed(read_tops(tops)), strict=True):",
        (f"{OF_DRAFTERS}::test_the_scheduler_gives_the_target_s_top_tokens_of_every_node_and_request",),
    ),
    Mutant(
        "break_even: prices are per node, not of the tree",
        PRICES,
        "reduced * costs_s / token_s))",
        "reduced * costs_s / token_s / nodes))",
        (f"{OF_POLICY}::test_prices_are_those_of_the_cost_curve",),
    ),
    Mutant(
        "break_even: catching up is a loss of drafting",
        POLICY,
        "return draft_s - caught_up_s",
        "return draft_s",
        (f"{OF_POLICY}::test_a_start_and_catching_up_are_no_losses_of_drafting",),
    ),
    Mutant(
        "break_even: a drafter's start inside another one is a loss of drafting",
        POLICY,
        "min(draft_s, max(OUTLIER * usual_s, times.plain.mean))",
        "draft_s",
        (f"{OF_POLICY}::test_a_call_that_takes_far_longer_than_others_counts_for_one_plain_step",),
    ),
    Mutant(
        "policies: a draft model reads all of a long prompt",
        "spec_sdk/policy/stage_times.py",
        "else min(unfed, self.longest_catch_up)",
        "else unfed",
        (f"{OF_POLICY}::test_a_start_costs_what_the_draft_model_reads_of_a_prompt",),
    ),
    Mutant(
        "policies: a start behind a long prompt is taken for one of all its tokens",
        "spec_sdk/policy/stage_times.py",
        "else longest\n        if fed",
        "else tokens - kept\n        if fed",
        (f"{OF_POLICY}::test_a_start_costs_what_the_draft_model_reads_of_a_prompt",),
    ),
    Mutant(
        "break_even: it catches up however little of the answer is left",
        DRAFTING,
        "gain_s * remaining / TOKENS_OF_A_CYCLE",
        "gain_s * 1e9",
        (f"{OF_POLICY}::test_it_catches_up_where_the_rest_of_the_answer_is_worth_it",),
    ),
    Mutant(
        "break_even: drawn drafts go as deep as may be",
        PRICES,
        "gained += share - price",
        "gained += share",
        ("tests/policies/test_break_even_beside_fixed.py::test_it_is_nearly_as_fast_as_the_best_fixed_depth",),
    ),
    Mutant(
        "break_even: another prompt is another chance for a model too",
        POLICY,
        "if may_gain or learned.weighs_time or not learned.times.drafts_with_model:",
        "if True:",
        (f"{OF_POLICY}::test_another_prompt_is_another_chance_for_what_is_looked_up",),
    ),
    Mutant(
        "late start: a drafter gets the states of the last pass alone",
        "spec_sdk/engine/drafting.py",
        "return self._tapped.of(slot) or",
        "return self._tapped._parts.get(slot, [{}])[-1] or",
        ("tests/policies/test_lazy_start.py::test_one_that_taps_the_target_is_given_all_its_states_when_it_is_asked",),
    ),
    Mutant(
        "break_even: every pause is as long as the first",
        DRAFTING,
        "self._retry << self._failures",
        "self._retry",
        (f"{OF_POLICY}::test_it_pauses_longer_each_time_drafting_loses_time",),
    ),
)

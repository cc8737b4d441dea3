"""Benchmarks that measure something else, forget something, or see no fault."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROOM = "spec_sdk/bench"
FIGURES = "tests/bench/test_figures.py"
ASKED = "tests/bench/test_interleaved.py"
CHECKED = "tests/bench/test_checking.py"
TALKS = "tests/bench/test_conversations.py"
READING = "tests/report/test_reading.py"

BENCH = (
    Mutant(
        "bench: the speed-up is of other rounds",
        f"{ROOM}/figures.py",
        "other = theirs.get((number, prompt))",
        "other = theirs.get((0, prompt))",
        (f"{FIGURES}::test_turns_count_together_and_rounds_by_their_median",),
    ),
    Mutant(
        "bench: conversations that were broken off count",
        f"{ROOM}/figures.py",
        "        and (answer.round, answer.prompt) not in failed\n",
        "",
        (f"{FIGURES}::test_a_conversation_that_was_broken_off_does_not_count",),
    ),
    Mutant(
        "bench: a near-tie is a fault",
        f"{ROOM}/figures.py",
        "len(checks) - equal - ties,",
        "len(checks) - equal,",
        (f"{FIGURES}::test_losslessness_tells_ties_from_faults",),
    ),
    Mutant(
        "bench: a relaxed pipeline is at fault",
        f"{ROOM}/figures.py",
        'in ("exact", "distribution")',
        'in ("exact", "distribution", "relaxed")',
        (f"{FIGURES}::test_losslessness_tells_ties_from_faults",),
    ),
    Mutant(
        "bench: the first tokens count as further ones",
        f"{ROOM}/figures.py",
        "(answer.seconds - answer.first_token_s) / (answer.new_tokens - answer.first_tokens)",
        "(answer.seconds - answer.first_token_s) / answer.new_tokens",
        (f"{FIGURES}::test_acceptance_stages_and_times_of_tokens",),
    ),
    Mutant(
        "bench: the same candidate always begins",
        f"{ROOM}/turns.py",
        "first = turn % len(every) if every else 0",
        "first = 0",
        (f"{ASKED}::test_all_answer_a_prompt_before_the_next_in_rotating_order",),
    ),
    Mutant(
        "bench: a later turn does not see the answer",
        f"{ROOM}/interleaved.py",
        "said.append(plan.tokenizer.decode(measured.tokens))",
        'said.append("")',
        (f"{ASKED}::test_the_second_turn_follows_the_candidates_own_answer",),
    ),
    Mutant(
        "bench: warming up begins as a prompt does",
        f"{ROOM}/interleaved.py",
        "[::-1][: plan.context // 2]",
        "[: plan.context // 2]",
        (f"{ASKED}::test_warming_up_asks_nothing_that_is_timed",),
    ),
    Mutant(
        "bench: a half-answered conversation is done",
        f"{ROOM}/interleaved.py",
        "of in self._failures or all(",
        "of in self._failures or any(",
        (f"{ASKED}::test_nothing_finished_is_asked_again",),
    ),
    Mutant(
        "bench: every round has the same seeds",
        f"{ROOM}/interleaved.py",
        "ask = plan.ask(tokens, setting, number * len(plan.conversations) + index)",
        "ask = plan.ask(tokens, setting, index)",
        (f"{ASKED}::test_every_setting_and_round_begins_anew_with_seeds_of_its_own",),
    ),
    Mutant(
        "bench: any difference is a near-tie",
        f"{ROOM}/checking.py",
        "return Difference(at, gap, 2 * MARGIN * noise)",
        "return Difference(at, gap, gap)",
        (CHECKED,),
    ),
    Mutant(
        "bench: rounding is not measured",
        f"{ROOM}/checking.py",
        "return Difference(at, gap, 2 * MARGIN * noise)",
        "return Difference(at, gap, 0.0)",
        (CHECKED,),
    ),
    Mutant(
        "bench: a short text is scored in narrow passes only",
        "spec_sdk/testing/rounding.py",
        "copies = -(-width // len(fed))",
        "copies = 1",
        (CHECKED,),
    ),
    Mutant(
        "bench: the logits of another step are compared",
        f"{ROOM}/checking.py",
        "_penalised(logits_WNV[0, -1], ",
        "_penalised(logits_WNV[0, 0], ",
        (CHECKED,),
    ),
    Mutant(
        "bench: MT-bench's categories are tasks of their own",
        f"{ROOM}/conversations.py",
        "return MT_BENCH if named in MT_BENCH_CATEGORIES else named",
        "return named",
        (TALKS,),
    ),
    Mutant(
        "bench: the first prompts of a file are taken",
        f"{ROOM}/conversations.py",
        "[items[i * len(items) // count] for i in range(count)]",
        "list(items[:count])",
        (TALKS,),
    ),
    Mutant(
        "bench: a run goes on with other settings",
        f"{ROOM}/reading.py",
        "if differing is not None:",
        "if False:",
        (f"{READING}::test_what_was_resumed_is_one_run_and_on_another_machine_none",),
    ),
    Mutant(
        "bench: what was measured again counts twice",
        f"{ROOM}/reading.py",
        'run.answers = _last(run.answers, "candidate", "question")',
        "run.answers = list(run.answers)",
        (f"{READING}::test_an_answer_that_was_given_again_counts_once",),
    ),
    Mutant(
        "JSON: a value of another type is taken as it is",
        "spec_sdk/json_types.py",
        "    return _if(type(value) is kind, value, kind)",
        "    return value",
        ("tests/report/test_json_types.py::test_what_does_not_fit_is_named",),
    ),
    Mutant(
        "compare: runs that take turns are read as one",
        "spec_sdk/run_report/generate_runs.py",
        "            now = told[begun]",
        "            now = 0",
        (f"{READING}::test_compared_runs_may_take_turns_at_the_prompts",),
    ),
    Mutant(
        "compare: any ratio is believed",
        "spec_sdk/report.py",
        "speed < IMPLAUSIBLE * accepted",
        "speed < IMPLAUSIBLE * max(accepted, speed)",
        ("tests/cli/test_report_doubts.py",),
    ),
    Mutant(
        "compare: a ratio is doubted as soon as it is above 1",
        "spec_sdk/report.py",
        "speed < IMPLAUSIBLE * accepted",
        "speed < IMPLAUSIBLE",
        ("tests/cli/test_report_doubts.py",),
    ),
    Mutant(
        "bench: answers are held to no constraint",
        "spec_sdk/bench/pipeline_candidate.py",
        "            constraint=self._matcher,\n",
        "",
        ("tests/cli/test_bench.py::test_all_answers_are_held_to_the_constraint",),
    ),
    Mutant(
        "compare: half an answer counts",
        "spec_sdk/tasks/generate.py",
        "return None if finished == begun else finished",
        "return None",
        ("tests/cli/test_generate.py::test_a_comparison_that_is_cut_off_is_of_whole_answers",),
    ),
    Mutant(
        "report: acceptance of all batch sizes together",
        "spec_sdk/run_report/inside_figures.py",
        "summed_depths(series.answers(temperature, 1))",
        "summed_depths(series.answers(temperature))",
        ("tests/report/test_speed.py::test_depths_are_summed",),
    ),
)

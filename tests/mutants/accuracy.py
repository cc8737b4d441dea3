"""Accuracies that are of other answers, other seeds or other seconds than they say."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROOM = "spec_sdk/accuracy"
FIGURES = "tests/accuracy/test_figures.py"
METRICS = "tests/accuracy/test_metrics.py"
CLI = "tests/cli/test_accuracy.py"

ACCURACY = (
    Mutant(
        "accuracy: a rate of many answers is the mean of their rates",
        f"{ROOM}/metrics.py",
        "return ratio(sum(part for part, _ in parts), sum(weight for _, weight in parts))",
        "return ratio(sum(part / weight for part, weight in parts), len(parts))",
        (f"{METRICS}::test_scores_of_many_answers",),
    ),
    Mutant(
        "accuracy: answer and reference change places",
        f"{ROOM}/metrics.py",
        "found = word_errors(reference, answer, language)",
        "found = word_errors(answer, reference, language)",
        (f"{METRICS}::test_word_errors_are_counted",),
    ),
    Mutant(
        "accuracy: ROUGE tells endings apart",
        f"{ROOM}/metrics.py",
        "use_stemmer=True",
        "use_stemmer=False",
        (f"{METRICS}::test_rouge_passes_over_case_punctuation_and_endings",),
    ),
    Mutant(
        "accuracy: what another sampler did not answer counts",
        f"{ROOM}/figures.py",
        "for place in sorted(answers) if place in common}",
        "for place in sorted(answers)}",
        (f"{FIGURES}::test_what_one_sampler_did_not_answer_counts_for_none",),
    ),
    Mutant(
        "accuracy: seconds are saved of our own",
        f"{ROOM}/figures.py",
        "1 - ours / theirs)",
        "theirs / ours - 1)",
        (f"{FIGURES}::test_time_in_sampling",),
    ),
    Mutant(
        "accuracy: the deviation over steps is their root mean square",
        f"{ROOM}/figures.py",
        "/ steps - mean * mean))",
        "/ steps))",
        (f"{FIGURES}::test_time_in_sampling",),
    ),
    Mutant(
        "accuracy: the baseline is that of another depth",
        f"{ROOM}/choosing.py",
        '        baseline = ""\n',
        "        baseline = found[0][0].candidate if found else str()\n",
        (f"{CLI}::test_depths_in_one_run",),
    ),
    Mutant(
        "accuracy: both scales have one sign",
        f"{ROOM}/choosing.py",
        'f"sampler.alpha={-scale!r}"',
        'f"sampler.alpha={-1e4!r}"',
        (f"{CLI}::test_samplers_beside_one_another",),
    ),
    Mutant(
        "accuracy: the cue is not asked",
        "spec_sdk/tasks/accuracy.py",
        r'turns=(f"{each.turns[0]}\n{self.config.cue}",)',
        "turns=each.turns",
        (f"{CLI}::test_the_cue_stands_below_the_prompt",),
    ),
    Mutant(
        "accuracy: time in sampling is all of verifying",
        "spec_sdk/bench/pipeline_candidate.py",
        'float(sum(cycle["verdict_s"] for cycle in cycles)),',
        'float(sum(cycle["verify_s"] for cycle in cycles)),',
        (f"{CLI}::test_samplers_beside_one_another",),
    ),
    Mutant(
        "accuracy: references of an interrupted run are written twice",
        "spec_sdk/tasks/accuracy.py",
        "if directory.found is None and app.save_prompts:",
        "if app.save_prompts:",
        (f"{CLI}::test_a_killed_run_goes_on",),
    ),
)

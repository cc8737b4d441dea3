"""A server that mixes, loses or miscounts, and log-probabilities of the wrong rows."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SCHEDULER = "spec_sdk/engine/scheduler.py"
TOLD_LOGITS = "spec_sdk/engine/told_logits.py"
OFFSETS = "spec_sdk/ops/logit_offsets.py"
OF_OFFSETS = "tests/losslessness/test_logit_offsets.py"
OF_LOGPROBS = "tests/api/test_logprobs.py"
OF_ANSWERS = "tests/serve/test_answers.py"
OF_LIMITS = "tests/serve/test_limits.py"
OF_TRACES = "tests/engine/test_step_trace.py"
OF_STEPS = "tests/api/test_trace.py"
OF_STOPS = "tests/api/test_stop_strings.py"

SERVING = (
    Mutant(
        "counting penalties: drafted tokens are free",
        OFFSETS,
        "for row, path in enumerate(paths):",
        "for row, path in enumerate([()] * len(paths)):",
        (OF_OFFSETS,),
    ),
    Mutant(
        "counting penalties: presence is paid again on the path",
        OFFSETS,
        "self._penalty(common[t] + n) - penalties.get(t, 0.0)",
        "self._penalty(n)",
        (OF_OFFSETS,),
    ),
    Mutant(
        "offsets are not applied",
        "spec_sdk/contracts/request.py",
        "if self._state.offsets is not None:",
        "if False:",
        (OF_LOGPROBS,),
    ),
    Mutant(
        "log-probabilities: of the first rows, not of the accepted path",
        TOLD_LOGITS,
        "own[turn.active.slot][turn.rows]",
        "own[turn.active.slot][: len(turn.rows)]",
        ("tests/engine/test_logprob_rows.py",),
    ),
    Mutant(
        "log-probabilities: of logits that were written to",
        TOLD_LOGITS,
        "turn.active.slot: turn.scores.logits_NV.clone()",
        "turn.active.slot: turn.scores.logits_NV",
        (OF_LOGPROBS,),
    ),
    Mutant(
        "log-probabilities: of all tokens, behind a stop string too",
        "spec_sdk/api/cut_cycle.py",
        'cut["logprobs"] = event["logprobs"][:kept]',
        "pass",
        (OF_LOGPROBS,),
    ),
    Mutant(
        "a stream that is closed within a step is cancelled there",
        "spec_sdk/api/serving.py",
        "while self._left and not self._depth:",
        "while self._left:",
        ("tests/api/test_stream.py",),
    ),
    Mutant(
        "what fails as a stop string ends a request ends all others",
        "spec_sdk/api/serving.py",
        "            answering.error = error\n\n    def _deliver",
        "            raise\n\n    def _deliver",
        (OF_STOPS,),
    ),
    Mutant(
        "a stop string in what was held back to the end is not found",
        "spec_sdk/api/answering.py",
        'self._reason = "stop" if self._stop.found else event["finish_reason"]',
        'self._reason = event["finish_reason"]',
        (f"{OF_STOPS}::test_a_stop_string_in_what_was_held_back_is_the_reason",),
    ),
    Mutant(
        "the answers of two prompts are mixed",
        "spec_sdk/serve/answering.py",
        "take(prompt * asked.n + part.sample, part)",
        "take(prompt + part.sample, part)",
        (OF_ANSWERS,),
    ),
    Mutant(
        "a place in the queue is never given back",
        "spec_sdk/serve/admission.py",
        "self.taken -= answers",
        "pass",
        (f"{OF_LIMITS}::test_a_full_queue_is_told_with_429",),
    ),
    Mutant(
        "a wrong key opens",
        "spec_sdk/serve/guard.py",
        'kind.lower() != b"bearer" or not any(known)',
        'kind.lower() != b"bearer"',
        (f"{OF_LIMITS}::test_keys",),
    ),
    Mutant(
        "a body that is too large: its sender is cut off while it sends",
        "spec_sdk/serve/guard.py",
        "self._and_then_the_rest(receive, watched) if refusal.status == 413 else watched",
        "watched",
        (f"{OF_LIMITS}::test_whoever_sends_a_large_body_at_once_reads_why_it_is_refused",),
    ),
    Mutant(
        "a body that is too large: all of it is read, however large",
        "spec_sdk/serve/guard.py",
        "while dropped < MOST_DROPPED * self._limits.max_body:",
        "while True:",
        (f"{OF_LIMITS}::test_no_more_than_enough_of_a_large_body_is_read",),
    ),
    Mutant(
        "traces: the target's probability is of the node's own row",
        "spec_sdk/engine/step_trace.py",
        "rows = [*one.tree.parent_N[1:], one.verdict.path[-1]]",
        "rows = [*range(1, one.tree.size), one.verdict.path[-1]]",
        (OF_TRACES,),
    ),
    Mutant(
        "traces: the path goes on behind the answer's end",
        "spec_sdk/engine/step_trace.py",
        "path=path[: one.emitted + 1]",
        "path=path",
        (OF_TRACES,),
    ),
    Mutant(
        "steps: a bonus token is called a correction",
        "spec_sdk/api/step.py",
        'return "correction" if trace.path[-1] in trace.parent_N else "bonus"',
        'return "correction"',
        (OF_STEPS,),
    ),
    Mutant(
        "steps: logs get the trees too",
        "spec_sdk/api/answering.py",
        'del event["trace"]',
        "pass",
        (f"{OF_STEPS}::test_logs_are_not_filled_with_trees",),
    ),
    Mutant(
        "a stream tells of trees that nobody asked for",
        "spec_sdk/serve/asking.py",
        "if body.stream_options is not None and body.stream_options.include_speculation:",
        "if body.stream_options is not None:",
        ("tests/serve/test_speculation_stream.py",),
    ),
)

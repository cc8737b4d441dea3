"""A server that mixes, loses or miscounts, and log-probabilities of the wrong rows."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SCHEDULER = "spec_sdk/engine/scheduler.py"
OFFSETS = "spec_sdk/ops/logit_offsets.py"
OF_OFFSETS = "tests/losslessness/test_logit_offsets.py"
OF_LOGPROBS = "tests/api/test_logprobs.py"
OF_ANSWERS = "tests/serve/test_answers.py"
OF_LIMITS = "tests/serve/test_limits.py"

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
        SCHEDULER,
        "own[turn.active.slot][turn.path]",
        "own[turn.active.slot][: len(turn.tokens)]",
        ("tests/engine/test_logprob_rows.py",),
    ),
    Mutant(
        "log-probabilities: of logits that were written to",
        SCHEDULER,
        "t.active.slot: t.scores.logits_NV.clone()",
        "t.active.slot: t.scores.logits_NV",
        (OF_LOGPROBS,),
    ),
    Mutant(
        "log-probabilities: of all tokens, behind a stop string too",
        "spec_sdk/api/answering.py",
        'event["logprobs"] = event["logprobs"][:kept]',
        "pass",
        (OF_LOGPROBS,),
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
)

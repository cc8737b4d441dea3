"""EasySpec's columns by task, from records that can be worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.support.task_rows import TaskRow, task_rows
from tests.bench.answers import answer, run_of


def spent(draft: float, verify: float, recover: float, **more: Any) -> dict[str, Any]:
    stages = {"draft": draft, "verify": verify, "recover": recover}
    return {"stage_s": stages, "decode_s": sum(stages.values()), "steps": 4, **more}


def records() -> list[dict[str, Any]]:
    plain, half = spent(0.0, 4.0, 0.0), {"drafted": 10, "accepted": 5}
    return [
        answer("vanilla", "a", 20, 9.0, task="one", **plain),
        answer("vanilla", "b", 20, 9.0, task="two", **plain),
        answer("fast", "a", 20, 9.0, task="one", **spent(1.0, 0.5, 0.5, **half)),
        answer("fast", "b", 20, 9.0, task="two", **spent(0.5, 0.25, 0.25, drafted=10, accepted=10)),
    ]


def rows_by(found: list[TaskRow]) -> dict[tuple[str, str], TaskRow]:
    return {(row.candidate, row.task): row for row in found}


def test_columns_by_hand() -> None:
    rows = rows_by(task_rows(run_of(records())))
    assert set(rows) == {(name, task) for name in ("vanilla", "fast") for task in ("one", "two", "all")}
    one, every = rows["fast", "one"], rows["fast", "all"]
    assert (one.draft_s, one.verify_s, one.total_s) == (5.0, 5.0, 10.0)
    assert (one.speedup, one.alpha, one.mean_accepted_tokens, one.prompts) == (2.0, 0.5, 5.0, 1)
    assert (one.tokens_per_second, one.variance) == (10.0, 0.0)
    assert (every.total_s, every.alpha) == (7.5, 0.75) and every.speedup == pytest.approx(8 / 3)
    # 10 and 20 tokens per second
    assert (every.tokens_per_second, every.variance) == (15.0, 25.0)
    assert rows["vanilla", "all"].alpha is None and rows["vanilla", "all"].speedup == 1.0


def test_only_what_all_answered_counts() -> None:
    rows = rows_by(task_rows(run_of(records()[:3])))
    assert ("fast", "two") not in rows and ("vanilla", "two") not in rows
    assert rows["vanilla", "all"].prompts == rows["fast", "all"].prompts == 1
    assert rows["fast", "all"].speedup == 2.0


def test_batches_have_no_stages_of_a_task() -> None:
    with pytest.raises(ValueError, match="batch size"):
        task_rows(run_of([answer("vanilla", "a", 8, 1.0, batch_size=2)], batch_sizes=[2]))

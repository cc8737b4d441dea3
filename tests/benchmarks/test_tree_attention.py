"""The tree attention benchmark, as its command line runs it on a machine without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.support.attention_report import cpu_aims, gpu_aims, growth, mask_aim, ratio

ROOT = Path(__file__).parents[2]


def test_a_smoke_run_on_the_cpu(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "report.json"
    command = [sys.executable, "-m", "benchmarks.tree_attention", "--quick", "--device", "cpu", "--output", str(output)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(output.read_text())
    assert report["schema_version"] == 1
    assert (report["device"], report["quick"]) == ("cpu", True)
    assert report["machine"] and report["torch"]
    assert len(report["cases"]) == 2
    for case in report["cases"]:
        assert case["left_out"] == {}, "a rival computed something else"
        value = ratio(case, "sdpa")
        assert value is not None and value > 0
        assert case["rivals"]["ours"]["mask_bytes"] == 4 * case["nodes"]
    small, large = report["memory"]
    assert large["sdpa"]["mask_bytes"] > 10 * small["sdpa"]["mask_bytes"]
    assert large["ours"]["mask_bytes"] == 4 * large["nodes"]
    assert large["ours"]["call_bytes"] >= large["ours"]["output_bytes"]
    results = {line["aim"]: line["result"] for line in report["aims"]}
    assert "not measured here" in results.values()
    assert all(aim in done.stdout for aim in results)


def measured(nodes: int, sdpa_s: float, again_s: float | None = None, **more: object) -> dict:
    rivals = {"ours": {"call_s": 1.0, "device_s": 0.5, "mask_bytes": 40 * nodes}, "sdpa": {"call_s": sdpa_s}}
    if again_s is not None:
        rivals["sdpa again"] = {"call_s": again_s}
    shape = {"batch": 10, "heads": 10, "kv_heads": 10, "head_dim": 64, "nodes": nodes, "prefix": 10}
    return {**shape, "dtype": "bfloat16", "tree": "random", "rivals": rivals, **more}


def test_times_of_the_device_are_compared_only_with_their_like() -> None:
    case = measured(256, 3.0)
    assert ratio(case, "sdpa") == 3.0
    case["rivals"]["sdpa"]["device_s"] = 2.0
    assert ratio(case, "sdpa") == 4.0
    assert ratio(case, "flex") is None


def test_a_gpu_aim_is_met_only_if_every_size_is() -> None:
    def sdpa_aim(*cases: dict) -> str:
        return gpu_aims(cases, None)[0]["result"]

    assert sdpa_aim() == "not measured here"
    assert sdpa_aim(measured(256, 2.1), measured(512, 2.5)) == "met"
    assert sdpa_aim(measured(256, 2.1), measured(512, 1.9)) == "missed"
    incomplete = measured(512, 2.5)
    del incomplete["rivals"]["sdpa"]
    assert sdpa_aim(measured(256, 2.1), incomplete) == "missed"


def test_slower_means_slower_by_more_than_noise() -> None:
    def small_aim(*cases: dict) -> str:
        return cpu_aims(cases, [])[0]["result"]

    assert small_aim(measured(16, 1.0, 1.0), measured(64, 0.99, 0.99)) == "met"
    assert small_aim(measured(16, 1.0, 1.0), measured(64, 0.9, 0.9)) == "missed"
    assert small_aim(measured(64, 0.9, 1.1)) == "met"
    assert small_aim(measured(256, 0.5)) == "not measured here"


def test_growth_and_mask_bytes() -> None:
    assert abs(growth([1, 2, 4], [5, 20, 80]) - 2) < 1e-9
    rows = [
        {"nodes": n, "ours": {"call_bytes": n, "mask_bytes": 0}, "sdpa": {"call_bytes": n * n, "mask_bytes": 0}}
        for n in (256, 512)
    ]
    assert cpu_aims([], rows)[1]["result"] == "met"
    swapped = [{"nodes": row["nodes"], "ours": row["sdpa"], "sdpa": row["ours"]} for row in rows]
    assert cpu_aims([], swapped)[1]["result"] == "missed"
    assert mask_aim([measured(256, 1.0)])["result"] == "met"
    assert mask_aim([measured(256, 1.0, masks=1)])["result"] == "missed"

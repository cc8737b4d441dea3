"""Latency tables: what is refused, in one line, and by which name."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec_sdk.errors import UserError
from spec_sdk.latency.table import Curve, load_table, parse_table

GOOD = """
layers: 4
unit: us
tensor_parallel:
  1:
    fixed: 10
    pre_attention: [Norm: 1, Matmul: 2]
    post_attention: {1K: 3, 2K: 4}
    flash_decode: {1K: 5, 2K: 7}
    speculative_receiver: 2
    link: 1
  2:
    tokens_per_second: 99
"""
STAGES = """fixed: 10
    pre_attention: [Norm: 1, Matmul: 2]
    post_attention: {1K: 3, 2K: 4}
"""
GROUP = STAGES + "    flash_decode: {1K: 5, 2K: 7}\n"


def test_units_ops_sums_and_links() -> None:
    step = parse_table(GOOD.replace("us", "ms"), "mine", "mine.yaml").groups[1].step(1536, 4)
    assert (step.fixed, step.per_layer, step.flash_decode) == (10_000, 6_500, 6_000)
    assert (step.sender, step.receiver) == (6_000, 3_000)


def test_a_curve_knows_no_more_than_its_ends() -> None:
    curve = Curve(((10, 1.0), (20, 3.0), (40, 3.5)))
    assert [curve.at(context) for context in (10, 15, 20, 30, 40)] == [1.0, 2.0, 3.0, 3.25, 3.5]
    for beyond in (9, 41):
        with pytest.raises(ValueError, match=str(beyond)):
            curve.at(beyond)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("fixed:", "fixd:", "tensor_parallel.1: unknown key 'fixd', did you mean 'fixed'?"),
        ("layers:", "leyers:", "unknown key 'leyers', did you mean 'layers'?"),
        ("layers: 4", "layers: four", "layers: 'four' is not a whole number of 1 or more"),
        ("unit: us", "unit: s", "unit: 's' is no unit"),
        ("unit: us", "", "unit is missing"),
        ("fixed: 10", "fixed: ten", "tensor_parallel.1.fixed: 'ten' is not a number of 0 or more"),
        ("fixed: 10", "fixed: 1e", "tensor_parallel.1.fixed: '1e' is not a number of 0 or more"),
        ("fixed: 10", "fixed: -1", "tensor_parallel.1.fixed: -1 is not a number of 0 or more"),
        ("fixed: 10", "fixed: .nan", "tensor_parallel.1.fixed: nan is not a number of 0 or more"),
        ("fixed: 10", "fixed: yes", "tensor_parallel.1.fixed: True is not a number of 0 or more"),
        ("fixed: 10", "", "tensor_parallel.1: fixed is missing"),
        ("Matmul: 2", "Matmul", "tensor_parallel.1.pre_attention[1]: 'Matmul' is not one op and its time"),
        ("{1K: 5, 2K: 7}", "{1KB: 5}", "tensor_parallel.1.flash_decode.1KB: '1KB' is not a context length"),
        ("{1K: 5, 2K: 7}", "{8K: 5}", "tensor_parallel.1: no context is covered by all its times"),
        ("    flash_decode: {1K: 5, 2K: 7}\n", "", "tensor_parallel.1: flash_decode is missing"),
        ("    pre_attention: [Norm: 1, Matmul: 2]\n", "", "pre_attention and post_attention is missing"),
        ("fixed: 10", "fixed: 10\n    per_layer: 3", "per_layer: pre_attention is given too"),
        ("fixed: 10", "tokens_per_second: 1e6", "tokens_per_second: at 1K a token takes less time than its 4 layers"),
        (STAGES, "fixed: 0\n    per_layer: 0\n", "at 1K fixed and the layers without attention take 0"),
        (STAGES, "fixed: 0\n    per_layer: {1K: 2, 2K: 0}\n", "at 2K fixed and the layers without attention take 0"),
        (GROUP, "fixed: 0\n    per_layer: 0\n    flash_decode: 5\n", "tensor_parallel.1: fixed and the layers without"),
        (GROUP, "tokens_per_second: 1e6\n    per_layer: 1\n    flash_decode: 0\n", "a token takes less time than its"),
        ("  2:", "  two:", "tensor_parallel.two: 'two' is not a whole number"),
        ("layers: 4", "layers: [4", "not YAML"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(UserError) as caught:
        parse_table(GOOD.replace(old, new), "mine", "mine.yaml")
    assert str(caught.value).startswith("mine.yaml") and message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "- 1", "3", "layers: 1\nunit: us\ntensor_parallel: {}", "\x00"])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^mine\.yaml"):
        parse_table(text, "mine", "mine.yaml")


def test_unknown_names_and_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown table 'h10', did you mean 'h100'"):
        load_table("h10")
    with pytest.raises(UserError, match="does not exist"):
        load_table(str(tmp_path / "none.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"title: \xe9\n")
    with pytest.raises(UserError, match="no UTF-8"):
        load_table(str(tmp_path / "latin.yaml"))

"""Options of speculation on attention are refused where nothing speculates on it, if somebody typed them."""

from __future__ import annotations

import pytest

from spec_sdk.api.engine import Engine
from spec_sdk.bench.chosen import chosen_pipelines, chosen_vanilla
from spec_sdk.config.composing import settings_for
from spec_sdk.errors import UserError
from spec_sdk.pipeline import _attention_level, build_pipeline
from spec_sdk.registry import Registry


@pytest.mark.parametrize("pipeline", ["suffix", "vanilla"])
@pytest.mark.parametrize(
    "option",
    ["attention_verifier.threshold=0.2", "attention_verifier=static", "error_bounds=true"],
)
def test_they_have_no_effect_without_a_predictor(pipeline: str, option: str) -> None:
    message = f"^{option.partition('=')[0]}: it has no effect with predictor=none, .* predictor=attention_sink"
    with pytest.raises(UserError, match=message):
        build_pipeline(settings_for([f"pipeline={pipeline}", option]), Registry.discover())
    with pytest.raises(UserError, match=message):
        Engine.from_pipeline(pipeline, overrides=[option])


def test_they_are_refused_of_candidates_before_any_is_loaded() -> None:
    with pytest.raises(UserError, match=r"^task\.pipelines: attention_verifier\.threshold: it has no effect"):
        chosen_pipelines(["suffix attention_verifier.threshold=0.2"], chosen_vanilla([]), [], "task.pipelines")


@pytest.mark.parametrize("overrides", [["predictor=none"], ["predictor=none", "error_bounds=false"]])
def test_those_of_a_pipeline_whose_predictor_was_taken_out_are_nobodys(overrides: list[str]) -> None:
    settings = settings_for(["pipeline=alspec", *overrides])
    assert _attention_level(settings, Registry.discover()) is None


def test_they_are_heard_where_there_is_one() -> None:
    settings = settings_for(["predictor=attention_sink", "attention_verifier.threshold=0.2", "error_bounds=true"])
    level = _attention_level(settings, Registry.discover())
    assert level is not None and level.estimate is not None

"""Which layers of hybrid models have attention that can be predicted, and what is said of the others."""

from __future__ import annotations

import re

import pytest

from spec_sdk.errors import UserError
from spec_sdk.model.predictable import check_predictable
from tests.recurrent.tiny_models import config_of


def test_a_nemotron_s_attention_alone() -> None:
    config = config_of("nemotron_h")
    check_predictable(config, 6, [4], "attention_sink")
    for layer, what in ((1, "no attention"), (2, "a state in the place of attention")):
        told = f"layer {layer} of this nemotron_h model has {what}, which is not predicted; leave such layers out "
        with pytest.raises(UserError, match=re.escape(f"{told}(attention_verifier.never=[0,1,2,3,5])")):
            check_predictable(config, 6, [layer], "attention_sink")


def test_no_layer_of_a_falcon_h1() -> None:
    told = "layer 0 of this falcon_h1 model has a state beside attention, which is not predicted; use predictor=none"
    with pytest.raises(UserError, match=re.escape(told)):
        check_predictable(config_of("falcon_h1"), 4, [0], "attention_sink")

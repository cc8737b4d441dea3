"""Is an attention verifier's verdict on predicted attention sound?

Legend: B requests, N live rows.
"""

from __future__ import annotations

import torch

from spec_sdk.contracts import GUARANTEES, SPACES, AttentionVerdict, AttentionVerifier, relative_error
from spec_sdk.errors import UserError
from spec_sdk.testing.check import Check, run_checks
from spec_sdk.testing.waiting import WouldWait, no_waiting

LAYERS = 4
ERRORS = (0.0, 1e-3, 0.03, 0.3, 0.9, 3.0)
"""Relative errors of rows, from none at all to worse than predicting nothing."""


def check_attention_verifier(verifier: AttentionVerifier, *, layers: int = LAYERS, seed: int = 0) -> None:
    """Raise AssertionError unless ``verifier`` behaves for a target of so many ``layers``.

    Its ``space`` is a known one; ``check`` accepts the layers. A verdict has one answer per request and one error per
    row, the relative error ‖Â − A‖ / ‖A‖; it waits for no device. A request's verdict does not depend on those beside
    it, one with several rows hits only if each of its rows would alone, and the same norms give the same verdict.
    """
    run_checks(attention_verifier_checks(verifier, layers=layers, seed=seed))


def attention_verifier_checks(verifier: AttentionVerifier, *, layers: int = LAYERS, seed: int = 0) -> list[Check]:
    """The checks of :func:`check_attention_verifier`, one by one."""
    return [
        Check("space, guarantee and layers are declared", lambda: _check_facts(verifier, layers)),
        Check(
            "relative errors by row; a hit only where every row hits, whatever the requests beside",
            lambda: _check_verdicts(verifier, layers, seed),
        ),
    ]


def _check_facts(verifier: AttentionVerifier, layers: int) -> str:
    assert verifier.space in SPACES, f"space {verifier.space!r} is none of {', '.join(SPACES)}"
    assert verifier.guarantee in GUARANTEES, f"guarantee {verifier.guarantee!r} is none of {', '.join(GUARANTEES)}"
    try:
        verifier.check(layers)
    except UserError as error:
        raise AssertionError(f"it refuses a target of {layers} layers: {error}") from error
    answers = [verifier.speculates(layer) for layer in range(layers)]
    wrong = [layer for layer, answer in enumerate(answers) if not isinstance(answer, bool)]
    assert not wrong, f"speculates({wrong[0]}) is {answers[wrong[0]]!r}, which is neither True nor False"
    return f"speculates on {sum(answers)} of {layers} layers"


def _check_verdicts(verifier: AttentionVerifier, layers: int, seed: int) -> str:
    rng = torch.Generator().manual_seed(seed)
    hits = 0
    for layer in range(layers):
        for rows in (1, 3):
            norm_sq_BN = 0.1 + 10 * torch.rand((6, rows), generator=rng)
            worst = torch.tensor(ERRORS)[torch.randint(len(ERRORS), (6, rows), generator=rng)]
            worst[0], worst[1] = 0.0, ERRORS[-1]
            difference_sq_BN = worst.square() * norm_sq_BN
            hits += int(_verdict(verifier, layer, difference_sq_BN, norm_sq_BN).hit_B.sum())
    return f"{layers} layers, {hits} hits"


def _verdict(
    verifier: AttentionVerifier, layer: int, difference_sq_BN: torch.Tensor, norm_sq_BN: torch.Tensor
) -> AttentionVerdict:
    """The verdict on some requests, held against those on each request and each row alone."""
    where = f"layer {layer}, {norm_sq_BN.shape[0]} requests of {norm_sq_BN.shape[1]} rows"
    given = difference_sq_BN.clone(), norm_sq_BN.clone()
    try:
        with no_waiting():
            verdict = verifier.verify(layer, *given)
    except WouldWait as error:
        raise AssertionError(f"{where}: its verdict waits for the device: {error}") from error
    assert isinstance(verdict, AttentionVerdict), f"{where}: verify returned {verdict!r}, which is no verdict"
    assert torch.equal(given[0], difference_sq_BN) and torch.equal(given[1], norm_sq_BN), (
        f"{where}: verify wrote to the norms that it was given"
    )
    hit_B, error_BN = verdict.hit_B, verdict.error_BN
    assert hit_B.shape == norm_sq_BN.shape[:1] and hit_B.dtype == torch.bool, (
        f"{where}: hit_B is {hit_B.dtype} of shape {list(hit_B.shape)}, not one truth value per request"
    )
    assert error_BN.shape == norm_sq_BN.shape, f"{where}: error_BN has shape {list(error_BN.shape)}"
    off = float((error_BN - relative_error(difference_sq_BN, norm_sq_BN)).abs().max())
    assert off < 1e-4, f"{where}: its errors are off the relative error by {off:.1e}"
    again_B = verifier.verify(layer, *given).hit_B
    assert torch.equal(hit_B, again_B), f"{where}: the same norms gave two verdicts"
    for b in range(hit_B.shape[0]):
        pair = difference_sq_BN[b : b + 1], norm_sq_BN[b : b + 1]
        alone = bool(verifier.verify(layer, *pair).hit_B)
        errors = ", ".join(f"{error:.3f}" for error in error_BN[b].tolist())
        assert bool(hit_B[b]) == alone, (
            f"{where}: request {b}, of relative errors {errors}, {'hits' if alone else 'misses'} alone and "
            f"{'misses' if alone else 'hits'} beside the others"
        )
        each = [bool(verifier.verify(layer, *(t[:, n : n + 1] for t in pair)).hit_B) for n in range(pair[0].shape[1])]
        assert all(each) or not alone, (
            f"{where}: request {b} hits with relative errors {errors}, though a row of it alone does not"
        )
    return verdict

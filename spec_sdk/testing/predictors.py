"""Is what an attention predictor returns attention over some of the keys, with the right softmax statistics?

Legend: B batch, N queries, H query heads, G KV heads, R = H/G, D head dim, S keys, P prefix length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.contracts import PartialAttention, Predictor
from spec_sdk.ops import Ops
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.testing.check import Check, run_checks
from spec_sdk.tree import TreeBuilder

KV_HEADS, QUERIES_PER_KV_HEAD = 2, 3
TOLERANCE = 1e-4


def check_predictor(
    predictor: Predictor, *, prefixes: Sequence[int] = (1, 7, 64, 300, 700), ops: Ops | None = None, seed: int = 0
) -> None:
    """Raise AssertionError unless ``predictor`` predicts soundly for a single token, a chain and a tree of tokens.

    For every prefix length of ``prefixes``, on random queries, keys and values: the prediction is attention over some
    of the keys that the query may see; ``m`` is their largest score and ``l`` the sum of exp(score − m) over them, so
    that combined with the keys left out it gives exact attention; and where ``always_exact`` says that nothing is left
    out, it is the exact attention. ``predictor`` is told to forget everything (``truncate(0)``) before each pass.

    Then it serves one request, from the longest of ``prefixes`` on, whose tokens grow, branch and are rolled back: the
    same must hold there, and what ``speculate`` returns must be that prediction beside the exact attention, with their
    true distance. Choose ``prefixes`` on both sides of where ``always_exact`` changes.
    """
    run_checks(predictor_checks(predictor, prefixes=prefixes, ops=ops, seed=seed))


def predictor_checks(
    predictor: Predictor, *, prefixes: Sequence[int] = (1, 7, 64, 300, 700), ops: Ops | None = None, seed: int = 0
) -> list[Check]:
    """The checks of :func:`check_predictor`, one by one."""
    ops = ops or Ops()
    rng = torch.Generator().manual_seed(seed)

    def passes() -> str:
        for prefix in prefixes:
            for shape, mask in _masks(prefix).items():
                predictor.truncate(0)
                q_BNHD, k_BGSD = _random_pass(mask, mask.keys, rng)
                _check_pass(predictor, ops, q_BNHD, k_BGSD, mask, rng, f"prefix {prefix}, {shape}")
        exact = [prefix for prefix in prefixes if predictor.always_exact(prefix)]
        return f"prefixes {', '.join(map(str, prefixes))}, of which {len(exact)} always exact"

    def request() -> str:
        predictor.truncate(0)
        _check_request(predictor, ops, max(prefixes), rng)
        return f"from {max(prefixes)} tokens on"

    return [
        Check("attention over keys in sight, with the softmax statistics of those", passes),
        Check("follows the cache: tokens that stay, trees that branch, roll backs", request),
    ]


def _masks(prefix: int) -> dict[str, AttentionMask]:
    tree = TreeBuilder(0)
    for parent, token in ((0, 1), (0, 2), (1, 3), (2, 4), (1, 5), (3, 6)):
        tree.add(parent, token, "chosen")
    cpu = torch.device("cpu")
    return {
        "one token": AttentionMask.tree(prefix, (1,), cpu),
        "a chain": AttentionMask.chain(prefix, 4, cpu),
        "a tree": AttentionMask.tree(prefix, tree.build().tree.end_N, cpu),
    }


def _check_request(predictor: Predictor, ops: Ops, prefix: int, rng: torch.Generator) -> None:
    """One request: six passes over a tree, of which paths are kept, with two roll backs between them: by a third, and
    to where the predictor barely predicts.
    """
    paths = ((0,), (0, 2, 5), (0, 1), (0,), (0, 2), (0,))
    # a value has room for the weight of every key
    D = prefix + sum(map(len, paths)) + _masks(prefix)["a tree"].queries
    kept_k, kept_v = (torch.randn((1, KV_HEADS, prefix, D), generator=rng) for _ in range(2))
    for step, path in enumerate(paths):
        if step in (3, 5):
            few = next((length for length in range(1, prefix) if not predictor.always_exact(length)), prefix // 2)
            prefix = prefix - prefix // 3 if step == 3 else few
            predictor.truncate(prefix)
            kept_k, kept_v = kept_k[:, :, :prefix], kept_v[:, :, :prefix]
        mask = _masks(prefix)["a tree"]
        where = f"a request at prefix {prefix}"
        q_BNHD, new_k = _random_pass(mask, D, rng)
        new_k = new_k[:, :, prefix:]
        new_v = torch.randn(new_k.shape, generator=rng)
        k_BGSD, v_BGSD = torch.cat((kept_k, new_k), 2), torch.cat((kept_v, new_v), 2)
        _check_pass(predictor, ops, q_BNHD, k_BGSD, mask, rng, where)
        if not predictor.always_exact(prefix):
            # as large as values of 16 numbers: the rounding of squares grows with what is summed
            _check_speculation(predictor, ops, q_BNHD, k_BGSD, 4 * v_BGSD / D**0.5, mask, where)
        predictor.commit(path)
        kept_k, kept_v = (
            torch.cat((kept, new[:, :, list(path)]), 2) for kept, new in ((kept_k, new_k), (kept_v, new_v))
        )
        prefix += len(path)


def _check_speculation(
    predictor: Predictor,
    ops: Ops,
    q_BNHD: torch.Tensor,
    k_BGSD: torch.Tensor,
    v_BGSD: torch.Tensor,
    mask: AttentionMask,
    where: str,
) -> None:
    predicted = predictor.predicted(0, q_BNHD, k_BGSD, v_BGSD, mask, ops).o_BNHD
    announced: list[torch.Tensor] = []
    given = predictor.speculate(0, q_BNHD, k_BGSD, v_BGSD, mask, ops, announced.append)
    assert len(announced) == 1, f"{where}: speculate announced {len(announced)} predictions"
    assert torch.equal(announced[0], given.predicted_BNHD), f"{where}: it announced another prediction than it returned"
    exact = ops.tree_attention(q_BNHD, k_BGSD, v_BGSD, mask)
    for name, found, expected in (
        ("prediction", given.predicted_BNHD, predicted),
        ("exact attention", given.exact_BNHD, exact),
        ("squared difference", given.difference_sq_BN, (predicted - exact).square().sum((-1, -2))),
        ("squared norm", given.norm_sq_BN, exact.square().sum((-1, -2))),
    ):
        worst = float((found - expected).abs().max())
        assert worst < TOLERANCE, f"{where}: the {name} that speculate returns is off by {worst:.1e}"
    if predictor.chunk:
        assert given.chunk_lse_BNHC is not None, f"{where}: it wants statistics (chunk), but speculate returns none"
        expected = ops.chunk_lse(q_BNHD, k_BGSD[:, :, : mask.prefix], predictor.chunk)
        worst = float((given.chunk_lse_BNHC - expected).abs().max())
        assert worst < TOLERANCE, f"{where}: the statistics that speculate returns are off by {worst:.1e}"
        predictor.learn(0, given.chunk_lse_BNHC)


def _random_pass(mask: AttentionMask, dim: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys of a pass."""
    q_BNHD = torch.randn((1, mask.queries, KV_HEADS * QUERIES_PER_KV_HEAD, dim), generator=rng)
    return q_BNHD, torch.randn((1, KV_HEADS, mask.keys, dim), generator=rng)


def _check_pass(
    predictor: Predictor,
    ops: Ops,
    q_BNHD: torch.Tensor,
    k_BGSD: torch.Tensor,
    mask: AttentionMask,
    rng: torch.Generator,
    where: str,
) -> None:
    """``q_BNHD`` and ``k_BGSD`` have D >= S."""
    S, D = k_BGSD.shape[2:]
    # with the identity as values, the output is the attention weights: it shows which keys were used
    identity_BGSD = torch.eye(S, D).expand(1, KV_HEADS, S, D).contiguous()
    prediction = predictor.predicted(0, q_BNHD, k_BGSD, identity_BGSD, mask, ops)
    exact = ops.tree_attention(q_BNHD, k_BGSD, identity_BGSD, mask)
    _check_statistics(prediction, q_BNHD, k_BGSD, mask, exact[..., :S], where)
    if predictor.always_exact(mask.prefix):
        worst = float((prediction.o_BNHD - exact).abs().max())
        assert worst < TOLERANCE, f"{where}: always_exact, but the prediction is off by {worst:.1e}"
    v_BGSD = torch.randn((1, KV_HEADS, S, D), generator=rng)
    once, again = (predictor.predicted(0, q_BNHD, k_BGSD, v_BGSD, mask, ops) for _ in range(2))
    assert torch.equal(once.o_BNHD, again.o_BNHD), f"{where}: the same pass was predicted in two ways"
    weights_BHNS = prediction.o_BNHD[..., :S].transpose(1, 2)
    weighted_BHND = weights_BHNS @ v_BGSD.repeat_interleave(QUERIES_PER_KV_HEAD, dim=1)
    worst = float((once.o_BNHD - weighted_BHND.transpose(1, 2)).abs().max())
    assert worst < TOLERANCE, f"{where}: the prediction is no weighted mean of the values (off by {worst:.1e})"


def _check_statistics(
    prediction: PartialAttention,
    q_BNHD: torch.Tensor,
    k_BGSD: torch.Tensor,
    mask: AttentionMask,
    exact_BNHS: torch.Tensor,
    where: str,
) -> None:
    k_BHSD = k_BGSD.double().repeat_interleave(QUERIES_PER_KV_HEAD, dim=1)
    score_BNHS = torch.einsum("bnhd,bhsd->bnhs", q_BNHD.double(), k_BHSD) * q_BNHD.shape[-1] ** -0.5
    visible_NS = torch.cat((torch.ones(mask.queries, mask.prefix, dtype=torch.bool), mask.visible_NT()), dim=1)
    visible = visible_NS[None, :, None, :]
    weight_BNHS = prediction.o_BNHD[..., : mask.keys]
    used = weight_BNHS > 0
    assert not bool((used & ~visible).any()), f"{where}: a query attends to keys that it must not see"
    seen = score_BNHS.masked_fill(~used, float("-inf"))
    m_BNH = seen.amax(-1)
    assert torch.allclose(prediction.m_BNH.double(), m_BNH, atol=TOLERANCE), (
        f"{where}: m is not the largest score of the keys used"
    )
    l_BNH = torch.exp(seen - m_BNH[..., None]).sum(-1)
    assert torch.allclose(prediction.l_BNH.double(), l_BNH, rtol=TOLERANCE), (
        f"{where}: l is not the sum of exp(score - m) over the keys used"
    )
    rest_BNHS = torch.exp(score_BNHS - m_BNH[..., None]).masked_fill(used | ~visible, 0.0)
    whole_BNHS = weight_BNHS * prediction.l_BNH[..., None] + rest_BNHS
    combined_BNHS = whole_BNHS / (prediction.l_BNH + rest_BNHS.sum(-1))[..., None]
    worst = float((combined_BNHS - exact_BNHS).abs().max())
    assert worst < TOLERANCE, f"{where}: combined with the keys left out it is off exact attention by {worst:.1e}"

"""Predictors against their definitions, written densely, and following a cache that grows, branches and rolls back.

Legend: B batch, N queries, H query heads, G KV heads, R = H/G, D head dim, S keys, P prefix length, C chunks.
"""

from __future__ import annotations

import pytest
import torch

from spec_sdk.contracts import PartialAttention, Predictor
from spec_sdk.errors import UserError
from spec_sdk.ops import Ops
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.testing import check_predictor
from spec_sdk_predictors.attention_sink import AttentionSink, AttentionSinkConfig
from spec_sdk_predictors.h2o import H2O, H2OConfig
from spec_sdk_predictors.quest import Quest, QuestConfig
from tests.support.configured import config_of

G, R, D = 2, 3, 16
CPU = torch.device("cpu")


class Tensors:
    """Random queries, keys and values for one tree of three nodes (a root and two children) after a prefix."""

    def __init__(self, prefix: int, seed: int = 0, end_N: tuple[int, ...] = (3, 2, 3)) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.mask = AttentionMask.tree(prefix, end_N, CPU)
        self.q = torch.randn((1, self.mask.queries, G * R, D), generator=rng)
        self.k, self.v = (torch.randn((1, G, self.mask.keys, D), generator=rng) for _ in range(2))

    def dense(self, seen_GP: torch.Tensor) -> torch.Tensor:
        """Attention over these keys of the prefix and a query's own ancestors: [B, N, H, D]."""
        seen_HNP = seen_GP.repeat_interleave(R, 0)[:, None].expand(-1, self.mask.queries, -1)
        visible = torch.cat((seen_HNP, self.mask.visible_NT().expand(G * R, -1, -1)), -1)
        k, v = (x.repeat_interleave(R, 1) for x in (self.k, self.v))
        return torch.nn.functional.scaled_dot_product_attention(
            self.q.transpose(1, 2), k, v, attn_mask=visible[None]
        ).transpose(1, 2)


def predicted(predictor: Predictor, given: Tensors, layer: int = 0) -> torch.Tensor:
    return predictor.predict(layer, given.q, given.k, given.v, given.mask, Ops()).o_BNHD


@pytest.mark.parametrize(
    "predictor",
    [
        Quest(QuestConfig(8, 4)),
        Quest(QuestConfig(9, 4)),
        Quest(QuestConfig(128, 16)),
        H2O(H2OConfig(8)),
        H2O(H2OConfig(8, 3)),
        AttentionSink(AttentionSinkConfig(8)),
        AttentionSink(AttentionSinkConfig(first=2, last=15)),
        AttentionSink(AttentionSinkConfig(first=0, last=17)),
        AttentionSink(AttentionSinkConfig(size=9, last=1)),
    ],
)
def test_they_conform(predictor: Predictor) -> None:
    check_predictor(predictor, prefixes=(1, 7, 16, 17, 19, 40, 257, 300))


@pytest.mark.parametrize(
    ("config", "first", "last"),
    [
        (AttentionSinkConfig(), 128, 128),
        (AttentionSinkConfig(size=20), 20, 20),
        (AttentionSinkConfig(first=4, last=70), 4, 70),
        (AttentionSinkConfig(first=0, last=70), 0, 70),
        (AttentionSinkConfig(size=20, first=4), 4, 20),
        (AttentionSinkConfig(size=20, last=4), 20, 4),
        (AttentionSinkConfig(size=20, first=20, last=4), 20, 4),
    ],
)
@pytest.mark.parametrize("prefix", [24, 74, 75, 300])
@pytest.mark.parametrize("queries", [3, 300])
def test_a_sink_is_plain_attention_over_its_two_ends(
    config: AttentionSinkConfig, first: int, last: int, prefix: int, queries: int
) -> None:
    given = Tensors(prefix, end_N=(3, 2, 3) if queries == 3 else tuple([queries] * queries))
    seen_GP = torch.zeros(G, prefix, dtype=torch.bool)
    seen_GP[:, :first] = seen_GP[:, max(0, prefix - last) :] = True
    sink = AttentionSink(config)
    expected, exact = given.dense(seen_GP), given.dense(torch.ones(G, prefix, dtype=torch.bool))
    assert sink.always_exact(prefix) == bool(seen_GP.all())
    assert torch.allclose(predicted(sink, given), expected, atol=1e-5)
    found = sink.speculate(0, given.q, given.k, given.v, given.mask, Ops())
    assert torch.allclose(found.predicted_BNHD, expected, atol=1e-5)
    assert torch.allclose(found.exact_BNHD, exact, atol=1e-5)


@pytest.mark.parametrize("size", [1, 5, 16, 40])
def test_one_reading_of_the_keys_gives_prediction_and_exact_attention(size: int) -> None:
    """Over one and over several blocks of queries, against the prediction alone and against plain attention."""
    for queries in (1, 300):
        mask = AttentionMask.chain(60, queries, CPU)
        rng = torch.Generator().manual_seed(size)
        q = torch.randn((1, queries, G * R, D), generator=rng)
        k, v = (torch.randn((1, G, mask.keys, D), generator=rng) for _ in range(2))
        found = Ops().speculative_attention(q, k, v, mask, size)
        sink = AttentionSink(AttentionSinkConfig(size)).predict(0, q, k, v, mask, Ops()).o_BNHD
        exact = Ops().tree_attention(q, k, v, mask)
        assert (found.predicted_BNHD - sink).abs().max() < 1e-5
        assert (found.exact_BNHD - exact).abs().max() < 1e-5
        difference_sq = (sink - exact).square().sum((-1, -2))
        assert torch.allclose(found.difference_sq_BN, difference_sq, atol=1e-5)
        assert torch.allclose(found.norm_sq_BN, exact.square().sum((-1, -2)), rtol=1e-4)
        assert (difference_sq.max() > 1e-2) == (size < 30)


def test_norms_are_taken_before_rounding() -> None:
    given = Tensors(60)
    q, k, v = (x.bfloat16() for x in (given.q, given.k, given.v))
    low = Ops().speculative_attention(q, k, v, given.mask, 30)
    assert low.predicted_BNHD.dtype == low.exact_BNHD.dtype == torch.bfloat16
    assert low.norm_sq_BN.dtype == torch.float32
    # the whole prefix is seen, so that the two are one computation
    assert low.difference_sq_BN.abs().max() == 0


class PredictsOnly(Predictor):
    """A third party's predictor: the last four keys, and nothing but what the contract demands."""

    name = "predicts_only"

    def always_exact(self, prefix: int) -> bool:
        return prefix <= 4

    def predict(self, layer, q_BNHD, k_BGSD, v_BGSD, mask, ops) -> PartialAttention:  # type: ignore[no-untyped-def]
        first = max(0, mask.prefix - 4)
        return ops.selected_attention(q_BNHD, k_BGSD[:, :, first:], v_BGSD[:, :, first:], mask)


def test_a_predictor_that_only_predicts_is_enough() -> None:
    check_predictor(PredictsOnly(None), prefixes=(1, 4, 5, 60))


def test_a_predictor_that_forgets_to_return_its_statistics_is_found_out() -> None:
    class Wants(AttentionSink):
        chunk = 2

    with pytest.raises(AssertionError, match="wants statistics"):
        check_predictor(Wants(AttentionSinkConfig(4)), prefixes=(60,))


def test_quest_takes_the_pages_with_the_highest_bounds() -> None:
    given, page = Tensors(62, end_N=(1,)), 4
    pages = given.k[:, :, :60].reshape(G, 15, page, D)
    low, high = pages.amin(2), pages.amax(2)
    seen = torch.zeros(G, 62, dtype=torch.bool)
    # 20 keys: the last complete page and the incomplete one are seen, three more pages are picked
    seen[:, 56:] = True
    for g in range(G):
        mass = torch.zeros(14)
        for head in range(g * R, (g + 1) * R):
            q = given.q[0, 0, head]
            bound = torch.maximum(q * low[g], q * high[g]).sum(-1)[:14]
            mass += torch.softmax(bound / D**0.5, 0)
        for chosen in mass.topk(3).indices.tolist():
            seen[g, chosen * page : (chosen + 1) * page] = True
    assert int(seen.sum(1).max()) <= 20
    assert (predicted(Quest(QuestConfig(10, page)), given) - given.dense(seen)).abs().max() < 1e-5
    assert not torch.equal(seen[0], seen[1])


def test_quest_finds_the_key_that_matters() -> None:
    """A key that takes all attention lies in the middle, where attention sink does not look."""
    given = Tensors(200, end_N=(1,))
    given.k[:, :, 101] = given.q.view(G, R, D).sum(1) * 20
    exact = Ops().tree_attention(given.q, given.k, given.v, given.mask)
    sink = predicted(AttentionSink(AttentionSinkConfig(24)), given)
    assert (predicted(Quest(QuestConfig(24, 8)), given) - exact).norm() < 0.2 * (sink - exact).norm()


def test_quest_keeps_bounds_in_step_with_the_cache() -> None:
    """After a roll back and other keys it predicts as a fresh one does; nothing before the roll back is read again."""
    quest = Quest(QuestConfig(12, 4))
    before = Tensors(60, seed=1)
    predicted(quest, before)
    quest.truncate(41)
    after = Tensors(80, seed=2)
    after.k[:, :, :41], after.v[:, :, :41] = before.k[:, :, :41], before.v[:, :, :41]
    assert torch.equal(predicted(quest, after), predicted(Quest(QuestConfig(12, 4)), after))
    after.k[:, :, :40] = 7.0
    assert torch.equal(quest._bounds[0][1][:, :, :10], before.k[:, :, :40].reshape(1, G, 10, 4, D).amax(3))


def weights(given: Tensors) -> torch.Tensor:
    """Softmax over the committed keys only: [N, H, P]."""
    k = given.k[0, :, : given.mask.prefix].repeat_interleave(R, 0)
    return torch.softmax(torch.einsum("nhd,hpd->nhp", given.q[0], k) / D**0.5, -1)


@pytest.mark.parametrize("chunk", [1, 3])
def test_h2o_counts_the_attention_of_committed_queries(chunk: int) -> None:
    """Two passes over a tree with a branch dropped in each, then the keys that a dense count says are heaviest."""
    size, predictor = 9, H2O(H2OConfig(9, chunk))
    count_GP = torch.zeros(G, 80)
    prefix = 50
    for seed, path in ((1, (0, 2)), (2, (0,))):
        given = Tensors(prefix, seed)
        attention = predictor.speculate(0, given.q, given.k, given.v, given.mask, Ops())
        assert attention.chunk_lse_BNHC is not None
        predictor.learn(0, attention.chunk_lse_BNHC)
        predictor.commit(path)
        count_GP[:, :prefix] += weights(given)[list(path)].sum(0).view(G, R, prefix).sum(1)
        prefix += len(path)
    given = Tensors(prefix, 3)
    candidates = -(-(prefix - size) // chunk)
    count_GC = count_GP[:, : candidates * chunk].view(G, candidates, chunk).sum(-1)
    seen = torch.zeros(G, prefix, dtype=torch.bool)
    seen[:, candidates * chunk :] = True
    for g in range(G):
        for heavy in count_GC[g].topk(size // chunk).indices.tolist():
            seen[g, heavy * chunk : (heavy + 1) * chunk] = True
    assert (predicted(predictor, given) - given.dense(seen)).abs().max() < 1e-5
    assert not torch.equal(seen[0], seen[1])


def test_h2o_guesses_as_attention_sink_until_it_has_learned() -> None:
    given = Tensors(50)
    sink = predicted(AttentionSink(AttentionSinkConfig(9)), given)
    h2o = H2O(H2OConfig(9))
    assert torch.allclose(predicted(h2o, given), sink, atol=1e-6)
    statistics = h2o.speculate(0, given.q, given.k, given.v, given.mask, Ops()).chunk_lse_BNHC
    assert statistics is not None
    h2o.learn(0, statistics)
    # until a path is committed, nothing is known of which queries count
    assert torch.allclose(predicted(h2o, given), sink, atol=1e-6)
    h2o.commit([0])
    assert (predicted(h2o, given) - sink).abs().max() > 1e-3
    # a roll back also drops what the last pass found and nobody committed
    h2o.learn(0, statistics)
    h2o.truncate(0)
    h2o.commit([0])
    assert torch.allclose(predicted(h2o, given), sink, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("attention_sink", {"size": 0}, "^predictor.size: 0 must be 1 or more$"),
        ("attention_sink", {"first": -1}, "^predictor.first: -1 must be 0 or more$"),
        ("attention_sink", {"last": 0}, "^predictor.last: 0 must be 1 or more$"),
        (
            "attention_sink",
            {"size": 64, "first": 4, "last": 252},
            "^predictor.size: 64 contradicts predictor.first=4 and predictor.last=252, .* leave size out$",
        ),
        ("quest", {"size": 16, "page": 16}, "^predictor.page: 16 leaves no page .* use 10 or less"),
        ("quest", {"page": 0}, "^predictor.page: 0 must be 1 or more$"),
        ("h2o", {"size": 8, "chunk": 9}, "^predictor.chunk: 9 must be at most predictor.size, 8$"),
    ],
)
def test_bad_options(name: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        config_of("predictor", name, **options)

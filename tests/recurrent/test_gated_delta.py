"""The gated delta rule over trees, against the recurrence row by row."""

from __future__ import annotations

import random

import pytest
import torch

from spec_sdk.ops.gated_delta import folded_state, gated_delta

G, H, D, V = 2, 6, 8, 5
PATH_H = -torch.linspace(0, 5, H, dtype=torch.float64)
Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def random_rows(count: int) -> Rows:
    """q, k, v, gains and log decays, float64."""
    q_GND, k_GND = (torch.randn(G, count, D, dtype=torch.float64) for _ in range(2))
    v_HNV = torch.randn(H, count, V, dtype=torch.float64)
    gain_HN, decay_HN = (torch.rand(H, count, dtype=torch.float64) for _ in range(2))
    return q_GND, torch.nn.functional.normalize(k_GND, dim=-1), v_HNV, gain_HN, -3 * decay_HN


def paths_of(parents: list[int]) -> list[list[int]]:
    paths: list[list[int]] = []
    for row, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), row])
    return paths


def visible_of(paths: list[list[int]]) -> torch.Tensor:
    visible_NN = torch.zeros(len(paths), len(paths), dtype=torch.bool)
    for row, path in enumerate(paths):
        visible_NN[row, path] = True
    return visible_NN


def stepped(state_HVD: torch.Tensor, rows: Rows, path: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The state behind a path, and what its last row gets, by the recurrence."""
    o_HV = torch.empty(0)
    for row in path:
        q_GD, k_GD, v_HV, gain_H, decay_H = (part[:, row] for part in rows)
        q_HD, k_HD = q_GD.repeat_interleave(H // G, 0), k_GD.repeat_interleave(H // G, 0)
        state_HVD = state_HVD * decay_H.exp()[:, None, None]
        u_HV = gain_H[:, None] * (v_HV - (state_HVD @ k_HD[..., None])[..., 0])
        state_HVD = state_HVD + u_HV[..., None] * k_HD[:, None]
        o_HV = (state_HVD @ q_HD[..., None])[..., 0]
    return state_HVD, o_HV


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_a_tree_get_what_the_recurrence_gives_along_their_paths(seed: int) -> None:
    torch.manual_seed(seed)
    rng = random.Random(seed)
    paths = paths_of([-1, *(rng.randrange(max(-1, row - 4), row) for row in range(1, 12))])
    rows, state_HVD, visible_NN = random_rows(12), torch.randn(H, V, D, dtype=torch.float64), visible_of(paths)
    fed = 0
    earlier = torch.empty(G, 0, D).double(), torch.empty(H, 0, V).double(), torch.empty(H, 0).double()
    # all at once, or in portions as a growing tree is fed
    for end in (12,) if seed % 2 else (1, 4, 9, 12):
        q_GND, k_GND, v_HNV, gain_HN, decay_HN = (part[:, fed:end] for part in rows)
        visible_NS = visible_NN[fed:end, :end]
        o_HNV, u_HNV, path_HN = gated_delta(
            state_HVD, PATH_H, earlier, q_GND, k_GND, v_HNV, gain_HN, decay_HN, visible_NS
        )
        k_GPD, u_HPV, path_HP = earlier
        earlier = torch.cat((k_GPD, k_GND), 1), torch.cat((u_HPV, u_HNV), 1), torch.cat((path_HP, path_HN), 1)
        for row in range(fed, end):
            after_HVD, wanted_HV = stepped(state_HVD, rows, paths[row])
            torch.testing.assert_close(o_HNV[:, row - fed], wanted_HV)
            k_GPD, u_HPV, path_HP = (part[:, paths[row]] for part in earlier)
            torch.testing.assert_close(folded_state(state_HVD, PATH_H, k_GPD, u_HPV, path_HP), after_HVD)
        fed = end


def test_a_row_behind_nothing_reads_the_state_alone() -> None:
    rows, state_HVD = random_rows(1), torch.randn(H, V, D, dtype=torch.float64)
    none = torch.empty(G, 0, D).double(), torch.empty(H, 0, V).double(), torch.empty(H, 0).double()
    o_HNV, _, _ = gated_delta(state_HVD, PATH_H, none, *rows, torch.ones(1, 1, dtype=torch.bool))
    torch.testing.assert_close(o_HNV[:, 0], stepped(state_HVD, rows, [0])[1])

"""Launches the kernels of :mod:`spec_sdk_samplers.chain_kernels`.

Legend: B sequences, G = γ drafted tokens, R rows, S parts of a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk.contracts import SamplingParams
from spec_sdk.errors import UnusableLogits
from spec_sdk.tree import DraftLaw, TokenTree
from spec_sdk_samplers.chain_kernels import decide_kernel, next_token_kernel, row_statistics_kernel
from spec_sdk_samplers.support import filters, least_kept

TILE = 1024
MAX_PARTS = 64


@dataclass(frozen=True)
class Chains:
    """B chains on the device, ready to be decided: nothing in here waits for the host.

    ``target``, ``draft``: tensors from whose first element on ``row_offset_R`` counts elements: B·(γ + 1) rows of the
    target, sequence by sequence, then B·γ of the draft (-1: the token was chosen). ``token_BG`` int64,
    ``uniform_BG1`` float64 [B, γ + 1]. ``least_R``, ``last_R``: of :func:`least_kept`, or None without filters.
    """

    target: torch.Tensor
    draft: torch.Tensor
    row_offset_R: torch.Tensor
    token_BG: torch.Tensor
    uniform_BG1: torch.Tensor
    least_R: torch.Tensor | None
    last_R: torch.Tensor | None
    vocabulary: int


def gather_chains(
    target_rows: Sequence[torch.Tensor],
    draft_rows: Sequence[torch.Tensor | None],
    tokens: Sequence[int],
    uniform_BG1: torch.Tensor,
    params: SamplingParams,
) -> Chains:
    """Chains from rows of logits [V], wherever they lie on one device; no row is copied.

    Two small copies to the device: integers and random numbers. Raises ValueError for rows of several dtypes.
    """
    drawn = [row for row in draft_rows if row is not None]
    base, draft_base = target_rows[0], drawn[0] if drawn else target_rows[0]
    for rows, like in ((target_rows, base), (drawn, draft_base)):
        for row in rows:
            if row.dtype != like.dtype or row.device != base.device or (row.stride(0) != 1 and row.shape[0] > 1):
                raise ValueError(
                    "rows of logits must be contiguous, on one device, the target's and the draft's of one dtype"
                )
    offsets = [_offset(row, base) for row in target_rows]
    offsets += [-1 if row is None else _offset(row, draft_base) for row in draft_rows]
    device, count = base.device, len(draft_rows)
    packed = _to_device(torch.tensor([*offsets, *tokens], dtype=torch.int64), device)
    uniform_BG1 = _to_device(uniform_BG1, device)
    least_R: torch.Tensor | None = None
    last_R: torch.Tensor | None = None
    if filters(params):
        parts = [least_kept(row[None], params) for row in target_rows]
        parts += [least_kept((base if row is None else row)[None], params) for row in draft_rows]
        least_R, last_R = (torch.cat(column) for column in zip(*parts, strict=True))
    rows_R, token_BG = packed[: len(offsets)], packed[len(offsets) :]
    if not count:
        token_BG = packed
    return Chains(base, draft_base, rows_R, token_BG, uniform_BG1, least_R, last_R, base.shape[0])


def decide(
    chains: Chains, params: SamplingParams, scales: tuple[float, float] | None = None, parts: int | None = None
) -> torch.Tensor:
    """Verdicts [B, 3] int64 on the device: accepted tokens, next token, and the unusable row or -1.

    Rows of the target count from 0 to γ, those of the draft from γ + 1. Nothing waits for the host, so this may be
    captured in a graph. ``scales``: α and β of the sigmoid. ``parts``: programs that share a row; None chooses.
    """
    device, vocabulary = chains.target.device, chains.vocabulary
    sequences, gamma = chains.uniform_BG1.shape[0], chains.uniform_BG1.shape[1] - 1
    p_rows, rows = sequences * (gamma + 1), chains.row_offset_R.shape[0]
    tiles = triton.cdiv(vocabulary, TILE)
    parts = parts or choose_parts(rows, tiles, device)
    per_part = triton.cdiv(tiles, parts)
    max_RS, sum_RS = torch.empty((2, rows, parts), dtype=torch.float32, device=device)
    mass_BT, plain_BT = torch.empty((2, sequences, tiles), dtype=torch.float32, device=device)
    verdict_B3 = torch.empty((sequences, 3), dtype=torch.int64, device=device)
    filtered = chains.least_R is not None
    # a tensor that is never read stands for one that there is none of
    least_R = chains.row_offset_R if chains.least_R is None else chains.least_R
    last_R = chains.row_offset_R if chains.last_R is None else chains.last_R
    temperature = max(params.temperature, torch.finfo(torch.float32).tiny)
    alpha, width = (0.0, 1.0) if scales is None else (float(scales[0]), float(scales[1] - scales[0]))
    row_statistics_kernel[(p_rows if scales is not None else rows, parts)](
        chains.target, chains.draft, chains.row_offset_R, least_R, last_R, max_RS, sum_RS,
        p_rows, vocabulary, per_part, temperature,
        FILTERED=filtered, PARTS=parts, TILE=TILE, num_warps=4,
    )  # fmt: skip
    inputs = (
        chains.target, chains.draft, chains.row_offset_R, least_R, last_R, chains.token_BG, chains.uniform_BG1,
        max_RS, sum_RS, mass_BT, plain_BT, verdict_B3, p_rows, vocabulary, gamma, tiles,
    )  # fmt: skip
    decide_parts = choose_parts(sequences, tiles, device)
    constants = {"FILTERED": filtered, "SIGMOID": scales is not None, "PARTS": parts, "TILE": TILE, "num_warps": 4}
    decide_kernel[(sequences, decide_parts)](
        *inputs, triton.cdiv(tiles, decide_parts), temperature, alpha, width, **constants
    )
    next_token_kernel[(sequences,)](
        *inputs, temperature, alpha, width, TILES=triton.next_power_of_2(tiles), **constants
    )
    return verdict_B3


def choose_parts(rows: int, tiles: int, device: torch.device) -> int:
    """Enough parts for four programs on every multiprocessor, a tile each at least; a power of two. 2 off the GPU."""
    if device.type != "cuda":
        return min(2, tiles)
    wanted = 4 * torch.cuda.get_device_properties(device).multi_processor_count // max(1, rows)
    most = max(1, min(wanted, tiles, MAX_PARTS))
    return 1 << (most.bit_length() - 1)


def is_fused_chain(tree: TokenTree, logits_NV: torch.Tensor) -> bool:
    """Whether the kernels can decide ``tree``: one draw a node, chosen or from draft logits on the target's device."""
    for draws in tree.draws_N:
        if len(draws) > 1:
            return False
        source = draws[0].source if draws else None
        if source is not None and not (isinstance(source, DraftLaw) and source.logits_V.device == logits_NV.device):
            return False
    return True


def tree_verdict(
    tree: TokenTree,
    logits_NV: torch.Tensor,
    uniform_D: torch.Tensor,
    params: SamplingParams,
    scales: tuple[float, float] | None,
) -> tuple[list[int], int]:
    """Accepted path and next token of a chain, with one transfer. Raises UnusableLogits, whose row is the tree node."""
    draws = [draws[0] for draws in tree.draws_N if draws]
    sources = [draw.source for draw in draws]
    rows = [source.logits_V if isinstance(source, DraftLaw) else None for source in sources]
    logits_NV = logits_NV if logits_NV.stride(-1) == 1 else logits_NV.contiguous()
    tokens = [tree.token_N[draw.node] for draw in draws]
    chains = gather_chains(list(logits_NV), rows, tokens, uniform_D[None], params)
    accepted, token, unusable = decide(chains, params, scales)[0].tolist()
    if unusable > len(draws):
        raise UnusableLogits(unusable - len(draws) - 1, "draft, ")
    if unusable >= 0:
        raise UnusableLogits(unusable)
    return list(range(accepted + 1)), token


def _offset(row: torch.Tensor, base: torch.Tensor) -> int:
    return (row.data_ptr() - base.data_ptr()) // row.element_size()


def _to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    if device.type != "cuda":
        return values
    return values.pin_memory().to(device, non_blocking=True)

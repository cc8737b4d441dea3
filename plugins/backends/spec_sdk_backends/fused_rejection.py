"""Launches the kernels of :mod:`spec_sdk_backends.rejection_kernels`.

Legend: B trees, D draws, F fields of a draw, J draws of one node, N nodes, R rows, S parts of a row, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk.ops.draws import DraftDistribution, Draw, DrawnTree
from spec_sdk.ops.kept_tokens import NUMBERS, numbers_of
from spec_sdk.ops.rows import Shaping
from spec_sdk.ops.uploads import to_device
from spec_sdk_backends import rejection_kernels as kernels
from spec_sdk_backends.kept_tokens import least_kept_of_rows
from spec_sdk_backends.logit_rows import NOWHERE as NO_ROW

TILE = 1024
MAX_PARTS = 64
WIDE = 4096
"""Tokens that a program of the walk reads at once, where it sums over V between the draws of a node."""
MAX_WALKERS = 16
"""Programs that share the walk of a tree with several draws at a node: each of them reads the rows of those sums."""
NOWHERE, FIELDS = NO_ROW.value, kernels.FIELDS.value
CHOSEN, BY_SOFTMAX, BY_SIGMOID, BY_PROBABILITIES = (
    rule.value for rule in (kernels.CHOSEN, kernels.BY_SOFTMAX, kernels.BY_SIGMOID, kernels.BY_PROBABILITIES)
)


@dataclass(frozen=True)
class Trees:
    """B trees on the device, ready to be decided: nothing in here waits for the host.

    ``target``, ``draft``: tensors from whose first element on the offsets of rows of logits count elements;
    ``given`` the same for probabilities. ``row_offset_R``: the target's rows of all nodes, ``nodes`` of them, then the
    distinct draft distributions' (``NOWHERE``: its statistics are not needed). ``draw_DF``: fields of
    :mod:`~spec_sdk_backends.rejection_kernels`. ``root_B4``: root, first draw, end of its draws, end of the tree's
    draws. ``uniform_U`` float64: per tree one for each draw, then one; and last the sampling's
    :func:`~spec_sdk.ops.kept_tokens.numbers_of`, which only filters read. ``most``: draws of the node that has most.
    ``aligned``: whether all offsets are multiples of 16. ``rows``: what the offsets lead to, kept alive.
    """

    target: torch.Tensor
    draft: torch.Tensor
    given: torch.Tensor | None
    row_offset_R: torch.Tensor
    draw_DF: torch.Tensor
    root_B4: torch.Tensor
    uniform_U: torch.Tensor
    nodes: int
    most: int
    aligned: bool
    rows: tuple[torch.Tensor, ...]


def gather_trees(
    trees: Sequence[DrawnTree],
    logits_BNV: Sequence[torch.Tensor],
    uniform_BD: Sequence[torch.Tensor],
    params: Shaping,
    sigmoid: bool = False,
) -> Trees:
    """Trees from logits [N, V] each, of one dtype on one device, and uniforms [draws + 1]; no row there is copied.

    Draft logits and probabilities that lie elsewhere are sent to the device, besides two small copies: integers and
    random numbers. Raises ValueError for rows of another vocabulary, and for target rows that are not contiguous.
    """
    base = _lowest(logits_BNV)
    device, vocabulary = base.device, base.shape[-1]
    if any(rows.stride(-1) != 1 or rows.dtype != base.dtype or rows.device != device for rows in logits_BNV):
        raise ValueError("rows of target logits must be contiguous, on one device and of one dtype")
    distributions = Distributions.of(trees, base)
    if any(row.shape != (vocabulary,) for row in distributions.rows):
        raise ValueError(f"a draft distribution is not one of the target's {vocabulary} tokens")
    offsets: list[int] = []
    for rows_NV in logits_BNV:
        begins = _offset(rows_NV, base)
        offsets += [begins + i * rows_NV.stride(0) for i in range(rows_NV.shape[0])]
    nodes = len(offsets)
    aligned = distributions.aligned and all(offset % 16 == 0 for offset in offsets)
    first_row_B = list(itertools.accumulate((tree.size for tree in trees), initial=0))
    table = Table.of(trees, distributions, first_row_B, offsets, sigmoid, params.filtered)
    offsets += [
        offset if distribution in table.read else NOWHERE for distribution, offset in enumerate(distributions.offsets)
    ]
    packed = to_device(torch.tensor([*offsets, *table.draws, *table.roots], dtype=torch.int64), device)
    row_offset_R, draw_DF, root_B4 = torch.split(packed, [len(offsets), len(table.draws), len(table.roots)])
    uniform_U = to_device(with_numbers(uniform_BD, params), device)
    return Trees(
        base, distributions.draft, distributions.given, row_offset_R, draw_DF, root_B4, uniform_U,
        nodes, max(1, table.most), aligned, (*logits_BNV, *distributions.rows),
    )  # fmt: skip


def with_numbers(uniform_BD: Sequence[torch.Tensor], params: Shaping) -> torch.Tensor:
    """Random numbers of trees as one tensor, and after them the sampling's."""
    return torch.cat([*uniform_BD, torch.tensor(numbers_of(params), dtype=torch.float64)])


@dataclass(frozen=True)
class Table:
    """What the kernels read of trees, as integers: ``draws``, FIELDS of each; ``roots``, four of each tree. ``read``:
    which draft distributions need statistics, or a filter's border. ``most``: draws of the node that has most.
    """

    draws: list[int]
    roots: list[int]
    read: set[int]
    most: int

    @staticmethod
    def of(
        trees: Sequence[DrawnTree],
        distributions: Distributions,
        first_row_B: Sequence[int],
        offset_R: Sequence[int],
        sigmoid: bool,
        filtered: bool,
    ) -> Table:
        """``first_row_B``: the row of each tree's root among the target's; ``offset_R``: where these lie,
        before those of distributions.
        """
        draws: list[int] = []
        roots: list[int] = []
        read: set[int] = set()
        most = count = 0
        for tree, root in zip(trees, first_row_B, strict=False):
            first_N = [count + first for first in tree.first_draw_N1]
            roots += [root, first_N[0], first_N[1], first_N[-1]]
            for node, draws_of_node in enumerate(tree.draws_N):
                most = max(most, len(draws_of_node))
                by_sigmoid = sigmoid and all(isinstance(draw.source, DraftDistribution) for draw in draws_of_node)
                earlier: dict[int, int] = {}
                for draw in draws_of_node:
                    rule, distribution, offset = distributions.place(draw)
                    rule = BY_SIGMOID if by_sigmoid and rule == BY_SOFTMAX else rule
                    if rule == BY_SOFTMAX or (filtered and rule == BY_SIGMOID):
                        read.add(distribution)
                    before = -1
                    if draw.sequence is not None:
                        before = earlier.get(draw.sequence, -1)
                        earlier[draw.sequence] = count
                    draws += [
                        tree.token_N[draw.node], rule, len(offset_R) + distribution, offset_R[root + node], offset,
                        root + draw.node, first_N[draw.node], first_N[draw.node + 1], before,
                    ]  # fmt: skip
                    count += 1
        return Table(draws, roots, read, most)


class Distributions:
    """The distinct draft distributions of trees, on the device: where each one's row lies.

    ``rows``, ``offsets``: of every distinct distribution, in the order of their first draw. ``draft``: from whose first
    element on offsets of logits count; ``given``: of probabilities, None if there are none. ``aligned``: whether all
    offsets are multiples of 16.
    """

    def __init__(
        self, distinct: Sequence[torch.Tensor | DraftDistribution], draft: torch.Tensor, given: torch.Tensor | None
    ) -> None:
        """Raises ValueError for probabilities without a ``given``."""
        self._number = {source: i for i, source in enumerate(distinct)}
        self.from_logits = [isinstance(source, DraftDistribution) for source in distinct]
        if given is None and not all(self.from_logits):
            raise ValueError("there is a draft distribution that is given as probabilities")
        self.draft, self.given = draft, given
        self.rows, self.offsets = [], []
        for source in distinct:
            base, row = (draft, source.logits_V) if isinstance(source, DraftDistribution) else (given, source)
            assert base is not None
            self.rows.append(_row_on_device(row, base.dtype, base.device))
            self.offsets.append(_offset(self.rows[-1], base))
        self.aligned = all(offset % 16 == 0 for offset in self.offsets)

    @staticmethod
    def of(trees: Sequence[DrawnTree], target: torch.Tensor) -> Distributions:
        """Where the first of either kind lies serves as the place that offsets count from."""
        distinct = [source for source, _ in first_reads(trees)]
        draft, given = target, None
        logits = [source.logits_V for source in distinct if isinstance(source, DraftDistribution)]
        if logits:
            dtypes = {row.dtype for row in logits}
            # two draft models may differ in theirs; float32 holds the values of both
            dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
            draft = _row_on_device(logits[0], dtype, target.device)
        for source in distinct:
            if not isinstance(source, DraftDistribution):
                given = _row_on_device(source, torch.float32, target.device)
                break
        return Distributions(distinct, draft, given)

    def place(self, draw: Draw) -> tuple[int, int, int]:
        """Rule, number and offset of the distribution of ``draw``; 0 of a chosen one."""
        if draw.source is None:
            return CHOSEN, 0, 0
        distribution = self._number[draw.source]
        return (
            BY_SOFTMAX if self.from_logits[distribution] else BY_PROBABILITIES,
            distribution,
            self.offsets[distribution],
        )


def decide(trees: Trees, params: Shaping, scales: tuple[float, float] | None = None) -> torch.Tensor:
    """Verdicts [B, 3] int64 on the device: last accepted node, next token, and the fault or -1.

    Nodes are numbered through all trees. A fault below the number of rows is an unusable row; above, the draw of that
    number more could not have come from its distribution. Nothing waits for the host and there are two launches
    whatever the trees, with filters three, so this may be captured in a graph. ``scales``: α and β of the sigmoid.
    """
    device, vocabulary = trees.target.device, trees.target.shape[-1]
    count, rows = trees.root_B4.shape[0] // 4, trees.row_offset_R.shape[0]
    most = triton.next_power_of_2(trees.most)
    tiles = triton.cdiv(vocabulary, TILE)
    parts = choose_parts(tiles, device)
    max_RS, sum_RS = torch.empty((2, rows, parts), dtype=torch.float32, device=device)
    mass_BT, plain_BT = torch.empty((2, count, tiles), dtype=torch.float32, device=device)
    counter_B = torch.empty((count,), dtype=torch.int32, device=device)
    verdict_B3 = torch.empty((count, 3), dtype=torch.int64, device=device)
    filtered = params.filtered
    # a tensor that is never read stands for one that there is none of
    least_R = last_R = trees.row_offset_R
    if filtered:
        shaping_14 = trees.uniform_U[-NUMBERS:].view(1, NUMBERS)
        least_R, last_R = least_kept_of_rows(
            trees.target, trees.draft, trees.row_offset_R, trees.nodes, vocabulary, shaping_14, trees.aligned
        )
    given = max_RS if trees.given is None else trees.given
    temperature = max(params.temperature, torch.finfo(torch.float32).tiny)
    alpha, width = (0.0, 1.0) if scales is None else (float(scales[0]), float(scales[1] - scales[0]))
    kernels.row_statistics_kernel[(rows, parts)](
        trees.target, trees.draft, trees.row_offset_R, least_R, last_R, max_RS, sum_RS, counter_B,
        trees.nodes, count, vocabulary, triton.cdiv(tiles, parts), temperature,
        FILTERED=filtered, ALIGNED=trees.aligned, PARTS=parts, TILE=TILE, num_warps=4,
    )  # fmt: skip
    inputs = (
        trees.target, trees.draft, given, trees.row_offset_R, least_R, last_R, trees.draw_DF, trees.root_B4,
        trees.uniform_U, max_RS, sum_RS, mass_BT, plain_BT, counter_B, verdict_B3,
    )  # fmt: skip
    constants = {
        "FILTERED": filtered, "ALIGNED": trees.aligned, "SIGMOID": scales is not None,
        "GIVEN": trees.given is not None, "MOST": most, "PARTS": parts, "TILE": TILE,
    }  # fmt: skip
    walkers = choose_walkers(count, tiles, most > 1, device)
    kernels.decide_kernel[(count, walkers)](
        *inputs, rows, vocabulary, tiles, triton.cdiv(tiles, walkers), temperature, alpha, width,
        WIDE=WIDE if device.type == "cuda" else TILE, TILES=triton.next_power_of_2(tiles),
        num_warps=16 if most > 1 else 4, **constants,
    )  # fmt: skip
    return verdict_B3


def choose_parts(tiles: int, device: torch.device) -> int:
    """Programs that share the statistics of a row, a power of two; 2 off the GPU.

    It hangs on the vocabulary alone: kernels are compiled for it, and trees of all sizes should share them.
    """
    most = min(tiles, MAX_PARTS if device.type == "cuda" else 2)
    return 1 << (most.bit_length() - 1)


def choose_walkers(trees: int, tiles: int, sums: bool, device: torch.device) -> int:
    """Programs to a tree that walk it, each for itself; 2 off the GPU. ``sums``: a node has several draws."""
    if device.type != "cuda":
        return min(2, tiles)
    wanted = torch.cuda.get_device_properties(device).multi_processor_count * (1 if sums else 4) // trees
    return max(1, min(wanted, tiles, MAX_WALKERS if sums else MAX_PARTS))


def first_reads(trees: Sequence[DrawnTree]) -> list[tuple[torch.Tensor | DraftDistribution, int]]:
    """The rows that draws come from, each once, with the node of its first draw, in the order of their first draws.

    Only so that no row is sent twice: which draws belong together, they say themselves. Tensors are hashed by object.
    """
    first: dict[torch.Tensor | DraftDistribution, int] = {}
    for tree in trees:
        for node, draws in enumerate(tree.draws_N):
            for draw in draws:
                if draw.source is not None:
                    first.setdefault(draw.source, node)
    return list(first.items())


def _row_on_device(row: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    row = row.to(dtype).contiguous()
    return row if row.device == device else to_device(row, device)


def _lowest(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """The one that lies first in memory: offsets from it are not negative, which would mean that there is no row."""
    return min(rows, key=torch.Tensor.data_ptr)


def _offset(row: torch.Tensor, base: torch.Tensor | None) -> int:
    assert base is not None
    return (row.data_ptr() - base.data_ptr()) // row.element_size()

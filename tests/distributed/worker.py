"""One rank of a test run: does the jobs of a file with the others, and the leader writes what came out.

A job is ``[name of a function below, arguments …]``. Several jobs share one start of Python, torch and the group.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from spec_sdk.app import main
from spec_sdk.bench.memory import forget_resident_peak, resident_peak
from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.models import Models
from spec_sdk.model.runners.layer_parallel import LayerParallelConfig, LayerParallelRunner
from spec_sdk.model.session import Scores, Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from spec_sdk.pipeline import build_pipeline
from spec_sdk.ranks import ALONE, Ranks
from spec_sdk.registry import Registry
from spec_sdk.tree import TokenTree
from spec_sdk_backends.accelerate import AccelerateBackend, AccelerateConfig
from spec_sdk_backends.cpu import CpuBackend, CpuConfig
from tests.distributed.cases import GROUPS, NEW, PROMPT, answers_of, decoder_logits, speculated, states_after_trees
from tests.support.real_pipelines import settings_of, tokens_of

CPU = torch.device("cpu")


def logits(ranks: Ranks, directory: str) -> list[Any]:
    """The target's logits, and the KV heads of every rank."""
    backend = CpuBackend(CpuConfig(pack_weights=False))
    models = Models(directory, "cut", "auto", backend.load, backend.ops, CPU, torch.float32, ranks)
    heads = ranks.all_gather(torch.tensor(models.target.executor.config.num_kv_heads)).tolist()
    found = decoder_logits(models.session(models.target))
    everywhere = ranks.all_gather(torch.tensor(found))
    return [found, heads, bool((everywhere == everywhere[0]).all())]


def layer_parallel(ranks: Ranks, directory: str, shares_kv: bool) -> list[float]:
    """Largest differences over the ranks between the runner over ranks and the one on one device.

    Of the hidden states of a fuzzy pass, and with ``shares_kv`` of the K and V that it leaves.
    """
    decoder = load_decoder(open_checkpoint(directory), CPU, torch.float32)
    states, caches = [], []
    for among in (ALONE, ranks):
        runner = LayerParallelRunner(LayerParallelConfig(groups=GROUPS, calibrate=not shares_kv))
        runner.prepare(decoder.layers, among)
        session = Session(TorchExecutor(decoder, Ops()))
        session.prefill(0, PROMPT)
        columns = session.length() + 3
        session.reserve(1, columns)
        cache = session.cache
        assert isinstance(cache, KVCache)
        inputs = PassInputs.of("chain", [RequestRows.chain(0, session.length(), [1, 2, 3])], CPU)
        _, work = decoder.forward_pass(inputs, cache, Ops())
        h_BNM = torch.randn(1, 3, decoder.config.hidden_size, generator=torch.Generator().manual_seed(0))
        states.append(runner.run(decoder, h_BNM, work))
        caches.append(torch.stack((cache.k_LSGCD[..., :columns, :], cache.v_LSGCD[..., :columns, :])))
    pairs = (states, caches) if shares_kv else (states,)
    differences = [float((one - spread).abs().max()) for one, spread in pairs]
    worst = ranks.all_gather(torch.tensor(differences)).amax(0)
    return [float(x) for x in worst]


def tokens(ranks: Ranks, overrides: list[str]) -> list[list[int]]:
    """The new tokens of a whole pipeline on two prompts, if all ranks have committed the same."""
    settings = settings_of(*overrides, "backend=accelerate")
    pipeline = build_pipeline(settings, Registry.discover())
    answers: list[list[int]] = []
    if ranks.is_leader:
        answers = answers_of(pipeline, settings)
        ranks.finish()
    else:
        pipeline.follow()
    everywhere = ranks.all_gather(torch.tensor(pipeline.engine.target.tokens()))
    assert (everywhere == everywhere[0]).all()
    return answers


def placed(ranks: Ranks, overrides: list[str]) -> list[Any]:
    """The new tokens of two prompts, which all ranks have committed, and the KV heads of every rank's draft model."""
    pipeline = build_pipeline(settings_of(*overrides, "backend=accelerate"), Registry.discover())
    answers: list[list[int]] = []
    if ranks.is_leader:
        answers = [tokens_of(pipeline, PROMPT[i:], NEW, ignore_eos=True, request_id=i) for i in range(2)]
        ranks.finish()
    else:
        pipeline.follow()
    everywhere = ranks.all_gather(torch.tensor(pipeline.engine.target.tokens()))
    assert (everywhere == everywhere[0]).all()
    session = pipeline.engine.drafter.draft_session
    heads = 0 if session is None else session.executor.config.num_kv_heads
    return [answers, ranks.all_gather(torch.tensor(heads)).tolist()]


def speculation(ranks: Ranks, overrides: list[str]) -> list[Any]:
    """Two requests' tokens and what their passes report of attention, if all ranks say the same; the device groups."""
    pipeline = build_pipeline(settings_of(*overrides, "backend=accelerate"), Registry.discover())
    target, hits = pipeline.engine.target, list[float]()
    score = target.score

    def noting_hits(slots: Sequence[int], trees: Sequence[TokenTree], *others: Any) -> list[Scores]:
        scores = score(slots, trees, *others)
        assert scores[0].attention is not None
        hits.extend(-1.0 if hit is None else float(hit) for hit in scores[0].attention.hit)
        return scores

    target.score = noting_hits  # type: ignore[method-assign, assignment]
    answers, reports = list[list[int]](), list[dict[str, Any]]()
    if ranks.is_leader:
        answers, reports = speculated(pipeline)
        ranks.finish()
    else:
        pipeline.follow()
    everywhere = ranks.all_gather(torch.tensor([*map(float, target.tokens()), *hits]))
    assert (everywhere == everywhere[0]).all()
    return [answers, reports, pipeline.models.device_groups]


def states(ranks: Ranks, overrides: list[str]) -> list[Any]:
    """Whether two ranks' K, V and hidden states are the same bits after passes over a tree; and the leader's."""
    pipeline = build_pipeline(settings_of(*overrides, "backend=accelerate"), Registry.discover())
    found = states_after_trees(pipeline)
    everywhere = ranks.all_gather(found)
    return [bool((everywhere == everywhere[0]).all()), found.tolist()]


def refusal(ranks: Ranks, overrides: list[str]) -> str:
    """What is said of a pipeline that so many processes cannot run."""
    try:
        build_pipeline(settings_of(*overrides, "backend=accelerate"), Registry.discover())
    except UserError as error:
        return str(error)
    return ""


def early_stop(ranks: Ranks, overrides: list[str]) -> list[int]:
    """Tokens of a request after two that the leader's caller broke off: in the middle, and after the last cycle."""
    pipeline = build_pipeline(settings_of(*overrides, "backend=accelerate"), Registry.discover())
    if not ranks.is_leader:
        pipeline.follow()
        return []
    for new_tokens, last in ((40, 2), (1, 0)):
        stream = pipeline.stream(PROMPT, max_new_tokens=new_tokens, ignore_eos=True)
        with contextlib.closing(stream):  # type: ignore[type-var]
            for cycle, _ in enumerate(stream):
                if cycle == last:
                    break
    answer = tokens_of(pipeline, PROMPT, NEW, ignore_eos=True)
    ranks.finish()
    return answer


def loading_memory(ranks: Ranks, directory: str) -> list[list[int]]:
    """Of every rank, bytes: the most that it held beyond what it had, while it loaded, and what its weights are."""
    backend = CpuBackend(CpuConfig(threads=1))
    ops, before = backend.ops, forget_resident_peak()
    assert before is not None
    models = Models(directory, "cut", "auto", backend.load, ops, CPU, torch.float32, ranks)
    peak = resident_peak() - before
    executor = models.target.executor
    assert isinstance(executor, TorchExecutor)
    weights = sum(projection.nbytes for projection in executor.decoder.projections)
    held: list[list[int]] = ranks.all_gather(torch.tensor([peak, weights])).tolist()
    return held


def decisions(ranks: Ranks) -> int:
    """How many of the leader's decisions, short and long, reached this rank as they were."""
    texts = ["ä" * length for length in (0, 1, 160, 180, 900, 5000)]
    told: list[Any] = [ranks.decide(functools.partial(list, (ranks.rank, None, text))) for text in texts]
    assert told == [[0, None, text] for text in texts]
    return len(told)


def command_line(ranks: Ranks, arguments: list[str]) -> list[Any]:
    """Status, stdout and stderr of a command line on every rank. Leaves the group, so it must be the last job."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments)
    return [status, out.getvalue(), err.getvalue()]


def run(jobs_file: str, results_file: str) -> None:
    backend = AccelerateBackend(AccelerateConfig(device="cpu", threads=1, timeout=120))
    backend.join()
    jobs = json.loads(Path(jobs_file).read_text())
    results = [globals()[name](backend.ranks, *arguments) for name, *arguments in jobs]
    place = Path(results_file)
    if not backend.ranks.is_leader:
        place = place.with_suffix(f".{backend.ranks.rank}")
    place.write_text(json.dumps(results))
    # a process that ends with threads of the group at work may be aborted by their library
    backend.ranks.close()


if __name__ == "__main__":
    run(*sys.argv[1:])

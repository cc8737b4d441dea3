"""spec-sdk as a peer: a task, so that it starts as every run of ``python -m spec_sdk`` does.

    python -m spec_sdk task=answer_requests pipeline=vanilla

``benchmarks.peers.programs`` makes it known by an entry point in a directory of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec_sdk.bench.peers.serving import Request, Take, own_stdout, serve
from spec_sdk.contracts import Task, option
from spec_sdk.settings import Settings


@dataclass
class AnswerRequestsConfig:
    """Options of ``task=answer_requests``."""

    expected: int = option(
        0, "new tokens that the run will be asked for, which backend.compile=auto goes by", minimum=0
    )


class AnswerRequests(Task):
    """Answers the requests of a benchmark, which come in on stdin."""

    name = "answer_requests"
    Config = AnswerRequestsConfig
    config: AnswerRequestsConfig

    def run(self, app: Settings) -> int:
        """Answer until stdin is closed; return 0."""
        replies = own_stdout()

        import torch

        from spec_sdk import __version__
        from spec_sdk.api.engine import Engine
        from spec_sdk.pipeline import build_pipeline, joined_backend
        from spec_sdk.registry import Registry

        registry = Registry.discover()
        backend = joined_backend(app, registry)
        backend.expect(self.config.expected)
        pipeline = build_pipeline(app, registry, backend)
        engine = Engine(pipeline, app)

        def answer(request: Request, take: Take) -> None:
            for part in engine.stream(request.tokens, max_new_tokens=request.new_tokens, ignore_eos=True):
                if part.tokens:
                    take(list(part.tokens))

        facts = {
            "versions": {"spec-sdk": __version__, "torch": torch.__version__},
            "threads": torch.get_num_threads(),
            "device": backend.describe(),
            "pipeline": pipeline.name,
            "policy": pipeline.policy.name,
            "guarantee": pipeline.guarantee,
            "draft": pipeline.draft_name,
        }
        serve(replies, answer, facts)
        return 0

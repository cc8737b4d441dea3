"""``task=serve``: a pipeline behind an HTTP server with the interface of OpenAI."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import sys
from pathlib import PurePath
from typing import TYPE_CHECKING

from spec_sdk.contracts import Task
from spec_sdk.errors import UserError
from spec_sdk.ranks import launched_rank
from spec_sdk.registry import Registry
from spec_sdk.serve.options import ServeConfig
from spec_sdk.settings import Settings

if TYPE_CHECKING:
    from spec_sdk.pipeline import Pipeline

NEEDS = ("fastapi", "uvicorn", "prometheus_client")


class Serve(Task):
    """Serves a pipeline over HTTP with the interface of OpenAI, until SIGTERM or Ctrl-C."""

    name = "serve"
    Config = ServeConfig
    config: ServeConfig
    every_rank = True
    without = ("compare",)

    def run(self, app: Settings) -> int:
        """Returns 0 when it was told to end and answers in progress had ended. Raises UserError for bad input, and
        where other processes compute too RankLost, or what a step failed with.
        """
        for given in ("prompt", "prompt_file", "audio"):
            if getattr(app, given) is not None:
                raise UserError(f"{given}: task=serve answers what clients ask; leave it out")
        if missing := [package for package in NEEDS if importlib.util.find_spec(package) is None]:
            raise UserError(f"task=serve: {missing[0]} is not installed: pip install 'spec-sdk[serve]'")

        from spec_sdk.pipeline import build_pipeline, joined_backend
        from spec_sdk.serve.running import bound, is_loopback, keys_of, make_server, run_server, url_of

        registry = Registry.discover()
        # joined before anything can fail that the leader does alone: the others would wait for it to join
        backend = joined_backend(app, registry)
        if launched_rank() != 0:
            self._follow(build_pipeline(app, registry, backend, slots=self.config.max_num_seqs))
            return 0
        keys = keys_of(self.config)
        # before models are loaded, which takes longest
        place = bound(self.config)
        with place:
            from spec_sdk.api.engine import Engine
            from spec_sdk.serve.app import Service, make_app
            from spec_sdk.serve.guard import LOOPBACK

            pipeline = build_pipeline(app, registry, backend, slots=self.config.max_num_seqs)
            pipeline.prepare()
            if pipeline.encoder is not None:
                raise UserError("model.target: task=serve answers texts, and this model hears; prompt it with audio=")
            local = is_loopback(place)
            if not local and not keys:
                advice = "task.api_key_file asks clients for a key"
                print(f"warning: whoever reaches {url_of(place)} may use it; {advice}", file=sys.stderr)
            model = self.config.model_name or model_name(app.model.target)
            service = Service(Engine(pipeline, app), self.config, model, app.max_new_tokens)
            about = f"serving {model} with {pipeline.name} ({pipeline.guarantee}) at {url_of(place)}/v1"
            about += f"; a page at {url_of(place)}/" if self.config.page else ""
            served = make_app(service, (*LOOPBACK, self.config.host) if local else (), keys)
            server, failures = make_server(served, self.config, about, service.ending), list[Exception]()

            def end(failure: Exception) -> None:
                failures.append(failure)
                server.should_exit = True

            # the command line's own handlers are called when the server has ended
            with contextlib.suppress(KeyboardInterrupt), service.engine.waiting_followers(end):
                run_server(server, place)
            if failures:
                raise failures[0]
        pipeline.ranks.finish()
        return 0

    def _follow(self, pipeline: Pipeline) -> None:
        """Take part in the leader's answers until it has ended."""
        pipeline.prepare()
        # a launcher tells all processes to end, and the leader's answers end first
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        pipeline.follow()


def model_name(target: str) -> str:
    """A hub id as it is; of a path the last part: where it lies is the server's own business."""
    path = PurePath(target)
    return path.stem if path.suffix == ".gguf" else (path.name if path.is_absolute() or "." in path.parts else target)

"""The options of ``task=serve``."""

from __future__ import annotations

from dataclasses import dataclass

from spec_sdk.config.option import option


@dataclass
class ServeConfig:
    """Where a server listens, what it takes on at once, and what it refuses."""

    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 is every IPv4 address of the machine")
    port: int = option(8000, "port to listen on", minimum=0, maximum=65535, means={0: "a free one"})
    model_name: str | None = option(
        None, "what clients call the model", means={None: "the hub id, or the last part of a path"}
    )
    max_num_seqs: int = option(8, "answers that are worked on at once", minimum=1)
    max_queue: int = option(64, "answers that may wait besides; more are refused with status 429", minimum=0)
    max_body: int = option(4 * 2**20, "bytes of a request's body, at most; more are refused with status 413", minimum=1)
    read_timeout: float = option(30.0, "seconds that a client may take to send a request's head, and its body", above=0)
    timeout: float = option(600.0, "seconds of a request, until its answer is delivered; then it is an error", above=0)
    drain_timeout: float = option(
        30.0, "seconds that answers in progress are given to end after SIGTERM or Ctrl-C", minimum=0
    )
    api_key_file: str | None = option(
        None, "a file with the keys that clients may send, one in a line", means={None: "no key is asked for"}
    )
    reasoning: str = option(
        "auto",
        "what becomes of a model's thoughts in chats",
        choices={
            "auto": "reasoning_content, where the chat template or the vocabulary shows how the model marks them",
            "none": "content like other text",
        },
    )
    page: bool = option(True, "a page at / that shows a prompt's answer and its token trees")
    access_log: bool = option(True, "a line for every request on stderr: client, method, path, status, seconds")
    log_prompts: bool = option(False, "prompts and answers on stderr too, a line of JSON for each request")

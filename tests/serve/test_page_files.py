"""The page at ``/`` as files: all there, open, under a policy that lets nothing else in."""

from __future__ import annotations

import http.client
import re
from contextlib import closing
from importlib.resources import files

from spec_sdk import Engine
from spec_sdk.serve import page
from spec_sdk.serve.options import ServeConfig
from tests.support.serving import PATIENCE_S, Served, get, served


def headers_of(port: int, path: str) -> dict[str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    with closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        assert response.status == 200, path
        return {name.lower(): value for name, value in response.getheaders()}


def test_every_file_that_it_names_is_served(server: Served) -> None:
    html = get(server.port, "/")[1].decode()
    named = {f"/{name}" for name in re.findall(r'(?:src|href)="([^"]+)"', html)}
    for path in page.FILES:
        content = get(server.port, path)[1].decode()
        folder = path.rpartition("/")[0]
        named |= {f"{folder}/{name}" for name in re.findall(r'from "\./([^"]+)"', content)}
    assert named == set(page.FILES) - {"/"}
    shipped = {item.name for item in files(page).iterdir() if not item.name.startswith("__")}
    assert shipped == {name for name, _ in page.FILES.values()}


def test_its_policy_is_strict_and_it_keeps_to_it(server: Served) -> None:
    for path, (_, media_type) in page.FILES.items():
        headers = headers_of(server.port, path)
        policy = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
        assert {policy[kind] for kind in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
        assert headers["content-type"] == media_type and headers["x-content-type-options"] == "nosniff"
    html = get(server.port, "/")[1].decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html)
    scripts = [get(server.port, path)[1].decode() for path in page.FILES if path.endswith(".js")]
    # what a model writes becomes text and nothing else
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", "".join(scripts))
    # everything comes from this server
    everything = html + "".join(scripts)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", everything)


def test_it_needs_no_key_and_what_it_asks_does(engine: Engine) -> None:
    with served(engine, keys=("first",)) as running:
        for path in page.FILES:
            assert get(running.port, path)[0] == 200
        assert get(running.port, "/v1/models")[0] == 401 and get(running.port, "/page/")[0] == 401


def test_it_can_be_left_out(engine: Engine) -> None:
    with served(engine, ServeConfig(port=0, page=False, access_log=False)) as running:
        assert {get(running.port, path)[0] for path in page.FILES} == {404}
        assert get(running.port, "/v1/models")[0] == 200

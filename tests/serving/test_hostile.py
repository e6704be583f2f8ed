"""Clients that mean harm: connections that send slowly, without end or too much; honest requests are answered meanwhile."""

from __future__ import annotations

import contextlib
import json
import logging
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pyarrow as pa
import pytest
from prometheus_client import generate_latest

from tests.serving.setting import OTHER, TOKEN, Setting, code, train
from vfl.apps.serving import application, run, scoring

if TYPE_CHECKING:
    from collections.abc import Iterator

PREDICT = b"POST /v1/models/credit/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
KNOWN = PREDICT + f"authorization: Bearer {TOKEN}\r\n".encode()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    made = Setting(tmp_path_factory.mktemp("hostile"))
    made.prepare(train())
    with made.joined(), made.serving() as made.service:
        yield made


@contextlib.contextmanager
def connected(setting: Setting) -> Iterator[socket.socket]:
    host, _, port = setting.listen.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30.0) as made:
        yield made


def flood(made: socket.socket, piece: bytes, most: int = 1 << 26) -> int:
    """Send a piece again and again until the service closes the connection; return the number of bytes sent."""
    sent = 0
    with contextlib.suppress(OSError):
        while sent < most:
            made.sendall(piece)
            sent += len(piece)
    return sent


def test_a_request_that_does_not_come_to_its_end_is_closed(running: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MESSAGE_SECONDS", 1.0)
    with contextlib.ExitStack() as held:
        waiting = [held.enter_context(connected(running)) for _ in range(4)]
        began = time.monotonic()
        for made, begun in zip(
            waiting, (b"", b"POST /v1", PREDICT, KNOWN + b"content-length: 9\r\n\r\n{"), strict=True
        ):
            made.sendall(begun)
        for made in waiting:
            with contextlib.suppress(ConnectionError):
                while made.recv(1 << 16):  # it fails after 30 s without an end
                    pass
        assert time.monotonic() - began > 0.5
    assert running.ask(ids=["secret-1"]).status_code == 200


@pytest.mark.parametrize(
    ("begun", "piece", "most"),
    [
        (b"GET /", b"a" * 4096, 1 << 22),
        (PREDICT, b"x-more: " + b"a" * 1000 + b"\r\n", 1 << 22),
        (PREDICT + b"x-long: ", b"a" * 4096, 1 << 22),
        (PREDICT + b"content-length: 99999999999\r\n\r\n", b"a" * 65536, 1 << 25),
        (KNOWN + b"transfer-encoding: chunked\r\n\r\n", b"10000\r\n" + b"a" * 65536 + b"\r\n", 1 << 25),
    ],
    ids=["url", "headers", "header", "body of a stranger", "chunks"],
)
def test_what_has_no_end_is_closed(running: Setting, begun: bytes, piece: bytes, most: int) -> None:
    with connected(running) as made:
        made.sendall(begun)
        assert flood(made, piece) < most
    assert running.ask(ids=["secret-1"]).status_code == 200


def test_connections_beyond_the_limit_replace_silent_ones(running: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST_CONNECTIONS", 20)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(running)) for _ in range(60)]
        # The idle connection of the client may be one of those that are closed; then the client connects again.
        running.until(lambda: running.ask(ids=["secret-1"]).status_code == 200, seconds=5.0)
        silent[0].settimeout(10.0)
        with contextlib.suppress(ConnectionError):
            assert silent[0].recv(1) == b""
    assert running.ask(ids=["secret-1"]).status_code == 200


def test_bodies_have_a_limit_together(running: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "MOST_HELD", 1 << 16)
    head = KNOWN + b"content-length: 60000\r\n\r\n"
    with connected(running) as first, connected(running) as second:
        first.sendall(head + b" " * 59_000)
        time.sleep(0.3)
        second.sendall(head + b" " * 59_000)
        assert second.recv(1 << 16).startswith(b"HTTP/1.1 503 ")
    running.until(lambda: running.ask(ids=["secret-1"]).status_code == 200)


def drained(made: socket.socket) -> bytes:
    """Return all bytes until the service ends the connection."""
    made.settimeout(15.0)
    pieces = []
    with contextlib.suppress(ConnectionError):
        while piece := made.recv(1 << 20):
            pieces.append(piece)
    return b"".join(pieces)


def test_many_requests_at_once_on_one_connection_are_not_kept(running: Setting) -> None:
    with connected(running) as many, contextlib.suppress(ConnectionError):
        many.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 400)
        assert drained(many).count(b"HTTP/1.1 200") <= run.MOST_PIPELINED + 1
    assert running.ask(ids=["secret-1"]).status_code == 200


def test_answers_that_nobody_reads_end_their_connection(running: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ANSWER_SECONDS", 0.5)
    body = json.dumps({"ids": ["secret-1"] * 20_000}).encode()
    with connected(running) as silent:
        for _ in range(6):
            silent.sendall(KNOWN + b"content-length: %d\r\n\r\n" % len(body) + body)
        ended = select.poll()
        ended.register(silent, select.POLLRDHUP)
        assert ended.poll(60_000)  # milliseconds
        assert drained(silent).count(b"HTTP/1.1 200") < 6
    assert running.ask(ids=["secret-1"]).status_code == 200


def test_strangers_who_never_read_do_not_keep_callers_out(running: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST_CONNECTIONS", 20)
    request = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 8
    assert running.ask(ids=["secret-1"]).status_code == 200  # the client's connection has shown its token
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            with contextlib.suppress(OSError):
                stack.enter_context(connected(running)).sendall(request * 100)
        for _ in range(20):
            assert running.ask(ids=["secret-1"]).status_code == 200


def test_names_of_unknown_models_are_no_labels(running: Setting) -> None:
    for token in ("nobody's", TOKEN):
        running.ask(f"/v1/models/never-heard-of-{token[0]}/predict", token=token, ids=["secret-1"])
    text = generate_latest(running.service.application.registry).decode()
    assert "never-heard-of" not in text
    assert 'vfl_serve_requests_total{code="unknown_caller",model=""}' in text


@pytest.mark.parametrize("purpose", ["\\ud800", "a\\nb", "\\u0000"])
def test_a_purpose_that_is_no_text_is_refused_to_its_sender_alone(running: Setting, purpose: str) -> None:
    body = b'{"ids": ["secret-1"], "purpose": "%s"}' % purpose.encode()
    with ThreadPoolExecutor(8) as pool:
        bad = [pool.submit(running.ask, content=body) for _ in range(20)]
        good = [pool.submit(running.ask, token=OTHER, ids=["secret-1"]) for _ in range(60)]
    assert {code(one.result()) for one in bad} == {(422, "bad_request")}
    assert {one.result().status_code for one in good} <= {200, 403}
    assert running.ask(ids=["secret-1"]).status_code == 200


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        (b'{"columns": {%s}}' % b",".join(b'"%d": [1]' % k for k in range(300_000)), (413, "bad_size")),
        (b'{"columns": {%s}}' % b",".join(b'"%d": [1]' % k for k in range(100_000)), (422, "bad_columns")),
        (b'{"ids": [' + b"1," * 2_000_000 + b"1]}", (413, "bad_size")),
    ],
    ids=["columns", "fewer columns", "ids"],
)
def test_large_bodies_do_not_hold_other_requests(running: Setting, body: bytes, refusal: tuple[int, str]) -> None:
    longest, done = 0.0, threading.Event()

    def others() -> None:
        nonlocal longest
        with httpx.Client() as client:
            while not done.is_set():
                began = time.monotonic()
                client.get(f"{running.url}/healthz")
                longest = max(longest, time.monotonic() - began)

    asking = threading.Thread(target=others)
    asking.start()
    assert code(running.ask(content=body)) == refusal
    done.set()
    asking.join()
    assert longest < 1.0


BAD = [
    (b"[" * 1_000_000, {(400, "bad_json")}),
    (b'{"ids": ' + b"[" * 500 + b"]" * 500 + b"}", {(422, "bad_ids"), (400, "bad_json")}),
    (b'{"ids": [NaN]}', {(400, "bad_json"), (422, "bad_ids")}),
    (b'{"ids": [' + b"9" * 300 + b"]}", {(400, "bad_json")}),
    (b'{"ids": ["\\ud800"]}', {(422, "bad_ids")}),
    (b'{"ids": ["\\u0000secret"]}', {(404, "")}),
    (b'{"ids": ["' + b"a" * 4_000_000 + b'"]}', {(404, ""), (422, "bad_ids"), (413, "too_large")}),
    (b'{"ids": ["a"], "purpose": "' + b"a" * 201 + b'"}', {(422, "bad_request")}),
    (b"\xff\xfe", {(400, "bad_json")}),
    (b'{"columns": {"income": [NaN], "age": [1], "calls": [1]}}', {(422, "bad_columns"), (400, "bad_json")}),
    (b'{"columns": {"income": [1' + b"0" * 30 + b'], "age": [1], "calls": [1]}}', {(422, "bad_columns"), (200, "")}),
    (b'{"columns": {"income": [{}], "age": [1], "calls": [1]}}', {(422, "bad_columns")}),
    (b'{"columns": {"income": [[1, 2]], "age": [1], "calls": [1]}}', {(422, "bad_columns")}),
]


@pytest.mark.parametrize(("body", "expected"), BAD, ids=range(len(BAD)))
def test_cells_and_ids_that_no_data_hold(
    running: Setting, body: bytes, expected: set[tuple[int, str]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = running.ask(content=body)
    found = code(answer) if "error" in answer.json() else (answer.status_code, "")
    assert found in expected
    assert "secret" not in caplog.text
    assert all("secret" not in log.read_text() for log in running.folder.glob("*.answers"))


def test_infinite_cells_are_clipped_and_repeated_ids_are_answered_each(running: Setting) -> None:
    (huge, large) = (
        running.ask(content=b'{"columns": {"income": [%s], "age": [1], "calls": [1]}}' % cell).json()
        for cell in (b"1e308", b"100")
    )
    assert huge["predictions"][0]["score"] == large["predictions"][0]["score"]
    found = json.loads(running.ask(ids=["secret-1"] * 1000).content)["predictions"]
    assert len(found) == 1000
    assert np.ptp([one["score"] for one in found]) == 0.0


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
def test_a_small_arrow_body_that_stands_for_much_memory_is_refused(compression: str | None) -> None:
    """Compressed zeros shrink 30,000 times."""
    text = pa.DictionaryArray.from_arrays(pa.array([0, 1]), ["a" * 1000, "b" * 1000])
    for cells in (pa.array(np.zeros(100)), pa.array(["a", None]), text):
        sink, batch = pa.BufferOutputStream(), pa.table({"x": cells})
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_table(batch)
        body = sink.getvalue().to_pybytes()
        if compression is None:
            assert application.of_arrow(body).n == len(cells)
            continue
        with pytest.raises(scoring.Refusal, match="without compression"):
            application.of_arrow(body)


def arrow_body(cells: pa.Array) -> bytes:
    sink, batch = pa.BufferOutputStream(), pa.table({"x": cells})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_table(batch)
    return bytes(sink.getvalue().to_pybytes())


def views(n: int, length: int) -> pa.Array:
    """Return n views of the first `length` bytes of one text."""
    one = np.array([length, int.from_bytes(b"aaaa", "little"), 0, 0], "<i4")
    return pa.Array.from_buffers(
        pa.string_view(), n, [None, pa.py_buffer(np.tile(one, n).tobytes()), pa.py_buffer(b"a" * length)]
    )


@pytest.mark.parametrize(
    "cells",
    [
        views(20_000, 5_000),
        views(20_000, 7_000_000),
        pa.DictionaryArray.from_arrays(pa.array(np.arange(20_000, dtype=np.int32)), views(20_000, 5_000)),
        pa.array([["a"]]),
        pa.array([["a"]], pa.list_view(pa.string())),
        pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([["a"]])),
        pa.RunEndEncodedArray.from_arrays(pa.array([20_000], pa.int32()), pa.array(["a"])),
    ],
    ids=[
        "views",
        "views of long text",
        "views in a dictionary",
        "lists",
        "views of lists",
        "lists in a dictionary",
        "runs",
    ],
)
def test_cells_that_share_memory_or_nest_are_refused(cells: pa.Array) -> None:
    body = arrow_body(cells)
    assert len(body) < application.LARGEST_BODY
    with pytest.raises(scoring.Refusal, match=r"nested values|share memory"):
        application.of_arrow(body)


def test_dictionaries_that_many_batches_share_are_refused_before_they_are_checked() -> None:
    """10,000 batches with a dictionary of 4 MB would take a minute to check."""
    text = pa.array(["é" * (1 << 21)])
    one = pa.record_batch([pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), text)], names=["x"])
    for batches, outcome in (
        (10, contextlib.nullcontext()),
        (10_000, pytest.raises(scoring.Refusal, match="fewer batches")),
    ):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, one.schema) as writer:
            for _ in range(batches):
                writer.write_batch(one)
        with outcome:
            assert application.of_arrow(sink.getvalue().to_pybytes()).n == batches


def test_views_and_dictionaries_of_usual_text_are_read() -> None:
    for cells in (views(20_000, 1_000), pa.array(["a", None, "long enough for a buffer"], pa.string_view())):
        assert application.of_arrow(arrow_body(cells)).n == len(cells)
        assert application.of_arrow(arrow_body(cells.dictionary_encode())).n == len(cells)


def test_cut_and_altered_arrow_bodies_are_refused_or_read() -> None:
    sink, batch = pa.BufferOutputStream(), pa.table({"x": pa.array(["a", "b"]).dictionary_encode()})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_table(batch)
    body, rng = sink.getvalue().to_pybytes(), np.random.default_rng(0)
    for _ in range(300):
        altered = bytearray(body[: int(rng.integers(1, len(body) + 1))])
        altered[int(rng.integers(len(altered)))] = int(rng.integers(256))
        with contextlib.suppress(scoring.Refusal):
            application.of_arrow(bytes(altered))

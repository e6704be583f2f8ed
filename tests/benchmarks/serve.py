"""Latency and throughput of `vfl serve` with two parties on loopback, against a bare gRPC echo of the same bytes, in one run.

    python -m tests.benchmarks.serve [--requests N] [--records N]

The bank's `vfl serve`, the telco's `vfl join` and the echo are processes of their own; this process is the client: httpx, and a
load generator for 16 clients on bare sockets, since httpx alone takes 2 ms of processor time per concurrent request. The echo
returns as many bytes as the service's answer has, to a request as long as the service's. They take turns. Both parties log
every request durably, the bank while the telco is asked: one write to the disk, `fsync`, lies in each answer's way.
`bare HTTP` is httpx at the service's /healthz, which asks nobody. Aims: p99 below 30 ms for one record, 20,000 records per
second in batches, and at most three times the echo's p50 for one record.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pandas as pd
import pyarrow as pa

from tests.ports import free_port
from tests.serving.setting import TOKEN, Setting, train
from vfl.network.wire.streams import import_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ARROW = "application/vnd.apache.arrow.stream"
METHOD = "/echo/Echo"


def echo(port: int) -> None:
    """Answer each request with as many bytes as its first eight state."""
    grpc = import_grpc()

    def handle(request: bytes, _: object) -> bytes:
        return bytes(int.from_bytes(request[:8]))

    server = grpc.server(ThreadPoolExecutor(4))
    method = grpc.unary_unary_rpc_method_handler(handle)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", {"Echo": method}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


@contextlib.contextmanager
def processes(setting: Setting) -> Iterator[None]:
    """Run both parties."""
    vfl = [sys.executable, "-m", "vfl"]
    join = ["join", "scoring.toml", "--as", "telco", "--data", "telco.csv", "--policy", "telco.policy.toml"]
    started = [
        subprocess.Popen([*vfl, *words], cwd=setting.folder, stdout=subprocess.DEVNULL)
        for words in (["serve", "serve.toml"], join)
    ]
    try:
        setting.until(lambda: httpx.get(f"{setting.url}/readyz").status_code == 200, 300.0)
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


def prepared(folder: Path, records: int) -> Setting:
    """Write the files of a service over so many records."""
    setting = Setting(folder)
    setting.prepare(train())
    rng = np.random.default_rng(2)
    ids = [f"c{k}" for k in range(records)]
    bank = pd.DataFrame({"customer": ids, "income": rng.uniform(0, 100, records), "age": rng.uniform(18, 90, records)})
    bank.to_csv(folder / "bank.csv", index=False)
    pd.DataFrame({"customer": ids, "calls": rng.uniform(0, 50, records)}).to_csv(folder / "telco.csv", index=False)
    setting.write(callers="records = 1000000000")
    for party in ("bank", "telco"):
        setting.policy(party, "records = 1000000000\n")
    return setting


def percentiles(seconds: list[float]) -> str:
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
    return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms"


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def fsync(folder: Path) -> float:
    """Return the time of a durable write to the disk."""
    with (folder / "fsync").open("ab") as file:

        def write() -> None:
            file.write(b"x" * 200)
            file.flush()
            os.fsync(file.fileno())

        return timed(write)


async def crowd(setting: Setting, clients: int, requests: int, records: int) -> list[float]:
    """Return the times of requests for single records by clients that ask at the same time, each on a connection of its own."""
    host, _, port = setting.listen.rpartition(":")
    numbers, seconds = iter(range(requests)), []
    head = f"POST /v1/models/credit/predict HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {TOKEN}\r\n"

    async def work() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for k in numbers:
            body = json.dumps({"ids": [f"c{k % records}"]})
            began = time.perf_counter()
            kind = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(f"{head}{kind}{body}".encode())
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(answer.partition("content-length: ")[2].partition("\r\n")[0]))
            seconds.append(time.perf_counter() - began)
            if not answer.startswith("http/1.1 200 "):
                raise RuntimeError(answer)
        writer.close()

    await asyncio.gather(*(work() for _ in range(clients)))
    return seconds


async def crowded_echo(port: int, clients: int, requests: int, request: bytes) -> list[float]:
    """Return the times of as many calls of the echo at the same time, as `crowd`."""
    from grpc import aio

    numbers, seconds = iter(range(requests)), []
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(METHOD)
        await call(request, wait_for_ready=True)

        async def work() -> None:
            for _ in numbers:
                began = time.perf_counter()
                await call(request)
                seconds.append(time.perf_counter() - began)

        await asyncio.gather(*(work() for _ in range(clients)))
    return seconds


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--records", type=int, default=20_000)
    given = parser.parse_args()
    n, records = given.requests, given.records
    with tempfile.TemporaryDirectory() as scratch:
        setting, port = prepared(Path(scratch), records), free_port()
        echoing = multiprocessing.get_context("spawn").Process(target=echo, args=(port,), daemon=True)
        echoing.start()
        with processes(setting), httpx.Client(headers={"authorization": f"Bearer {TOKEN}"}, timeout=30.0) as client:
            url = f"{setting.url}/v1/models/credit/predict"

            def ask(body: bytes, kind: str = "application/json") -> httpx.Response:
                answer = client.post(url, content=body, headers={"content-type": kind})
                answer.raise_for_status()
                return answer

            grpc = import_grpc()
            limits = [("grpc.max_receive_message_length", 1 << 26), ("grpc.max_send_message_length", 1 << 26)]
            call = grpc.insecure_channel(f"127.0.0.1:{port}", limits).unary_unary(METHOD)
            one = json.dumps({"ids": ["c17"]}).encode()
            answered = len(ask(one).content)
            request = answered.to_bytes(8) + bytes(max(len(one) - 8, 0))
            call(request, wait_for_ready=True, timeout=60.0)
            for _ in range(50):
                ask(one)
                call(request)
            own, floor, bare, disk = [], [], [], []
            for k in range(n):
                own.append(timed(lambda: ask(one)))
                floor.append(timed(lambda: call(request)))
                bare.append(timed(lambda: client.get(f"{setting.url}/healthz")))
                disk += [fsync(Path(scratch))] if k % 10 == 0 else []
            p50, least, *parts = (statistics.median(each) for each in (own, floor, bare, disk))
            print(f"fsync          {percentiles(disk)}")
            print(f"gRPC echo      {percentiles(floor)}")
            print(f"bare HTTP      {percentiles(bare)}")
            print(
                f"one record     {percentiles(own)}, {p50 / least:.1f} times the echo's p50, "
                f"{p50 / (least + sum(parts)):.1f} times echo, bare HTTP and fsync together"
            )
            own, floor = [], []
            for _ in range(5):
                own += asyncio.run(crowd(setting, 16, n, records))
                floor += asyncio.run(crowded_echo(port, 16, n, request))
            ratio = float(np.percentile(own, 99) / np.percentile(floor, 99))
            print(f"echo, 16       {percentiles(floor)}")
            print(
                f"16 clients     {percentiles(own)}, {ratio:.1f} times the echo's p99, {16 / np.mean(own):.0f} requests/s"
            )
            ids = [f"c{k % records}" for k in range(10_000)]
            sink = pa.BufferOutputStream()
            table = pa.table({"id": ids})
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            for name, body, kind, size in (
                ("JSON, 1,000", json.dumps({"ids": ids[:1000]}).encode(), "application/json", 1000),
                ("Arrow, 10,000", sink.getvalue().to_pybytes(), ARROW, 10_000),
            ):
                took = [timed(lambda body=body, kind=kind: ask(body, kind)) for _ in range(10)]
                print(f"{name:<14} {percentiles(took)}, {size / statistics.median(took):,.0f} records/s")
        echoing.terminate()


if __name__ == "__main__":
    main()

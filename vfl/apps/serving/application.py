"""HTTP side of the scoring service: requests in JSON or Arrow, answers in the same form, and the description in OpenAPI 3.1."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vfl.apps.serving.scoring import MOST_RECORDS, Refusal, ScoreRequest, too_many
from vfl.base.documents import parse_json
from vfl.base.losses import loss_of
from vfl.errors import ConsentRefused
from vfl.launch.run.model import labels_of, probabilities_of
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request

    from vfl.apps.serving.callers import Callers
    from vfl.apps.serving.file import Caller
    from vfl.apps.serving.scoring import Scores, ServedModels, Version

ARROW = "application/vnd.apache.arrow.stream"
OPENAPI = Path(__file__).with_name("openapi.json")
LARGEST_BODY = 1 << 23
MOST_WAITING = 256
"""Largest number of requests that are answered at the same time; further requests are refused at once."""
MOST_HELD = 8 * LARGEST_BODY
"""Largest total size, in bytes, of the request bodies that are received or answered at the same time."""
LARGEST_AT_ONCE = 1 << 14
"""Largest body, in bytes, that is read and answered in the thread of the connections. A second thread does larger ones."""
ERRORS = "unusable", "unknown"
"""Reasons of records without a score: a party cannot use the record's cells, and its owner lets callers know; all others."""
log = logging.getLogger("vfl.serving")
A = TypeVar("A")


class Application:
    """Starlette application of a service."""

    def __init__(self, scoring: ServedModels, callers: Callers) -> None:
        self._scoring, self._callers = scoring, callers
        self._waiting = self._held = 0
        self._large = ThreadPoolExecutor(1, "vfl large bodies")
        self._loop: asyncio.AbstractEventLoop | None = None
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        self._requests = Counter("vfl_serve_requests", "requests by model and code", ["model", "code"], **own)
        self._records = Counter("vfl_serve_records", "scored records", ["model", "version"], **own)
        self._fills = Counter("vfl_serve_fills", "scored records with a fill for a party", ["party"], **own)
        buckets = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
        self._seconds = Histogram("vfl_serve_seconds", "time of answered requests", buckets=buckets, **own)
        self._connected = Gauge("vfl_serve_connected", "1 while a party can be reached", ["party"], **own)
        self._stale = Gauge(
            "vfl_serve_stale", "1 while a party scores earlier records of unreadable data", ["party"], **own
        )
        self._ready = Gauge("vfl_serve_ready", "1 while all active versions can be answered", **own)
        self.app = Starlette(
            routes=[
                Route("/v1/models/{model}/predict", partial(self._answered, self._scored), methods=["POST"]),
                Route(
                    "/v1/models/{model}/versions/{version}/predict",
                    partial(self._answered, self._scored),
                    methods=["POST"],
                ),
                Route("/v1/models", partial(self._answered, self._listed)),
                Route("/healthz", self._healthy),
                Route("/readyz", self._readiness),
                Route("/openapi.json", self._described),
            ],
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        tending = asyncio.create_task(self._tend())
        try:
            yield
        finally:
            tending.cancel()
            self._large.shutdown(wait=False, cancel_futures=True)
            self._scoring.end()

    def soon(self, work: Callable[[], None]) -> None:
        """Call `work` in the thread that answers requests. Other threads use this method to get work into that thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(work)

    async def _tend(self) -> None:
        while True:
            self._scoring.tend()
            for party, lane in self._scoring.lanes.items():
                self._connected.labels(party).set(lane.connected)
                self._stale.labels(party).set(lane.stale)
            self._ready.set(not self._scoring.ready())
            await asyncio.sleep(0.2)

    async def _healthy(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _readiness(self, _: Request) -> Response:
        lacking, lanes = self._scoring.ready(), self._scoring.lanes.values()
        status = "not ready" if lacking else "stale" if any(lane.stale for lane in lanes) else "ready"
        return JSONResponse({"status": status}, 503 if lacking else 200)

    async def _described(self, _: Request) -> Response:
        return JSONResponse(document())

    async def _listed(self, request: Request, caller: Caller) -> Response:
        shown = self._scoring.described()
        return JSONResponse(
            {name: own for name, own in shown.items() if caller.models is None or name in caller.models}
        )

    async def _answered(self, answer: Callable[[Request, Caller], Awaitable[Response]], request: Request) -> Response:
        """Answer a known caller, and refuse others with 401. All errors have one form, and quote nothing of the request."""
        model, began, code = request.path_params.get("model", ""), time.monotonic(), "ok"
        model = model if self._scoring.known(model) else ""  # a stranger's text never becomes a label
        try:
            caller = self._caller(request)
            self._require_room()
            self._waiting += 1
            try:
                response = await answer(request, caller)
            finally:
                self._waiting -= 1
            self._seconds.observe(time.monotonic() - began)
        except Refusal as refusal:
            code, response = refusal.code, _refused(refusal)
        except ConsentRefused as refused:
            log.error(json.dumps({"event": "refused", "why": str(refused)}))  # noqa: TRY400 - a file that cannot be written
            code, response = "not_counted", _refused(Refusal(503, "not_counted", "the service cannot count requests"))
        except Exception as error:  # noqa: BLE001 - a trace could hold data
            log.error(json.dumps({"event": "failed", "kind": type(error).__name__}))  # noqa: TRY400 - as above
            code, response = (
                "failed",
                _refused(Refusal(500, "failed", "the service failed; its owner's log names the error")),
            )
        self._requests.labels(model, code).inc()
        return response

    def _require_room(self) -> None:
        if self._waiting >= MOST_WAITING:
            raise Refusal(503, "busy", "too many requests are being answered", retry=1.0)

    def _caller(self, request: Request) -> Caller:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else ""
        caller = self._callers.identified(token, request.state.connection.certificate)
        if caller is None:
            raise Refusal(401, "unknown_caller", "show a bearer token or a client certificate of this service")
        request.state.connection.known = True
        return caller

    async def _scored(self, request: Request, caller: Caller) -> Response:
        model = request.path_params["model"]
        if caller.models is not None and model not in caller.models:
            raise Refusal(403, "model_not_allowed", "this caller may not ask for this model")
        version = self._scoring.version(model, request.path_params.get("version"))
        with contextlib.ExitStack() as stack:
            return await self._of_body(request, caller, version, await self._body(request, stack))

    async def _body(self, request: Request, stack: contextlib.ExitStack) -> bytes:
        """Return the body; refuse it as soon as it, or all bodies together, are too large. stack : ends with the request."""
        pieces, size = [], 0

        def end() -> None:
            self._held -= size

        stack.callback(end)
        async for piece in request.stream():
            size, self._held = size + len(piece), self._held + len(piece)
            if size > LARGEST_BODY:
                raise Refusal(413, "too_large", f"send at most {LARGEST_BODY >> 20} MiB per request")
            if self._held > MOST_HELD:
                raise Refusal(503, "busy", "too many requests are being answered", retry=1.0)
            pieces.append(piece)
        return b"".join(pieces)

    async def _of_body(self, request: Request, caller: Caller, version: Version, body: bytes) -> Response:
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind == ARROW:
            headers = request.headers.get("vfl-purpose", ""), request.headers.get("vfl-model")
            asked = await self._apart(len(body), of_arrow, body, *headers)
        elif kind == "application/json":
            n_columns = sum(map(len, version.made_of.values()))
            asked = await self._apart(len(body), of_json, body, 2 * MOST_RECORDS * (1 + n_columns))
        else:
            raise Refusal(415, "bad_type", f"send application/json or {ARROW}")
        version.require(asked.model)
        scores = await self._scoring.score(version, caller, asked)
        self._records.labels(version.model, version.name).inc(asked.n)
        for party in scores.filled:
            self._fills.labels(party).inc(asked.n)
        accepted = request.headers.get("accept", "")
        arrow = ARROW in accepted or (kind == ARROW and "application/json" not in accepted)
        return await self._apart(len(body), _arrow_answer if arrow else _json_answer, asked, scores)

    async def _apart(self, size: int, work: Callable[..., A], *arguments: Any) -> A:
        """Do the work of one request: at once if its body is small, else in the thread that serves large bodies."""
        if size <= LARGEST_AT_ONCE:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._large, partial(work, *arguments))


def of_json(body: bytes, most: int) -> ScoreRequest:
    """Return the request in a JSON body. Raises Refusal. most : largest number of commas, which bounds the time to parse."""
    if body.count(b",") > most:
        raise too_many()
    try:
        plain = parse_json(body)
    except ValueError:
        raise Refusal(400, "bad_json", "the body is not JSON") from None
    if not isinstance(plain, dict) or (set(plain) - {"ids", "columns", "purpose", "model"}):
        raise Refusal(422, "bad_request", "send an object with ids, columns, purpose or model")
    ids, columns = plain.get("ids"), plain.get("columns", {})
    if ids is not None and (not isinstance(ids, list) or not all(_is_id(own) for own in ids)):
        raise Refusal(
            422, "bad_ids", "ids must be a list of text or whole numbers, or of lists of them for composite ids"
        )
    if not isinstance(columns, dict) or not all(isinstance(own, list) for own in columns.values()):
        raise Refusal(422, "bad_columns", "columns must be an object with a list for each column")
    return ScoreRequest(ids, columns, plain.get("purpose", ""), plain.get("model"))


def _is_id(cell: Any) -> bool:
    return type(cell) in (str, int) or (type(cell) is list and all(type(own) in (str, int) for own in cell))


def of_arrow(body: bytes, purpose: str = "", model: str | None = None) -> ScoreRequest:
    """Return the request in a body that is an Arrow stream. purpose, model : from the HTTP headers. Raises Refusal."""
    try:
        table = _table(body)
    except (pa.ArrowException, OSError, ValueError, TypeError, struct.error):
        raise Refusal(400, "bad_arrow", "the body is not an Arrow stream") from None
    if len(set(table.column_names)) < len(table.column_names):
        raise Refusal(422, "bad_columns", "two columns have one name")
    columns = {name: table.column(name) for name in table.column_names}
    ids = columns.pop("id", None)
    if ids is not None and not (
        pa.types.is_integer(ids.type) or pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type)
    ):
        raise Refusal(422, "bad_ids", "the column id must hold text or whole numbers")
    if ids is not None and ids.null_count:
        raise Refusal(422, "bad_ids", "an id is missing")
    return ScoreRequest(None if ids is None else ids.to_pylist(), columns, purpose, model)


def _table(body: bytes) -> pa.Table:
    """Return the table in an Arrow stream, after checking it.

    Columns, views and dictionaries may refer to the same bytes, so that a small body may stand for much text. The memory for
    the text, and the time to check the text, are bounded before they are used.
    """
    if _is_compressed(body):
        raise Refusal(400, "bad_arrow", "send the Arrow stream without compression")
    table = pa.ipc.open_stream(body).read_all()
    table.validate()
    for kind in (own.value_type if pa.types.is_dictionary(own) else own for own in table.schema.types):
        if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
            raise Refusal(422, "bad_columns", "send numbers, text, truth values or dates, without nested values")
    size = 0
    for chunk in chain.from_iterable(column.chunks for column in table.columns):
        size += chunk.nbytes + _viewed(chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk)
        if size > MOST_HELD:
            raise Refusal(413, "too_large", "the cells share memory: send less text, or fewer batches")
    table.validate(full=True)
    return table


def _viewed(cells: pa.Array) -> int:
    """Return the total length of text in an array of string views; 0 for other arrays."""
    if not len(cells) or not (pa.types.is_string_view(cells.type) or pa.types.is_binary_view(cells.type)):
        return 0
    # A view has 16 bytes, of which the first four are its length (Arrow Columnar Format, "Variable-size Binary View Layout").
    lengths = np.frombuffer(cells.buffers()[1], "<i4")[4 * cells.offset :: 4][: len(cells)]
    return int(np.maximum(lengths, 0).sum(dtype=np.int64))


def _is_compressed(body: bytes) -> bool:
    """Return True if a batch of an Arrow stream is compressed. A few compressed bytes may stand for any amount of memory.

    Message.fbs of the Arrow format: field 2 of a message is its header, field 1 of a dictionary's header is a batch, and
    field 3 of a batch is its compression.
    """
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(body)):
        if message.type in ("record batch", "dictionary"):
            head = message.metadata.to_pybytes()
            batch = _field(head, struct.unpack_from("<I", head)[0], 2)
            if message.type == "dictionary":
                batch = _field(head, batch, 1)
            if _field(head, batch, 3):
                return True
    return False


def _field(head: bytes, table: int, number: int) -> int:
    """Return the position of the table in a field of a FlatBuffers table; 0 if the field is absent."""
    fields = table - struct.unpack_from("<i", head, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", head, fields)[0]:
        return 0
    offset = struct.unpack_from("<H", head, fields + 4 + 2 * number)[0]
    return table + offset + struct.unpack_from("<I", head, table + offset)[0] if offset else 0


def _results(scores: Scores) -> tuple[Any, Any, Any, Any]:
    """Return (True for each known record, scores, labels, probabilities). Probabilities are None for a loss without them."""
    job, sums = scores.version.job, scores.values
    known = np.isfinite(sums.reshape(len(sums), -1)).all(axis=1)
    whole = np.where(known.reshape(-1, *(1,) * (sums.ndim - 1)), sums, 0.0)
    loss = loss_of(job.loss)
    probabilities = probabilities_of(job, whole) if loss.log_odds or loss.multinomial else None
    cut = next(iter(scores.version.parts.values())).threshold
    return known, whole, labels_of(job, whole, cut), probabilities


def _errors(scores: Scores) -> Any:
    """Return the reason why each record has no score, if it has none."""
    return np.where(np.isinf(scores.values.reshape(len(scores.values), -1)).any(axis=1), *ERRORS)


def _facts(scores: Scores) -> dict[str, Any]:
    version = scores.version
    facts: dict[str, Any] = {"model": version.model, "version": version.name, "digest": version.digest}
    if version.threshold is not None:
        facts["threshold"] = version.threshold
    return facts | ({"fallback": dict.fromkeys(scores.filled, "fill")} if scores.filled else {})


def _json_answer(asked: ScoreRequest, scores: Scores) -> Response:
    known, sums, labels, probabilities = _results(scores)
    ids = asked.ids if asked.ids is not None else [None] * asked.n
    given = probabilities.tolist() if probabilities is not None else [None] * asked.n
    rows = zip(ids, known, sums.tolist(), np.asarray(labels).tolist(), given, _errors(scores).tolist(), strict=True)
    classes = scores.version.job.class_names
    predictions = []
    for own, there, score, label, probability, error in rows:
        row: dict[str, Any] = {} if own is None else {"id": own}
        if not there:
            predictions.append({**row, "error": error})
            continue
        row |= {"label": label, "score": dict(zip(classes, score, strict=True)) if classes else score}
        if probability is not None:
            row["probability"] = dict(zip(classes, probability, strict=True)) if classes else probability
        predictions.append(row)
    content = json.dumps({**_facts(scores), "predictions": predictions}, ensure_ascii=False, allow_nan=False)
    return Response(content, 200 if known.any() else 404, media_type="application/json")


def _arrow_answer(asked: ScoreRequest, scores: Scores) -> Response:
    known, sums, labels, probabilities = _results(scores)
    classes = scores.version.job.class_names
    columns: dict[str, Any] = {} if asked.ids is None else {"id": pa.array(asked.ids)}
    columns |= {"known": pa.array(known), "label": pa.array(np.asarray(labels), mask=~known)}
    columns["error"] = pa.array(_errors(scores), mask=known)
    for name, values in (("score", sums), ("probability", probabilities)):
        if values is None:
            continue
        each = {f"{name}[{own}]": values[:, k] for k, own in enumerate(classes)} if classes else {name: values}
        columns |= {own: pa.array(np.ascontiguousarray(column), mask=~known) for own, column in each.items()}
    table = pa.table(columns).replace_schema_metadata({"vfl": json.dumps(_facts(scores))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return Response(sink.getvalue().to_pybytes(), 200 if known.any() else 404, media_type=ARROW)


def _refused(refusal: Refusal) -> Response:
    headers = {} if refusal.retry is None else {"Retry-After": f"{refusal.retry:.0f}"}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    said = {"error": {"code": refusal.code, "message": str(refusal)}}
    return JSONResponse(said, refusal.status, headers=headers)


def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    plain: dict[str, Any] = parse_json(OPENAPI.read_bytes())
    return plain | {"info": plain["info"] | {"version": __version__}}

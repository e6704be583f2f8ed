"""Description of the scoring service in OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

from vfl.version import __version__

ARROW = "application/vnd.apache.arrow.stream"
_ID = {"type": ["string", "integer"]}
_SCORE = {"oneOf": [{"type": "number"}, {"type": "object", "additionalProperties": {"type": "number"}}]}
_ERRORS = {
    "400": "The body is not JSON or Arrow.",
    "401": "The token or certificate is not known.",
    "403": "The caller, or the policy of a party's owner, does not allow it.",
    "404": "The model or version is not known, or no record of the request is known to all parties.",
    "409": "The model in use is not the one that the request expects.",
    "413": "Too many records or bytes.",
    "415": "Neither JSON nor Arrow.",
    "422": "The request is malformed, or its cells do not fit the model's columns.",
    "429": "A rate, or a count of records per day, is used up.",
    "503": "A party is away, or the version is not loaded; try again.",
    "504": "No answer within the time limit; try again.",
}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}


def _named(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _predict(*parameters: str) -> dict[str, Any]:
    reference = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "post": {
            "summary": "Score records by id, or with columns of the caller's own",
            "operationId": "predict" + "Version" * (len(parameters) - 1),
            "parameters": [_named(name) for name in parameters],
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {"schema": {"$ref": "#/components/schemas/Request"}},
                    ARROW: {"schema": {"description": "A column of ids, and the caller's own columns."}},
                },
            },
            "responses": {
                "200": {
                    "description": "Scores, in the order of the request.",
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Answer"}},
                        ARROW: {"schema": {"description": "Columns id, known, label, margin, probability."}},
                    },
                },
                **{status: {"description": said, "content": reference} for status, said in _ERRORS.items()},
            },
        }
    }


def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    prediction = _object([], id=_ID, label={}, margin=_SCORE, probability=_SCORE, error={"const": "unknown"})
    schemas = {
        "Request": {
            **_object(
                [],
                ids={"type": "array", "items": _ID, "minItems": 1},
                columns={"type": "object", "additionalProperties": {"type": "array"}},
                purpose={"type": "string", "maxLength": 200},
                model={"type": "string", "description": "Digest of the model that the caller expects."},
            ),
            "description": "ids, or columns, or both: columns replace those that a party looks up, all of them or none.",
        },
        "Answer": _object(
            ["model", "version", "digest", "predictions"],
            model={"type": "string"},
            version={"type": "string"},
            digest={"type": "string"},
            threshold={
                "type": "number",
                "description": "Of the labels: a probability with logistic loss, else a margin.",
            },
            fallback={"type": "object", "description": "Parties that were away, and the replacement of their part."},
            predictions={"type": "array", "items": prediction},
        ),
        "Error": _object(
            ["error"], error=_object(["code", "message"], code={"type": "string"}, message={"type": "string"})
        ),
    }
    ok = {"responses": {"200": {"description": "Yes."}, "503": {"description": "No."}}, "security": []}
    return {
        "openapi": "3.1.0",
        "info": {"title": "vfl serve", "version": __version__},
        "security": [{"bearer": []}, {"certificate": []}],
        "paths": {
            "/v1/models/{model}/predict": _predict("model"),
            "/v1/models/{model}/versions/{version}/predict": _predict("model", "version"),
            "/v1/models": {
                "get": {"summary": "Models, versions and digests", "responses": {"200": {"description": "By name."}}}
            },
            "/healthz": {"get": {"summary": "Is the process alive?", **ok}},
            "/readyz": {"get": {"summary": "Can all active versions be answered?", **ok}},
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "certificate": {"type": "mutualTLS"},
            },
        },
    }

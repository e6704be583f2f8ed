"""Every field of every message has a test that lies about it, or a reason why a lie about it is harmless.

A new message, or a new field of one, fails here until its row says which test lies about it.
"""

from __future__ import annotations

from pathlib import Path

import vfl.network.kinds  # noqa: F401  # registers all kinds
from tests.parties.test_claims import JOBS, asked
from vfl.queries.kinds import registered

TESTS = Path(__file__).parents[1]
QUERY = "parties/test_claims.py::test_a_lie_about_any_value_of_a_query_is_refused_or_costs_what_the_book_says"
REPLY = "coordinator/test_replies.py::test_a_lie_ends_in_a_sentence_or_changes_no_charge"
CALL = (
    "parties/joined/test_desk.py::test_a_lie_about_any_value_of_a_call_is_answered_in_a_sentence_that_names_the_cause"
)
SHARES = REPLY
COORDINATOR = "answered by the coordinator that fills it; no party receives it"
NONE = "no field"

ASKED = {
    "backward": "weighting blocks centres scales clip event part fold capped knots subsample",
    "columns": "rows knots subsample",
    "counts": "weighting columns most event part knots subsample",
    "descend": "weighting steps start recomputes parts replayed capped knots subsample",
    "forward": "coordinates into shifts side knots subsample",
    "gram": "weighting blocks centres scales clip event part fold capped held own knots subsample",
    "moments": "widths reach means event part uncentred knots subsample",
    "ranges": "columns cells event part of_curves knots subsample",
    "record_norms": "rows side into knots subsample",
    "select": "weighting coordinates centres scales clip rules event part knots subsample",
}
"""Queries that the lying coordinator of tests/parties/test_claims.py sends, with every value changed in turn."""

FIELDS: dict[str, tuple[str, str]] = {name: (fields, QUERY) for name, fields in ASKED.items()} | {
    "groups": (
        "columns knots subsample",
        "evaluation/test_fairness.py::test_a_party_answers_for_no_other_column",
    ),
    "tally": (
        "statistic event side knots subsample",
        "coordinator/test_secure.py::test_parties_refuse_queries_about_margins",
    ),
    "release_key": ("round part attempt", CALL),
    "notice": ("phase run account ledger noted", CALL),
    "offer": ("purpose run job digest parties source keeps resumed later last again", CALL),
    "finish": ("why", "the work of the coordinator that says so ends; the reason is shown to the owner as text"),
    "ping": ("seconds size", CALL),
    "introduced": ("keys", CALL),
    "take_salt": ("maker text", CALL),
    "begin_aligning": ("pending sizes", CALL),
    "multiply": ("owner holder", CALL),
    "send_set": ("owner to", CALL),
    "send_linear_predictors": ("to", CALL),
    "take_linear_predictors": ("sender", CALL),
    "measure": ("statistic", CALL),
    "score": ("asked", CALL),
    "keep": ("parts", CALL),
    "reply": ("released vector selected seconds", REPLY),
    "greeting": ("version n_records keeps_ledger alignment library", REPLY),
    "ledger_heads": ("own noted", "parties/test_party_ledger.py::test_of_a_partys_book"),
    "encryption_key": ("key signature", REPLY),
    "commitment": ("digest", REPLY),
    "contribution": ("elements nonce", REPLY),
    "ids_greeting": (
        "version n_ids kind rule pending kept",
        "launch/test_alignment.py::test_another_version_is_refused",
    ),
    "indexed": ("alignment hash n_records", "launch/test_alignment.py::test_different_hashes_are_detected"),
    "encrypted": ("texts", "parties/joined/test_desk.py::test_keys_that_are_not_signed"),
    "about": ("ids", "a party says whether its own new records have ids; the ids themselves are checked"),
    "applied": ("n_records n_rows", "launch/test_joins.py::test_parties_that_state_other_rows"),
    "scored": ("outcomes", "serving/test_faults.py::test_a_party_that_is_away_is_named_or_filled_as_declared"),
    "kept": (
        "states stale",
        "serving/test_records.py::test_unreadable_data_are_told_to_the_owner_in_readiness_and_in_metrics",
    ),
    "pong": ("seconds version", "shown to the operator alone"),
    "failure": ("kind reason", "a party may fail for any reason; its sentence is shown as text"),
    **dict.fromkeys(("meet", "state_records", "check_records", "toss", "take_toss", "disclose"), ("session", SHARES)),
    **dict.fromkeys(("open_rows", "check_rows", "deal_terms"), ("session version", SHARES)),
    **dict.fromkeys(("contribute_products", "deal_products"), ("session key", SHARES)),
    "begin_session": ("session n_records keys knots held_out", SHARES),
    "take_moments": ("session version", SHARES),
    "mask_moments": ("session version w centre clamp", SHARES),
    "contribute_moments": ("session version number key", SHARES),
    "set_up": ("session number cap rows blocks", SHARES),
    "take_columns": ("session owner", SHARES),
    "mask_angles": ("session version w clamp", SHARES),
    "share_residual": ("session version owners", SHARES),
    "deal_sum": ("session version setup query key", SHARES),
    "contribute": ("session version setup query key fresh", SHARES),
    "mask_products": ("session rows", SHARES),
    "take_products": ("session owner width", SHARES),
    "exact_tally": ("statistic event side knots subsample", COORDINATOR),
    "sample": ("rate knots subsample", COORDINATOR),
    "reweigh": ("weighting fold knots subsample", COORDINATOR),
    **dict.fromkeys(
        ["done", "load", "send_labels", "introduce", "make_salt", "read_ids", "conclude", "apply", "add_up"], ("", NONE)
    ),
}


def test_every_field_of_every_message_is_lied_about() -> None:
    known = {name: {field for field, _ in fields} for name, fields in registered()["message"].items()}
    assert known == {name: set(fields.split()) for name, (fields, _) in FIELDS.items()}


def test_the_lying_tests_exist() -> None:
    for _, test in FIELDS.values():
        path, found, name = test.partition("::")
        assert not found or f"def {name}(" in (TESTS / path).read_text(encoding="utf-8"), test


def test_the_lying_coordinator_sends_every_query() -> None:
    kinds = {type(query).__name__ for job in JOBS for query, _, _ in asked(job, "bank")}
    assert {kind.lower() for kind in kinds} == {name.replace("_", "") for name in ASKED}

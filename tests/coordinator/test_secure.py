"""Training on shares: opened sums to the bit, what the coordinator receives, and losses at every request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from coordinator.coordinator import agreed_records
from coordinator.rounds import Lost, Round
from coordinator.states.iterate import Iterate
from parties.record_cap import admit
from tests.coordinator.shares import N, Watched, job, outcome, received, table
from vfl.errors import PrivacyError, VersionMismatch
from vfl.launch.run import checkpoint
from vfl.network.messages import Greeting
from vfl.planning import plan
from vfl.privacy.events import ReleaseKey
from vfl.queries import Forward, Records, Reply, Select
from vfl.secure import requests
from vfl.secure.noise import drawn
from vfl.secure.requests import Contribute, openings
from vfl.secure.roles import DEALER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.transport import PendingCall

DATA = table()
ALONE = vfl.federation.Secure(dealer=None)
FEW_ALONE: dict[str, Any] = {"trust": ALONE, "solver": vfl.SkGD(block_size=4, passes=2)}


class Checked(Watched):
    """Transport that recomputes every opened sum from the parties' columns, residuals and noise in the clear."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.checked = 0

    def collect(self, posted: Sequence[PendingCall]) -> list[Any]:
        """Compare the sum of all elements with the clear sum."""
        answers = super().collect(posted)
        found = {own.to: reply for own, (reply, _) in zip(posted, answers, strict=True)}
        if all(isinstance(found.get(party), requests.Contribution) for party in self.holders):
            request = next(
                request for _, request in reversed(self.requests) if isinstance(request, requests.Contribute)
            )
            self._compare(request, found)
        return answers

    def _compare(self, request: requests.Contribute, found: dict[str, Any]) -> None:
        sharing = plan(self.spec, N).sharing
        ring, at = sharing.roles.ring, 0
        opened = ring.decoded(ring.added([np.frombuffer(found[q].elements, dtype="<u8") for q in self.holders]))
        holders = {name: party._holder for name, party in self.holders.items()}
        if sharing.roles.dealt:
            shares = [holders[h]._member.share(request.version) for h in sharing.roles.holders]
        else:
            shares = [holder._pair._share_at(request.version) for holder in holders.values()]
        residual = ring.decoded(ring.added(shares))
        assert abs(residual).max() <= sharing.residual
        for opening in openings(request.query, request.key, request.setup, request.version):
            rows = holders[opening.owner]._known[1].rows[opening.start : opening.stop].astype(object)
            clear = rows @ residual.astype(object)
            deviations = sharing.deviations(opening.owner, request.query.clip.cap, request.query.event.sigma)
            for who in sharing.roles.contributors:
                own = deviations.dealer if who == DEALER else deviations.party
                clear = clear + drawn(self.spec.noise_source(), opening.key, who, own, opening.size)
            assert (clear == opened[at : at + opening.size]).all()
            at += opening.size
        self.checked += 1


class TestBits:
    """Opened sums are the clear integers and all contributors' noise."""

    @pytest.mark.parametrize(("parties", "collude"), [(2, 1), (3, 1), (3, 2), (5, 1), (5, 4)])
    def test_opened_sums(self, parties: int, collude: int) -> None:
        transport = Checked(job(parties, collude), DATA)
        outcome(transport)
        assert transport.checked >= 9

    @pytest.mark.parametrize("label", ["q0", "q1"])
    def test_opened_sums_without_a_dealer(self, label: str) -> None:
        spec = job(trust=ALONE)
        partition = vfl.FeaturePartition({q: spec.partition.columns(q) for q in ("q0", "q1")}, label=(label, "y"))
        transport = Checked(replace(spec, partition=partition), DATA)
        outcome(transport)
        assert transport.checked >= 9
        assert DEALER not in {to for to, _ in transport.requests}

    @pytest.mark.parametrize(
        "solver",
        [vfl.solvers.CD(passes=3), vfl.solvers.GD(passes=3), vfl.SkGD(passes=3, sampling="full"), vfl.SkGD(joint=True)],
    )
    @pytest.mark.parametrize("trust", [vfl.federation.Secure(), ALONE], ids=["dealer", "alone"])
    def test_solvers(self, solver: Any, trust: Any) -> None:
        transport = Checked(job(solver=solver, trust=trust), DATA)
        outcome(transport)
        assert transport.checked >= 3

    def test_steps_at_one_model_are_opened_together(self) -> None:
        transport = Checked(job(solver=vfl.SkGD(passes=3, block_size=2, sampling="full")), DATA)
        outcome(transport)
        opened = [
            request for to, request in transport.requests if isinstance(request, requests.Contribute) and to == "q0"
        ]
        assert [len(request.query.blocks) for request in opened] == [4, 4, 4]

    def test_charges_are_those_of_trusted_mode(self) -> None:
        events = [
            [event for round_ in happened if isinstance(round_, Round) for event in round_.events]
            for _, happened in (outcome(Watched(job(), DATA)), _trusted(job(trust="trusted")))
        ]
        assert events[0] == events[1]

    def test_a_gradient_is_that_of_trusted_mode_within_the_bound(self) -> None:
        """With a clip that cuts nothing, w = 0 and noise taken off, only rounding and the series differ."""
        loose = vfl.solvers.GD(passes=1, clip=20.0)
        gradients = []
        for spec in (job(solver=loose), job(solver=loose, trust="trusted")):
            transport = Watched(spec, DATA)
            _, events = outcome(transport) if spec.trust == "secure" else _trusted(spec)
            (released,) = [e.released for e in events if isinstance(e, Round) and e.kind == "Backward"]
            gradients.append(np.concatenate(released) - _noise_of(spec, events))
        sharing = plan(job(solver=loose), N).sharing
        bound = sharing.bias * 2.0 * _multiplier(events) * 20.0 + 1e-9
        assert abs(gradients[0] - gradients[1]).max() < bound
        assert abs(gradients[0] - gradients[1]).max() > 0.0


class TestProducts:
    """Squared loss: all products of columns are opened once."""

    @pytest.mark.parametrize(("parties", "dealer"), [(2, "separate"), (3, "separate"), (5, "separate"), (2, None)])
    def test_without_noise_the_pieces_are_the_clear_products(
        self, parties: int, dealer: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("vfl.secure.noise.drawn", lambda noise, key, who, s, size: np.zeros(size, np.int64))
        spec = replace(_squared(parties), trust=vfl.federation.Secure(dealer=dealer))
        transport = Watched(spec, REGRESSION)
        _, events = outcome(transport)
        sharing = plan(spec, N).sharing
        held = {name: party._holder for name, party in transport.holders.items()}
        made_by = {q: own._gram if dealer else own._products_of_pair for q, own in held.items()}
        rows = [own._rows * sharing.caps()[name] for name, own in made_by.items()]
        columns = np.vstack(rows) * 2.0**-sharing.bits.columns  # the label is the last column
        gram = columns @ columns.T
        made = [e for e in events if isinstance(e, Round) and e.kind == "Gram"]
        assert _matrix(spec, [e.released for e in made])[:, :-1] == pytest.approx(gram[:, :-1], rel=1e-9)
        assert [len(e.charges) for e in made] == [1] + [0] * (parties - 2)

    @pytest.mark.parametrize(
        ("lost", "who"),
        [
            (requests.MaskProducts, "q0"),
            (requests.TakeProducts, "q1"),
            (requests.DealProducts, DEALER),
            (requests.ContributeProducts, "q1"),
            (requests.Disclose, "q0"),
        ],
    )
    def test_a_loss_at_every_request(self, lost: type, who: str) -> None:
        found, events = outcome(Watched(_squared(2), REGRESSION, (lost, who), answered=True))
        assert len([event for event in events if isinstance(event, Lost)]) == 1
        assert (found.w == outcome(Watched(_squared(2), REGRESSION))[0].w).all()

    @pytest.mark.parametrize("at", [2, 4])
    @pytest.mark.parametrize("private", [False, True], ids=["seeded", "private"])
    def test_kill_and_resume(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, private: bool, at: int) -> None:
        """All products are in the log with the first piece: the run goes on without a second opening or charge."""

        class Killed(Exception):
            pass

        def watch(event: object) -> None:
            if isinstance(event, Round):
                opened.extend(event.products)
                if event.number == at:
                    raise Killed

        opened: list[np.ndarray] = []
        monkeypatch.setattr("vfl.queries.gram.MOST_HELD_BYTES", 1)  # a piece per column of the first party
        spec = _squared(2)
        spec = replace(spec, privacy=vfl.Privacy(epsilon=8.0)) if private else spec
        with pytest.raises(Killed):
            vfl.train(spec, REGRESSION, at="inprocess", output=tmp_path / "run", watch=watch)
        assert [len(row) for row in opened] == list(range(8, 0, -1))  # seven columns with the intercept, and the label
        monkeypatch.setattr("vfl.secure.noise.drawn", lambda *_: pytest.fail("the products were opened again"))
        events: list[Any] = []
        again = vfl.resume(tmp_path / "run", REGRESSION, at="inprocess", watch=events.append)
        assert not [charge for event in events if isinstance(event, Round | Lost) for charge in event.charges]
        pieces = [e.released for e in events if isinstance(e, Round) and e.kind == "Gram"]
        of = plan(spec, N).solver.pieces(plan(spec, N).problem)
        whole = np.zeros((8, 8))
        for j, row in enumerate(opened):
            whole[j, j:] = whole[j:, j] = row
        for query, piece in zip(of[len(of) - len(pieces) :], pieces, strict=True):
            assert all((own == expected).all() for own, expected in zip(piece, query.read(whole), strict=True))
        assert len(pieces) == len(of) - at // 2
        if not private:
            monkeypatch.undo()
            monkeypatch.setattr("vfl.queries.gram.MOST_HELD_BYTES", 1)
            assert (again.w == outcome(Watched(spec, REGRESSION))[0].w).all()

    def test_a_resumed_run_without_the_products_cannot_pay_for_them_again(
        self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Fresh noise makes a second opening another release, which the plan does not cover."""
        spec = replace(_squared(3), privacy=vfl.Privacy(epsilon=8.0))

        def watch(event: object) -> None:
            if isinstance(event, Round) and event.number == 2:
                raise RuntimeError

        with pytest.raises(RuntimeError):
            vfl.train(spec, REGRESSION, at="inprocess", output=tmp_path / "run", watch=watch)
        start, budget, log = checkpoint.read(tmp_path / "run", spec)
        monkeypatch.setattr(checkpoint, "read", lambda *_: (start, budget, replace(log, products=())))
        with pytest.raises(vfl.errors.BudgetExceeded, match="the next release asks for"):
            vfl.resume(tmp_path / "run", REGRESSION, at="inprocess")


def _matrix(spec: vfl.Job, released: list[Any]) -> np.ndarray:
    """Return the symmetric matrix that the released pieces of a run make."""
    planned = plan(spec, N)
    pieces = planned.solver.pieces(planned.problem)  # type: ignore[attr-defined]
    M = np.zeros((planned.problem.layout.n_coordinates + 1,) * 2)
    for piece, own in zip(pieces, released, strict=True):
        piece.fill(M, own)
    return M


def _squared(parties: int) -> vfl.Job:
    return job(parties, loss="squared", solver=vfl.solvers.NoisyGram(), bounds={"*": (-2, 2), "y": (-1, 2)})


REGRESSION = {**DATA, "y": DATA["y"] + 0.1 * DATA["x0"]}


def _trusted(spec: vfl.Job) -> tuple[Any, list[Any]]:
    from coordinator.coordinator import Coordinator
    from parties.loading import load
    from vfl.launch.sites.inprocess import InProcessTransport
    from vfl.launch.sources import sources_of

    parties = {name: load(spec.for_party(name), source) for name, source in sources_of(spec, DATA, ids=True).items()}
    events = list(Coordinator(InProcessTransport(parties)).stream(spec))
    return events[-1], events


def _round_of(events: list[Any]) -> Any:
    return next(e for e in events if isinstance(e, Round) and e.kind == "Backward")


def _multiplier(events: list[Any]) -> float:
    (event,) = _round_of(events).events
    return float(event.sigma / event.sensitivity)


def _noise_of(spec: vfl.Job, events: list[Any]) -> np.ndarray:
    """Return the noise of the one gradient of a run, from its seeds."""
    from vfl.privacy.geometry import Clip
    from vfl.privacy.rounded_gaussian import rounded_gaussian

    round_ = _round_of(events)
    (event,), whole = round_.events, plan(spec, N).problem.layout.whole()
    grid, noise = Clip(20.0, 7).grid, spec.noise_source()
    found = []
    for part, (party, block) in enumerate(whole.items()):
        key = ReleaseKey(round_.number, part)
        if spec.trust == "trusted":
            found.append(rounded_gaussian(noise.stream(key), event.sigma / grid, block.size) * grid)
            continue
        sharing = plan(spec, N).sharing
        deviations, step = sharing.deviations(party, 20.0, event.sigma), sharing.bits.step(sharing.caps(20.0)[party])
        drawn_by = {who: deviations.dealer if who == DEALER else deviations.party for who in sharing.roles.contributors}
        found.append(sum(drawn(noise, key, who, own, block.size) for who, own in drawn_by.items()) * step)
    return np.concatenate(found)


class TestViews:
    """Messages that pass the coordinator."""

    def test_the_coordinator_never_holds_an_n_vector_in_the_clear(self) -> None:
        transport = Watched(job(3), DATA)
        outcome(transport)
        for reply in transport.replies:
            assert getattr(reply, "vector", None) is None
            assert len(getattr(reply, "elements", b"")) < 8 * N
        ciphertexts = b"".join(ciphertext for _, _, sent in transport.ciphertexts for ciphertext in sent)
        # Encrypted texts look random: every byte value is about as frequent as any other.
        counts = np.bincount(np.frombuffer(ciphertexts, dtype=np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert ((counts - expected) ** 2 / expected).sum() < 255 + 6 * np.sqrt(2 * 255)

    def test_ciphertexts_go_only_where_roles_send_them(self) -> None:
        transport = Watched(job(3), DATA)
        outcome(transport)
        given = [
            request
            for to, request in transport.requests
            if to == DEALER and requests.senders(request, to, _roles(transport))
        ]
        assert {type(request) for request in given} == {requests.CheckRecords}
        assert {type(request) for to, request in transport.requests if to == "q1"} == {
            *(
                requests.Meet,
                requests.Begin,
                requests.StateRecords,
                requests.TakeToss,
                requests.SetUp,
                requests.MaskAngles,
            ),
            *(requests.OpenRows, requests.Contribute, requests.Disclose),
        }  # no holder: q2 has the labels, q0 is the other one

    def test_the_documented_table_is_that_of_a_transcript(self) -> None:
        transport = Watched(job(3), DATA)
        outcome(transport)
        page = (Path(__file__).parents[2] / "docs" / "studies" / "shares.md").read_text(encoding="utf-8")
        assert "\n".join(received(transport, _roles(transport))) in page

    def test_parties_refuse_queries_about_margins(self) -> None:
        transport = Watched(job(), DATA)
        with pytest.raises(PrivacyError, match="shows its labels to nobody"):
            transport.holders["q1"].labels()
        block = plan(transport.spec, N).problem.layout.whole()["q0"]
        with pytest.raises(PrivacyError, match="Forward, which parties answer in trusted runs alone"):
            transport.holders["q0"].answer(Forward({"q0": (block, np.zeros(block.size))}), Records(), ReleaseKey(0))


def _roles(transport: Watched) -> Any:
    sharing = plan(transport.spec, N).sharing
    return sharing.roles


REQUESTS = [
    (requests.Meet, "q0"),
    (requests.Begin, "q1"),
    (requests.StateRecords, "q1"),
    (requests.CheckRecords, DEALER),
    (requests.Toss, "q1"),
    (requests.TakeToss, "q0"),
    (requests.SetUp, "q0"),
    (requests.TakeColumns, "q1"),
    (requests.MaskAngles, "q0"),
    (requests.DealTerms, DEALER),
    (requests.OpenRows, "q0"),
    (requests.CheckRows, "q1"),
    (requests.ShareResidual, "q1"),
    (requests.DealSum, DEALER),
    (requests.Contribute, "q0"),
    (requests.Contribute, "q1"),
    (requests.Disclose, "q0"),
    (requests.Disclose, "q1"),
]


OF_DEALER = (requests.StateRecords, requests.Toss, requests.TakeToss, requests.OpenRows, requests.CheckRows)
ALONE_REQUESTS = [
    *((lost, who) for lost, who in REQUESTS if who != DEALER and lost not in (*OF_DEALER, requests.ShareResidual)),
    (requests.MaskAngles, "q1"),
    (requests.ShareResidual, "q0"),
]


@pytest.fixture(scope="module")
def whole() -> np.ndarray:
    return outcome(Watched(job(), DATA))[0].w


@pytest.fixture(scope="module")
def alone() -> np.ndarray:
    return outcome(Watched(job(**FEW_ALONE), DATA))[0].w


class TestLosses:
    """A lost request releases nothing, its charge stays, and the next attempt has a new session."""

    @pytest.mark.parametrize("answered", [False, True])
    @pytest.mark.parametrize(("lost", "who"), REQUESTS)
    def test_a_loss_at_every_request(self, whole: np.ndarray, lost: type, who: str, answered: bool) -> None:
        self.lose(job(), whole, lost, who, answered)

    @pytest.mark.parametrize("answered", [False, True])
    @pytest.mark.parametrize(("lost", "who"), ALONE_REQUESTS)
    def test_without_a_dealer(self, alone: np.ndarray, lost: type, who: str, answered: bool) -> None:
        self.lose(job(**FEW_ALONE), alone, lost, who, answered)

    def lose(self, spec: vfl.Job, whole: np.ndarray, lost: type, who: str, answered: bool) -> None:
        transport = Watched(spec, DATA, (lost, who), answered=answered)
        found, events = outcome(transport)
        assert len([event for event in events if isinstance(event, Lost)]) == 1
        assert (found.w == whole).all()
        sessions = [sent.session for _, sent in transport.requests if isinstance(sent, requests.Meet)]
        assert len(set(sessions)) == 2

    def test_a_loss_keeps_its_charge(self) -> None:
        spec = job(
            privacy=vfl.Privacy(epsilon=8.0),
            solver=vfl.SkGD(block_size=2, passes=3, details=vfl.solvers.Details(reserve_passes=1)),
        )
        _, events = outcome(Watched(spec, DATA, (requests.Contribute, "q1"), answered=True))
        charges = [c for e in events if isinstance(e, Round | Lost) for c in e.charges]
        _, without = outcome(Watched(spec, DATA))
        usual = [c for e in without if isinstance(e, Round | Lost) for c in e.charges]
        assert len(charges) == len(usual) + 1
        assert len({key for key, _ in charges}) == len(charges)

    def test_a_run_cannot_continue_without_a_party(self) -> None:
        with pytest.raises(vfl.errors.SpecificationError, match="cannot continue after a party is lost"):
            outcome(Watched(job(), DATA), on_party_lost="skip")

    @pytest.mark.parametrize("changes", [{}, FEW_ALONE], ids=["dealer", "alone"])
    def test_kill_and_resume(self, changes: Any, request: pytest.FixtureRequest, tmp_path: Any) -> None:
        class Killed(Exception):
            pass

        def watch(event: object) -> None:
            if isinstance(event, Round) and event.number == 3:
                raise Killed

        with pytest.raises(Killed):
            vfl.train(job(**changes), DATA, at="inprocess", output=tmp_path / "run", watch=watch)
        again = vfl.resume(tmp_path / "run", DATA, at="inprocess")
        assert (again.w == request.getfixturevalue("alone" if changes else "whole")).all()


class TestIterate:
    """The model in the place of margins."""

    def test_it_takes_no_vector(self) -> None:
        layout = plan(job(), N).problem.layout
        iterate = Iterate(layout, N, "q1")
        block = layout.whole()["q0"]
        forward = Forward({"q0": (block, np.ones(block.size))}, shifts={"q0": -0.5})
        with pytest.raises(PrivacyError, match="may not keep a vector"):
            iterate.take(forward, {"q0": Reply(vector=np.zeros(N))})
        with pytest.raises(PrivacyError, match="may not keep a vector"):
            iterate.absorb("add", [np.zeros(N)])
        with pytest.raises(PrivacyError, match="so Select is refused"):
            iterate.shares(Select(None, {}, {}, {}, None, {}, None))  # type: ignore[arg-type]

    def test_forward_moves_the_model_and_restore_undoes_it(self) -> None:
        layout = plan(job(), N).problem.layout
        iterate, block = Iterate(layout, N, "q1"), layout.whole()["q0"]
        before = iterate.state()
        forward = Forward({"q0": (block, np.ones(block.size))}, shifts={"q0": -0.5})
        assert iterate.shares(forward) == {}
        iterate.take(forward, {})
        iterate.take(forward, {})
        assert (iterate.model.w["q0"] == 2.0).all()
        assert iterate.model.shift == -1.0
        iterate.take(replace(forward, into="reset"), {})
        assert (iterate.model.w["q0"] == 1.0).all()
        iterate.restore(before)
        assert not iterate.model.w["q0"].any()


class TestVersions:
    """Each model is shared under masks of its own."""

    def test_a_model_that_comes_back_has_new_masks(self) -> None:
        """A strong penalty returns coefficients to 0, and with them the whole model to an earlier one."""
        solver, privacy = vfl.SkGD(block_size=1, passes=20), vfl.Privacy(epsilon=0.5, noise=vfl.SeededNoise(3))
        transport = Checked(job(penalty=vfl.L1(0.15), solver=solver, privacy=privacy), DATA)
        outcome(transport)
        versions = [request.version for _, request in transport.requests if isinstance(request, requests.DealTerms)]
        assert len(set(versions)) == len(versions)
        assert len({version.model for version in versions}) < len(versions)

    def test_a_scale_that_changes_within_a_pass_is_refused(self) -> None:
        """Rows of two set-ups are capped one by one, so that their blocks have no joint cap."""
        transport = Watched(job(), DATA)
        outcome(transport)
        request = next(
            request for _, request in reversed(transport.requests) if isinstance(request, requests.Contribute)
        )
        holder = next(iter(transport.holders.values()))._holder
        setup, paid = holder._setup, request.query.capped.paid
        admit(holder._cover, holder.name, paid, holder._shape(), [])
        block, centre, scale = setup.rows["q0"]
        holder._setup = replace(setup, rows={**setup.rows, "q0": (block, centre, 2.0 * scale)})
        with pytest.raises(PrivacyError, match="within a pass"):
            admit(holder._cover, holder.name, paid, holder._shape(), [])


class Upgraded(Watched):
    """Transport whose parties come back with another library."""

    def revive(self, party: str, seconds: float) -> Any:
        return replace(super().revive(party, seconds), library="TenSEAL 0.0")


def test_a_party_with_another_library_than_the_certified_one_ends_the_run() -> None:
    """At the start, before any request and charge; and when a lost party returns."""
    spec = job(trust=vfl.federation.Secure(dealer=None))
    transport = Watched(spec, table())
    transport.holders["q0"].library = "TenSEAL 0.0"
    with pytest.raises(VersionMismatch, match=r"party 'q0' encrypts with TenSEAL 0\.0"):
        outcome(transport)
    assert transport.requests == []
    returned = Upgraded(spec, table(), (Contribute, "q0"))
    with pytest.raises(VersionMismatch, match=r"party 'q0' encrypts with TenSEAL 0\.0"):
        outcome(returned)
    assert returned.lose is None
    assert Watched(spec, table()).holders["q0"].library == spec.library()


@pytest.mark.parametrize(("certified", "claimed"), [("TenSEAL 1", ""), ("", "TenSEAL 1"), ("TenSEAL 1", "TenSEAL 2")])
def test_a_party_states_the_certified_library_or_none_where_none_is_used(certified: str, claimed: str) -> None:
    greetings = {p: Greeting(vfl.__version__, N, library=own) for p, own in (("q0", certified), ("q1", claimed))}
    with pytest.raises(VersionMismatch, match=f"'q1' encrypts with {claimed or 'nothing'}, .*install one version"):
        agreed_records(greetings, certified)


def test_a_session_ends_before_its_masks_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply more than the session's masks would end the run, with its charge."""
    whole = outcome(Watched(job(**FEW_ALONE), DATA))[0]
    for module in ("coordinator.secure", "vfl.secure.homomorphic"):
        monkeypatch.setattr(f"{module}.MOST_REPLIES", 12)
    transport = Watched(job(**FEW_ALONE), DATA)
    assert (outcome(transport)[0].w == whole.w).all()
    assert len({request.session for _, request in transport.requests}) > 1


def test_a_plan_refuses_more_products_than_a_session_has_masks_for() -> None:
    wide = {q: [f"{q}{j}" for j in range(400)] for q in ("a", "b")}
    spec = vfl.Job(
        partition=vfl.FeaturePartition(wide, label=("b", "y")),
        privacy=vfl.Privacy(epsilon=8.0),
        loss="squared",
        solver=vfl.solvers.NoisyGram(),
        bounds={"*": (-2, 2), "y": (-1, 2)},
        trust=ALONE,
    )
    with pytest.raises(vfl.errors.SpecificationError, match="use fewer columns, a dealer"):
        plan(spec, 20000)
    assert plan(replace(spec, trust=vfl.federation.Secure()), 20000).sharing is not None

"""HTML pages: they agree with the run's folder, escape all names, and load nothing."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import re
from collections import Counter
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from click.testing import CliRunner

import vfl
from coordinator.coordinator import Coordinator
from coordinator.rounds import Round
from vfl.apps import cli
from vfl.apps.report import charts, write_plan, write_run
from vfl.apps.report.facts import gathered
from vfl.apps.report.guarantee import epsilon_by_round
from vfl.apps.report.markup import element, text
from vfl.apps.report.run import CHANCE, noise_reach, size
from vfl.base.problem import Block
from vfl.errors import OutputError, PartyLost, SpecificationError
from vfl.job import file as jobfile
from vfl.job.site import Faults
from vfl.launch.run import checkpoint
from vfl.launch.run.folder import TIMING, read_timing
from vfl.launch.run.history import Gradient, history
from vfl.launch.run.result import Result
from vfl.launch.sites import inprocess
from vfl.launch.train import resume
from vfl.planning import plan as make_plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

N = 80
COLUMNS = ("a", "b", "c", "d")
EVIL = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></style><svg onload=alert(1)>",
    "&lt;b&gt; ' \x00\x1b[31m \u202e ]]>",
)


def job(columns: tuple[str, ...] = COLUMNS, parties: tuple[str, str] = ("bank", "telco"), **options: Any) -> vfl.Job:
    one, two = parties
    options = {
        "privacy": vfl.Privacy(epsilon=2.0, delta=1e-6),
        "solver": vfl.SkGD(passes=6, clip="coordinate"),
    } | options
    label = {"y": (0.0, 1.0)} if options.get("loss") == "squared" else {}
    return vfl.Job(
        partition=vfl.FeaturePartition({one: list(columns[:2]), two: list(columns[2:])}, label=(one, "y")),
        bounds=dict.fromkeys(columns, (-1.0, 1.0)) | label,
        **({"name": "credit"} | options),
    )


def data(columns: tuple[str, ...] = COLUMNS) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    table: dict[str, Any] = {name: rng.uniform(-1, 1, N) for name in columns}
    return table | {"y": (table[columns[0]] > table[columns[2]]).astype(int)}


def trained(folder: Path, of: vfl.Job | None = None, **options: Any) -> vfl.Result:
    return vfl.train(of or job(), data(), at="inprocess", output=folder, **options)


class Page(HTMLParser):
    """A page as a browser reads it: its tags, its attributes, and its text outside the style sheet."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.headings: list[str] = []
        self._open: list[str] = []
        self._said: list[str] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self._said.append(data)
            if self._open[-1] == "h2":
                self.headings.append(data)

    @property
    def said(self) -> str:
        return " ".join(" ".join(self._said).replace("\u00a0", " ").split())

    def loads_nothing(self) -> bool:
        tags = {
            "script",
            "link",
            "img",
            "iframe",
            "object",
            "embed",
            "a",
            "form",
            "base",
            "video",
            "audio",
            "use",
            "image",
        }
        names = {name for name, _ in self.attributes}
        loading = {"src", "href", "xlink:href", "srcset", "action", "style", "data", "background", "poster"}
        handlers = {name for name in names if name.startswith("on")}
        return not (tags & self.tags.keys()) and not (loading & names) and not handlers and "url(" not in self.source


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    trained(folder)
    return folder


class TestPage:
    def test_the_page_agrees_with_the_folder(self, run: Path, tmp_path: Path) -> None:
        path, report = write_run(run, tmp_path / "page.html")
        page, result = Page(path), Result.load(run)
        certificate = result.certificate
        assert report.ok
        for sentence in report.guarantee:
            assert sentence in page.said
        assert f"(ε = {certificate.epsilon:.4g}, δ = 1e-06)-differentially private for every record" in page.said
        assert page.headings == [
            *(
                "Curves of the columns",
                "What is promised",
                "Who saw what",
                "Privacy spent",
                "Releases against their noise",
            ),
            *("Coefficients", "Importance", "Contribution by party", "Course of the run", "Checks", "Particulars"),
        ]
        for words in (*certificate.who_sees_what.values(), certificate.model_digest, certificate.job_digest):
            assert words in page.said
        for check in report.checks:
            assert check.finding in page.said
        for name, value in zip(result.feature_names, result.coef_, strict=True):
            assert f"{name} {'bank' if name in 'ab' else 'telco'}" in page.said
            assert f"{value:.6g}" in page.said
        assert "The band is no confidence interval" in page.said
        assert "Post-processing adds nothing" in page.said

    @pytest.mark.parametrize("dealer", ["separate", "none"])
    def test_a_page_of_a_run_on_shares_shows_every_row_of_who_saw_what(self, tmp_path: Path, dealer: str) -> None:
        """A separate dealer has a row; a run without a dealer names the encryption in its place."""
        spec = job(solver=vfl.SkGD(passes=2), trust=vfl.federation.Secure(dealer=dealer))
        seen = trained(tmp_path / "run", spec).certificate.who_sees_what
        page = Page(write_run(tmp_path / "run", tmp_path / "page.html")[0])
        assert ("dealer" in seen) is (dealer == "separate")
        assert all(words in page.said for words in seen.values())
        assert ("homomorphic encryption between the two parties" in page.said) is (dealer == "none")

    def test_the_page_is_one_file_that_loads_nothing(self, run: Path, tmp_path: Path) -> None:
        page = Page(write_run(run, tmp_path / "page.html")[0])
        assert page.loads_nothing()
        assert ("http-equiv", "Content-Security-Policy") in page.attributes
        assert "http://" not in page.source.replace("http://www.w3.org", "")
        assert "https://" not in page.source
        assert "prefers-color-scheme: dark" in page.source
        assert len(page.source) < 200_000

    def test_the_command(self, run: Path) -> None:
        said = CliRunner().invoke(cli.vfl, ["report", str(run)])
        assert (said.exit_code, said.output) == (0, f"report: {run / 'report.html'}\n")
        again = CliRunner().invoke(cli.vfl, ["report", str(run)])  # its own page is drawn again
        assert again.exit_code == 0

    def test_the_page_names_no_local_path(self, run: Path, tmp_path: Path) -> None:
        page = Page(write_run(run, tmp_path / "page.html")[0])
        assert str(run.parent) not in page.source

    def test_time_is_shown_only_on_request(self, run: Path, tmp_path: Path) -> None:
        lines = read_timing(run)
        assert [line.round for line in lines] == list(range(len(lines)))
        assert (run / TIMING).read_text(encoding="utf-8").startswith("# not for release")
        page = Page(write_run(run, tmp_path / "page.html")[0])
        assert "Not for release" not in page.said
        assert "time of rounds is not shown" in page.said
        timed = Page(write_run(run, tmp_path / "timed.html", with_timing=True)[0])
        assert "Not for release" in timed.said
        assert f"in {len(lines)} rounds" in timed.said
        assert "post-processing" not in timed.said

    def test_a_folder_without_timing_says_so(self, tmp_path: Path) -> None:
        result = vfl.train(job(), data(), at="inprocess")
        page = Page(write_run(result.save(tmp_path / "saved"), with_timing=True)[0])
        assert "no timing.csv" in page.said

    def test_a_saved_result_has_no_log_to_draw(self, tmp_path: Path) -> None:
        result = vfl.train(job(), data(), at="inprocess")
        page = Page(write_run(result.save(tmp_path / "saved"))[0])
        assert page.said.count("There is no log of rounds in this folder") == 3
        assert "Coefficients" in page.headings

    def test_a_run_that_is_not_finished(self, tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "run", watch=_interrupt_at(3))
        with pytest.raises(OutputError, match="vfl resume"):
            write_run(tmp_path / "run")

    def test_a_resumed_run_shows_its_losses(self, tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "run", watch=_interrupt_at(5))
        log = tmp_path / "run" / checkpoint.NAME
        log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))  # killed after the charge
        result = resume(tmp_path / "run", data(), at="inprocess")
        told = _told(tmp_path / "run")
        lost = result.certificate.releases - sum(map(len, told.charged))
        page = Page(write_run(tmp_path / "run")[0])
        assert "resumed once" in page.said
        assert lost > 0
        assert f"releases charged and not used {lost}" in page.said

    @pytest.mark.parametrize("held_out", [False, True])
    def test_a_party_that_the_run_waited_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_out: bool
    ) -> None:
        _lose(monkeypatch, "wait", returns=True)
        result = trained(tmp_path / "run", SOLVERS["held out"] if held_out else None)
        told = _told(tmp_path / "run")
        page = Page(write_run(tmp_path / "run")[0])
        lost = result.certificate.releases - sum(map(len, told.charged))
        assert told.whole
        assert lost > 0
        assert re.search("rounds repeated .*1", page.said)
        assert f"covers {lost} charged releases" in page.said
        assert "given up" not in page.said

    @pytest.mark.parametrize("noise", ["true", "none"])
    @pytest.mark.parametrize("held_out", [False, True])
    def test_a_party_that_was_given_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_out: bool, noise: str
    ) -> None:
        """The history reaches the end of the log: the schedule learns of the loss at the same round as in the run."""
        _lose(monkeypatch, "skip", returns=False)
        spec = SOLVERS["held out"] if held_out else job()
        spec = spec if noise == "true" else dataclasses.replace(spec, privacy=None, solver=vfl.SkGD(passes=6))
        seen: list[Round] = []
        result = trained(tmp_path / "run", spec, watch=seen.append)  # type: ignore[arg-type]
        rounds = [event for event in seen if isinstance(event, Round)]
        told = _told(tmp_path / "run")
        assert told.whole
        assert told.charged == [record.events for record in rounds]
        assert list(told.left.values()) == ["telco"]
        assert told.findings == result.findings
        page = Page(write_run(tmp_path / "run")[0])
        (number,) = told.left
        assert f"party telco, in round {number + 1}" in page.said
        assert "Warnings of the certificate" in page.said
        assert "party 'telco' was lost" in page.said
        assert "2 of 4 are 0, and not drawn" in page.said
        assert " 0 (0%)" in page.said
        assert "Not drawn" not in page.said

    def test_a_file_is_not_a_run_folder(self, run: Path) -> None:
        with pytest.raises(OutputError, match="is a file"):
            write_run(run / "certificate.json")

    @pytest.mark.parametrize("name", ["model.json", "certificate.json", "rounds.log", "job.toml"])
    def test_alterations_are_shown_as_failed_checks(self, tmp_path: Path, name: str) -> None:
        trained(tmp_path / "run")
        path = tmp_path / "run" / name
        if name == "certificate.json":
            lie = dataclasses.replace(vfl.Certificate.load(path), epsilon=0.1)
            path.write_text(lie.to_json(), encoding="utf-8")
        elif name == "model.json":
            model = json.loads(path.read_text(encoding="utf-8"))
            model["w"][0] += 1.0
            path.write_text(json.dumps(model), encoding="utf-8")
        elif name == "rounds.log":
            path.write_text(path.read_text(encoding="utf-8").replace('"round":1', '"round":2', 1), encoding="utf-8")
        else:
            path.write_text(
                path.read_text(encoding="utf-8").replace("epsilon = 2.0", "epsilon = 1.0"), encoding="utf-8"
            )
        said = CliRunner().invoke(cli.vfl, ["report", str(tmp_path / "run")])
        assert isinstance(said.exception, OutputError)
        page = Page(tmp_path / "run" / "report.html")
        assert "The certificate does not hold." in page.said
        assert "Whatever anyone concludes" not in page.said
        assert "post-processing" not in page.said
        assert "-differentially private for every record" not in page.said

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"privacy": None}, "trained with privacy=None: the model is not differentially private"),
            ({"privacy": vfl.Privacy(epsilon=2.0, noise=vfl.SeededNoise(1))}, "the noise is seeded"),
            ({"privacy": vfl.Privacy(epsilon=2.0, smoothness="data")}, "not charged (smoothness='data')"),
        ],
    )
    def test_a_page_without_privacy_says_so_first(self, tmp_path: Path, options: dict[str, Any], said: str) -> None:
        trained(tmp_path / "run", job(**options))
        page = Page(write_run(tmp_path / "run")[0])
        assert "Not private" in page.said
        assert said in page.said
        assert "ε none δ none" in page.said
        assert "carry no verified guarantee" in page.said


class TestNames:
    """Names of columns must not become markup."""

    def test_no_name_becomes_markup(self, tmp_path: Path) -> None:
        """The page has the same tags as the page of the same run with harmless names."""
        pages = []
        for names, title in ((EVIL, EVIL[2]), (COLUMNS, "credit")):
            folder = tmp_path / f"run{len(pages)}"
            seeded = vfl.Privacy(epsilon=2.0, noise=vfl.SeededNoise(1))
            vfl.train(job(names, name=title, privacy=seeded), data(names), at="inprocess", output=folder)
            pages.append(Page(write_run(folder, with_timing=True)[0]))
        evil, harmless = pages
        assert evil.tags == harmless.tags
        assert evil.loads_nothing()
        for name in EVIL[:3]:
            assert name in evil.said
        assert not set(evil.source) & {"\x00", "\x1b", "\u202e"}

    def test_no_name_becomes_markup_on_a_plan(self, tmp_path: Path) -> None:
        path = write_plan(make_plan(job(EVIL, name=EVIL[2]), N), tmp_path / "plan.html")
        page = Page(path)
        assert page.loads_nothing()
        assert EVIL[2] in page.said

    @pytest.mark.parametrize(
        ("built", "is_"),
        [
            (element("p", "<b>"), "<p>&lt;b&gt;</p>"),
            (element("p", element("b", "&")), "<p><b>&amp;</b></p>"),
            (element("p", title='"<'), '<p title="&quot;&lt;"></p>'),
            (element("p", element("i"), None, class_="x", data_x=None), '<p class="x"><i></i></p>'),
            (element("rect", x=1.0, stroke_width=0.25), '<rect x="1" stroke-width="0.25"/>'),
            (text("a\x07\ud800b"), "a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}b"),
        ],
    )
    def test_markup(self, built: str, is_: str) -> None:
        assert built == is_


def _lose(monkeypatch: pytest.MonkeyPatch, policy: str, *, returns: bool, at: int = 4) -> None:
    """Make in-process runs lose telco at its query number `at`, once or for good."""

    class Lossy(inprocess.InProcessTransport):
        asked = 0

        def ask(self, shares: Any, records: Any, key: Any) -> Any:
            if "telco" in shares:
                Lossy.asked += 1
                if Lossy.asked == at or (Lossy.asked > at and not returns):
                    raise PartyLost("'telco' died", "telco")
            return super().ask(shares, records, key)

        def revive(self, party: str, seconds: float) -> Any:
            return self.greet()[party] if returns else super().revive(party, seconds)

    tolerant = functools.partial(Coordinator, faults=Faults(on_party_lost=policy, wait_timeout_s=1.0))
    monkeypatch.setattr(inprocess, "InProcessTransport", Lossy)
    monkeypatch.setattr(inprocess, "Coordinator", tolerant)


def _interrupt_at(number: int) -> Callable[[object], None]:
    def watch(event: object) -> None:
        if isinstance(event, Round) and event.number == number:
            raise KeyboardInterrupt

    return watch


def _told(folder: Path) -> Any:
    read, _ = jobfile.read(folder / jobfile.NAME)
    return history(make_plan(read, N), checkpoint.read(folder, read)[2])


SOLVERS = {
    "skgd": job(),
    "record cap": job(solver=vfl.SkGD(passes=6, clip="record")),
    "blocks": job(solver=vfl.SkGD(block_size=2, passes=3, details=vfl.solvers.Details(message="block"))),
    "parallel": job(solver=vfl.SkGD(details=vfl.solvers.Details(parallel=2), passes=3)),
    "importance": job(solver=vfl.SkGD(sampling="importance", passes=3)),
    "gcd": job(solver=vfl.solvers.GCD(rounds=4), penalty=vfl.L1(1e-3)),
    "gd": job(solver=vfl.solvers.GD(passes=5)),
    "sgd": job(solver=vfl.solvers.SGD(passes=2, sampling="disjoint", batch_size=20)),
    "scd": job(solver=vfl.solvers.SCD(passes=2, sampling="disjoint", batch_size=20), penalty=vfl.L2(0.1)),
    "svrg": job(solver=vfl.solvers.SVRG(passes=2, sampling="disjoint", batch_size=20)),
    "held out": job(evaluation=vfl.Evaluation(holdout=0.25)),
    "gram": job(solver=vfl.solvers.NoisyGram(constant=False), loss="squared"),
    "plain": job(privacy=None),
}


class TestHistory:
    @pytest.mark.parametrize("name", SOLVERS)
    def test_the_history_of_the_log_gives_the_charges(self, tmp_path: Path, name: str) -> None:
        seen: list[Round] = []
        result = trained(tmp_path / "run", SOLVERS[name], watch=seen.append)  # type: ignore[arg-type]
        rounds = [event for event in seen if isinstance(event, Round)]
        told = _told(tmp_path / "run")
        assert told.whole
        assert told.charged == [record.events for record in rounds]
        assert Counter(event for events in told.charged for event in events) == Counter(dict(result.certificate.events))
        gradients = [u for record in rounds if record.kind in ("Descend", "Backward", "Gram") for u in record.released]
        if SOLVERS[name].privacy is not None:
            assert [g.values.tolist() for g in told.gradients] == [u.tolist() for u in gradients]
            points = epsilon_by_round(told, result.certificate)
            assert points[0] == (0.0, 0.0)
            assert all(a[1] <= b[1] for a, b in itertools.pairwise(points))
            if result.certificate.basis == "charged":
                assert points[-1] == (len(rounds), pytest.approx(result.certificate.epsilon, rel=1e-12))
        assert sum(told.chosen.values()) == sum(record.kind == "Select" for record in rounds)

    @pytest.mark.parametrize("at", [3, 4, 7])
    def test_after_a_loss_the_prices_of_passes_are_those_charged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
    ) -> None:
        """The failed attempt took the price of a pass, so that every later pass has the next one."""
        _lose(monkeypatch, "wait", returns=True, at=at)
        seen: list[Round] = []
        solver = vfl.SkGD(passes=6, clip="record", details=vfl.solvers.Details(reserve_passes=1), seed=1)
        result = trained(tmp_path / "run", job(solver=solver), watch=seen.append)  # type: ignore[arg-type]
        told = gathered(tmp_path / "run", ledger=None, key=None, with_timing=False).told
        assert told is not None
        assert told.charged == [event.events for event in seen if isinstance(event, Round)]
        made = Counter(event for events in told.charged for event in events)
        assert not made - Counter(dict(result.certificate.events))

    def test_the_noise_of_the_last_update(self, tmp_path: Path) -> None:
        """s_j √M_j σ/n with s_j = γ/M_j, for blocks of one column and M_j = L·B_j² = 1/4 from bounds."""
        bounds = job(
            privacy=vfl.Privacy(epsilon=2.0, smoothness="bounds"),
            solver=vfl.SkGD(passes=3, block_size=1, clip="coordinate"),
        )
        trained(tmp_path / "run", bounds)
        planned = make_plan(bounds, N)
        sigma = planned.releases[0][0].sigma  # type: ignore[attr-defined]
        step = planned.solver.step_size  # type: ignore[attr-defined]
        expected = step / 0.25 * math.sqrt(0.25) * sigma / N
        assert _told(tmp_path / "run").noise == dict.fromkeys(range(5), pytest.approx(expected, rel=1e-12))

    def test_a_log_that_does_not_fit_the_schedule_is_not_drawn(self, run: Path) -> None:
        read, _ = jobfile.read(run / jobfile.NAME)
        log = checkpoint.read(run, read)[2]
        last = log.released[-1]
        for released in (
            (log.released[0], (np.zeros(1),), *log.released[2:]),
            (*log.released, last),
            (*log.released[:-1], None, last),
        ):
            odd = dataclasses.replace(log, released=released, charged=(*log.charged, ()))
            assert not history(make_plan(read, N), odd).whole
        lost = dataclasses.replace(job(), solver=vfl.solvers.GD(passes=5))  # which cannot go on without a party
        assert not history(make_plan(lost, N), dataclasses.replace(log, left={0: "telco"})).whole

    def test_a_sealed_run_shows_the_noise_of_its_one_release(self, tmp_path: Path) -> None:
        sealed = job(solver=vfl.solvers.OutputPerturbation(constant=False), penalty=vfl.L2(0.1))
        trained(tmp_path / "run", sealed)
        page = Page(write_run(tmp_path / "run")[0])
        sigma = make_plan(sealed, N).releases[0][0].sigma  # type: ignore[attr-defined]
        assert f"{sigma:.3g}" in page.said
        assert "releases its result alone" in page.said


class TestFindings:
    def test_measures_are_shown(self, tmp_path: Path) -> None:
        result = trained(tmp_path / "run", SOLVERS["held out"])
        told = _told(tmp_path / "run")
        assert told.findings == result.findings
        page = Page(write_run(tmp_path / "run")[0])
        (found,) = result.findings.values()
        for name, estimate in found.named.items():
            assert " ".join(f"{name} {estimate.said} {estimate.spread}".split()) in page.said
        assert found.note in page.said
        assert f"records, {found.n_records} of them held out {result.certificate.n_records}" in page.said
        assert "in two parts" in page.said

    def test_numbers_that_the_log_does_not_confirm_are_not_shown(self, tmp_path: Path) -> None:
        result = trained(tmp_path / "run", SOLVERS["held out"])
        path = tmp_path / "run" / "findings.json"
        path.write_text(path.read_text(encoding="utf-8").replace('"value": ', '"value": 77'), encoding="utf-8")
        page = Page(write_run(tmp_path / "run")[0])
        (found,) = result.findings.values()
        for estimate in found.measures.values():
            assert estimate.too_noisy or f"{estimate.value:.4g}" in page.said
            assert f"{float(f'77{estimate.value!r}'):.4g}" not in page.said


class TestSignal:
    def test_noise_alone_has_size_one(self) -> None:
        rng = np.random.default_rng(0)
        block = Block(0, "bank", 0, 3, 0)
        noise = [Gradient(block, rng.normal(scale=7.0, size=3), 7.0) for _ in range(20_000)]
        assert size(noise) == pytest.approx(1.0, abs=0.01)
        cells = [size(noise[k : k + 4]) for k in range(0, len(noise), 4)]
        assert np.mean(np.array(cells) > noise_reach(12)) == pytest.approx(CHANCE, abs=0.01)

    def test_signal_exceeds_size_one(self) -> None:
        block = Block(0, "bank", 0, 1, 0)
        assert size([Gradient(block, np.array([6.0]), 2.0)]) == 3.0


class TestPlot:
    def test_a_plan_is_drawn_without_data(self, tmp_path: Path) -> None:
        page = Page(write_plan(make_plan(job(), 30_000), tmp_path / "plan.html"))
        assert page.loads_nothing()
        assert "noise multiplier, σ/Δ" in page.said
        assert "no budget was spent" in page.said

    @pytest.mark.parametrize("name", [name for name in SOLVERS if name != "plain"])
    def test_the_point_at_the_jobs_epsilon_is_its_plan(self, name: str) -> None:
        from vfl.apps.report.plan import points

        planned = make_plan(SOLVERS[name], N)
        drawn = points(planned)
        own = next(point for point in drawn if point.epsilon == 2.0)
        assert own.releases == sum(count for _, count in planned.releases)
        assert own.messages == planned.messages
        main = planned.solver.releases(planned.problem)[-1][0]
        assert own.noise_multiplier == main.sigma / main.sensitivity  # type: ignore[attr-defined]
        assert own.sigma == main.sigma / planned.problem.n_records  # type: ignore[attr-defined]
        smaller = [point for point in drawn if point.releases == own.releases]
        assert all(a.noise_multiplier > b.noise_multiplier for a, b in itertools.pairwise(smaller))

    def test_the_command(self, tmp_path: Path) -> None:
        jobfile.write(job(), tmp_path / "job.toml")
        plot = tmp_path / "plan.html"
        said = CliRunner().invoke(cli.vfl, ["plan", str(tmp_path / "job.toml"), "-n", "500", "--plot", str(plot)])
        assert said.output.splitlines()[-1] == f"plot: {plot}"
        assert plot.exists()

    @pytest.mark.parametrize(
        ("options", "ending", "said"),
        [
            ({}, ".pdf", "a plot is a page, written to a file that ends in .html, not '.pdf'"),
            ({"privacy": None}, ".html", "a job without privacy has no noise to plot"),
        ],
    )
    def test_jobs_that_cannot_be_plotted(self, tmp_path: Path, options: dict[str, Any], ending: str, said: str) -> None:
        with pytest.raises(SpecificationError, match=said):
            write_plan(make_plan(job(**options), N), tmp_path / f"plan{ending}")
        assert not list(tmp_path.iterdir())


class TestCharts:
    @pytest.mark.parametrize(
        ("axis", "most", "ticks"),
        [
            (charts.Axis("x", 0.0, 10.0), 5, [0, 2, 4, 6, 8, 10]),
            (charts.Axis("x", 0.0, 0.31), 4, [0, 0.1, 0.2, 0.3]),
            (charts.Axis("x", -3.0, 3.0), 3, [-2, 0, 2]),
            (charts.Axis("x", 2.0, 2.0), 5, [2]),
            (charts.Axis("x", 0.1, 10.0, log=True), 9, [0.1, 0.2, 0.5, 1, 2, 5, 10]),
            (charts.Axis("x", 1.0, 1e6, log=True), 8, [1, 10, 100, 1e3, 1e4, 1e5, 1e6]),
            (charts.Axis("x", 1e-30, 1e30, log=True), 6, None),
        ],
    )
    def test_ticks_are_round_and_few(self, axis: charts.Axis, most: int, ticks: list[float] | None) -> None:
        found = axis.ticks(most)
        assert len(found) <= most + 1
        assert all(-1e-9 <= axis.at(value) <= 1 + 1e-9 for value in found)
        if ticks is not None:
            assert found == pytest.approx(ticks)

    @pytest.mark.parametrize(
        ("name", "width", "cut"),
        [
            ("income", 100, "income"),
            ("column 12345", 67, "colu…2345"),
            ("収入", 40, "収入"),
            ("RAC1P=AMERICAN", 100, "RAC1P=…ICAN"),  # capitals are wider
            ("mwmwmwmwmw", 70, "mwm…mw"),
            ("収入" * 9, 60, "収入…入"),
            ("x344", (16 + charts.DIGIT * 4) - 16, "x344"),
        ],
    )
    def test_long_names_are_cut(self, name: str, width: float, cut: str) -> None:
        assert charts.fitted(name, width) == cut

    @pytest.mark.parametrize(
        ("names", "width", "cut"),
        [
            (("age", "income"), 67, ["age", "income"]),
            (("calls in 2024, thousands", "calls in 2025, thousands"), 67, ["…2024, th…", "…2025, th…"]),
            (("aaaaaaaaaaaa1bbbbbbbbbbbb", "aaaaaaaaaaaa2bbbbbbbbbbbb"), 67, ["…1bbbbbbb…", "…2bbbbbbb…"]),
            (("x" * 30, "x" * 31), 67, ["…x", "…"]),
        ],
    )
    def test_names_that_differ_in_the_middle_stay_distinguishable(
        self, names: tuple[str, ...], width: float, cut: list[str]
    ) -> None:
        found = charts.told_apart(names, width)
        assert len(set(found)) == len(names)
        assert all(len(name) <= width / charts.DIGIT for name in found)
        assert sorted(found) == sorted(cut)

    def test_counts_have_whole_ticks(self) -> None:
        assert charts.Axis("round", 0, 3, whole=True).ticks(9) == pytest.approx([0, 1, 2, 3])

    def test_a_strip_has_no_background_where_nothing_was_released(self) -> None:
        drawing = charts.heat(350, [charts.Strip("a", [0.0, None, 1.0, 0.0], "1")], "x")
        grounds = [rect for rect in ET.fromstring(drawing).iter("rect") if rect.attrib["class"] == "empty"]  # noqa: S314
        one, two = (float(rect.attrib["width"]) for rect in grounds)
        assert two == pytest.approx(2 * one, abs=1e-3)

    def test_more_parties_than_colours_are_drawn_as_strips(self, tmp_path: Path) -> None:
        names = [f"c{k}" for k in range(charts.COLOURS + 2)]
        partition = vfl.FeaturePartition({f"p{k}": [name] for k, name in enumerate(names)}, label=("p0", "y"))
        many = dataclasses.replace(job(), partition=partition, bounds=dict.fromkeys(names, (-1.0, 1.0)))
        rng = np.random.default_rng(3)
        table = {name: rng.uniform(-1, 1, N) for name in names} | {"y": rng.integers(0, 2, N)}
        vfl.train(many, table, at="inprocess", output=tmp_path / "run")
        page = Page(write_run(tmp_path / "run")[0])
        assert "By party" in page.said
        assert "Colours repeat" in page.said
        assert "size in units of σ against" not in page.said

    @pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [-1.0, -2.0], [1e-300, 5.0], [3.0]])
    def test_bars_stay_inside_the_drawing(self, values: list[float]) -> None:
        drawing = charts.rows(
            350, [charts.Row(f"x{k}", v, "0", band=(-abs(v) / 3, abs(v) / 3)) for k, v in enumerate(values)], "x"
        )
        for rect in ET.fromstring(drawing).iter("rect"):  # noqa: S314
            assert 0 <= float(rect.attrib["x"]) <= float(rect.attrib["x"]) + float(rect.attrib["width"]) <= 351

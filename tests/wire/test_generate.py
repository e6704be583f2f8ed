"""The generated code is that of the definitions in the repository."""

from __future__ import annotations

from tests.wire import generate


def test_generating_again_gives_the_same_code() -> None:
    """If this fails, run `python -m tests.wire.generate`."""
    assert generate.differing() == []


def test_a_stale_file_is_found(tmp_path, monkeypatch) -> None:
    first, second = generate.GENERATED
    stale = (generate.FOLDER / first).read_text().replace("Hello", "Hallo")
    unversioned = generate.unversioned
    monkeypatch.setattr(
        generate, "unversioned", lambda path: stale if path == generate.FOLDER / first else unversioned(path)
    )
    assert generate.differing() == [first]
    assert second not in generate.differing()

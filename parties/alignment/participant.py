"""A party's side of an alignment: it reads its ids, blinds sets of ids, and learns which of its rows all parties have.

Ids, the secret and rows stay in the party's process. `Keeping` says which files the party keeps on its own disk.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from parties.alignment.index import SUFFIX, Index, digest_of, file_of, place
from parties.alignment.index import label as named
from parties.alignment.pending import Pending
from parties.alignment.reading import check_before, check_unchanged, open_with_ids, read_ids
from vfl.alignment import IdsGreeting, alignment_name
from vfl.errors import DataError, FederationError
from vfl.security import psi
from vfl.security.identifiers import alignment_hash, in_order
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parties.alignment.reading import ReadIds
    from vfl.alignment import Indexed, Keeping
    from vfl.job.task import PartyTask
    from vfl.security.psi import Points
    from vfl.types import Integers

EVERY_SECONDS = 0.2


class Alignment:
    """Alignment of one party's records, or the index of an earlier alignment that is used again.

    The constructor reads the id column, so call it only after the owner has agreed to the job.

    salt : salt of a new alignment, 32 bytes, the same for all parties and fresh for every run.
    cores : number of cores that the alignment may use.
    read : function that reads the ids; None to read the ids into this process.

    Raises DataError if ids are missing, repeated or of another kind, or if their file has changed since `vfl align`.
    """

    def __init__(
        self, task: PartyTask, source: Any, *, salt: bytes, cores: int, keeping: Keeping, read: ReadIds | None = None
    ) -> None:
        self._task, self._party, party = task, task.party, task.party
        self._salt, self._cores, self._keeping = salt, cores, keeping
        self._digest = digest_of(source, party)
        opened = open_with_ids(task, source)
        check_before(task, opened)
        self._ids, self._kind = read_ids(task, opened) if read is None else read(opened)
        self._points: dict[str, Points] = {}
        self._blinder: psi.Blinder | None = None
        self._pending: Pending | None = None
        path = file_of(source)
        described = (list(task.job.ids.items()), task.job.id_kind, party, path)
        folder = place(keeping.folder)
        self._of_job = folder / (named("job", *described) + SUFFIX) if path else None
        self._of_run = folder / (named("run", keeping.run, party) + SUFFIX) if keeping.run else None
        self.index = self._found()
        if keeping.later or (self.index is None and keeping.run):
            self._pending = Pending(folder, named("pending", *described), party, self._ids)

    def greet(self) -> IdsGreeting:
        """Return the greeting about the party's ids."""
        kept = None if self.index is None else self.index.said()
        salt = self._pending.salt if self._pending is not None else None
        pending = None if salt is None else alignment_name(salt)
        return IdsGreeting(__version__, len(self._ids), self._kind, pending, kept)

    def begin(self, pending: str | None) -> None:
        """Start an alignment.

        pending : name of the interrupted alignment to continue, from this party's greeting; None for a new one.
        """
        self.index = None
        salt = self._salt
        if pending is not None:
            offered = self._pending.salt if self._pending is not None else None
            if offered is None or alignment_name(offered) != pending:
                raise FederationError(f"party {self._party!r} was asked to continue an alignment that it does not have")
            salt = offered
        folder = self._pending.begin(salt) if self._pending is not None else None
        self._salt = salt
        self._blinder = psi.Blinder(self._party, salt, cores=self._cores, folder=folder)

    def multiply(self, owner: str, points: Points | None) -> Iterator[int]:
        """Blind the set of `owner`, and yield the number of points done so far. `take` returns the result.

        points : the set to blind; None for the party's own set, which is made from its ids.
        """
        blinder = self._begun()
        work = blinder.owning(self._ids) if owner == self._party or points is None else blinder.blinding(points, owner)
        shown = time.monotonic()
        while True:
            try:
                done, _ = next(work)
            except StopIteration as end:
                self._points[owner] = end.value
                return
            if time.monotonic() - shown > EVERY_SECONDS:
                shown = time.monotonic()
                yield done

    def take(self, owner: str) -> Points:
        """Return the set last blinded for `owner`, (n, 32), and drop it. Raises FederationError if there is no such set."""
        if owner not in self._points:
            raise FederationError(
                f"party {self._party!r} was asked for a set that it has not blinded, or has sent already"
            )
        return self._points.pop(owner)

    def conclude(self, positions: Integers) -> Indexed:
        """Make the index from the coordinator's positions, write the files that `Keeping` asks for, and discard the secret."""
        blinder = self._begun()
        try:
            rows = blinder.rows(positions)
        finally:
            blinder.discard()
            self._blinder = None
            if self._pending is not None:
                self._pending.end()
        hashed = alignment_hash(in_order(self._ids, rows), self._salt)
        self.index = Index(self._salt, hashed, self._digest, rows)
        if self._keeping.later and self._of_job is not None:
            self.index.write(self._of_job)
        if self._of_run is not None:
            self.index.write(self._of_run)
        return self.index.said()

    def settled(self) -> Index:
        """Return the index that the run uses."""
        if self.index is None:
            raise FederationError(
                f"party {self._party!r} was asked to load its columns before its records were aligned"
            )
        if self._of_run is not None and self._keeping.last:
            self._of_run.unlink(missing_ok=True)
        elif self._of_run is not None and not self._of_run.exists():
            self.index.write(self._of_run)
        return self.index

    def close(self) -> None:
        """Unlock the saved state of an unfinished alignment, so that another process can continue the alignment."""
        if self._pending is not None:
            self._pending.release()

    def _begun(self) -> psi.Blinder:
        if self._blinder is None:
            raise FederationError(f"party {self._party!r} was asked for blinded ids before its alignment began")
        return self._blinder

    def _found(self) -> Index | None:
        """Return an index from an earlier process: the index of this run, else the one that `vfl align` left for these files.

        If the data have changed since, None is returned before a new alignment; a run that needs the index raises DataError.
        """
        if self._keeping.again:
            return None
        index = Index.read(self._of_run) if self._of_run is not None and self._keeping.resumed else None
        if index is None and self._of_job is not None and not self._keeping.resumed:
            index = Index.read(self._of_job)
        if index is None:
            return None
        try:
            check_unchanged(index, self._digest, self._ids, self._task)
        except DataError:
            if self._keeping.later:
                return None
            raise
        return index

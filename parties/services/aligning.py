"""A party's part of an alignment: it reads its ids, blinds sets of ids, and learns which of its rows are joined.

Ids, the secret and rows stay in the party's process. `IndexRules` says which files the party keeps on its own disk.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.alignment.index import SUFFIX, Index, digest_of, file_of, place
from parties.alignment.index import label as named
from parties.alignment.reading import DistinctIds, check_before, check_unchanged, open_for, present, read_ids
from parties.services.service import Service
from vfl.crypto import identifiers, psi
from vfl.crypto.alignment import MOST_IDS, IdsGreeting, alignment_name
from vfl.crypto.identifiers import alignment_hash, in_order
from vfl.errors import DataError, FederationError, OutputError
from vfl.network.messages import BeginAligning, Conclude, Done, Multiply, ReadIds, SendSet
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping, Sequence
    from io import BufferedRandom
    from pathlib import Path

    from parties.alignment.reading import ReadIds as Reader
    from parties.services.service import Sent
    from vfl.crypto.alignment import Indexed, IndexRules
    from vfl.crypto.psi import Points
    from vfl.job.job import PartyTask


COPIES = 3
"""Number of copies of a set that a party holds at once: the encrypted set, the opened set and the blinded set."""
EVERY_SECONDS = 0.2


PENDING = ".pending"
log = logging.getLogger("vfl.parties")


class AlignmentState:
    """State of one alignment on disk. If an alignment of the same ids was interrupted, `salt` is its salt, else None.

    Only one process at a time keeps state. If another process aligns the same ids on this machine, this process keeps no state
    and has no salt.

    folder : the party's folder. If it is missing, it is created, accessible only to its owner.
    name : name of the alignment, equal for the same ids and participants.
    """

    def __init__(self, folder: Path, name: str, party: str, ids: Sequence[bytes]) -> None:
        self._folder, self._party = folder, party
        self._path = folder / (name + PENDING)
        self._fingerprint = identifiers.digest_of(ids)
        self._file: BufferedRandom | None = None
        self._left: bytes | None = None
        self.salt: bytes | None = None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                return
            self._file = file
            content = file.read()
        except OSError as error:
            raise OutputError(
                f"party {party!r} cannot write the state of its alignment to its folder: {error.strerror}; name a folder that "
                "it alone can write (the environment's [alignment.index], or $VFL_INDEX)"
            ) from None
        if len(content) == psi.SIZE + len(self._fingerprint):
            self._left = content[: psi.SIZE]
            self.salt = self._left if content[psi.SIZE :] == self._fingerprint else None

    def begin(self, salt: bytes) -> Path | None:
        """Record the start or continuation of an alignment, and return the folder for its state.

        State of any other is discarded.
        """
        if self._file is None:
            return None
        if self._left not in (None, salt):
            psi.Blinder(self._party, self._left or b"", folder=self._folder).discard()
        self._file.seek(0)
        self._file.write(salt + self._fingerprint)
        self._file.truncate()
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._folder

    def end(self) -> None:
        """Remove the file, after the alignment has concluded."""
        if self._file is not None:
            self._file.truncate(0)
            self.release()

    def release(self) -> None:
        """Release the lock, so that other processes can continue an alignment that has begun."""
        if self._file is None:
            return
        if not os.fstat(self._file.fileno()).st_size:
            self._path.unlink(missing_ok=True)
        self._file.close()
        self._file = None


class AlignmentService(Service):
    """Alignment of one party's records, or an index from an earlier alignment.

    The owner has to agree to the job before this service reads the id column, on the message ReadIds.

    task : task of the party; it names the id column. source : source in this process. keeping : files that stay on the party's
        disk. parties : names of all participating parties. cores : number of cores that the alignment may use.
    salt : salt of a new alignment, 32 bytes, equal for all parties, fresh for every run, and unknown to the coordinator.
    read : function that reads the ids; None to read the ids into this process.

    Raises DataError if ids are missing, repeated or of another kind, or if their file has changed since `vfl align`.
    """

    def __init__(
        self,
        task: PartyTask,
        source: Any,
        keeping: IndexRules,
        *,
        parties: Collection[str],
        salt: bytes = b"",
        cores: int = 1,
        read: Reader | None = None,
    ) -> None:
        self._task, self.source, self._keeping, self._read = task, source, keeping, read
        self._parties, self.salt, self.cores = parties, salt, cores
        self.sizes: Mapping[str, int] = {}
        self._base = task.job.base(parties)
        self._distinct = DistinctIds(())
        self._ids: tuple[Sequence[bytes], str] | None = None
        self._pending: AlignmentState | None = None
        self._index: Index | None = None
        self._blinder: psi.Blinder | None = None
        self._points: dict[str, Points] = {}

    def answer(self, message: object, vectors: Mapping[str, Any]) -> Sent:
        """Return the answer to a message of the alignment."""
        own = self._task.party
        match message:
            case ReadIds():
                self.close()
                self._open(resumed=self._keeping.resumed)
                return self._greeting(), {}
            case BeginAligning():
                self._check_sizes(message.sizes)
                self._begin(message.pending)
                self.sizes = message.sizes
                return Done(), {}
            case SendSet():
                if not message.to and message.owner == own and len(self._parties) > 1:
                    raise FederationError(
                        f"party {own!r} does not send its own set in the clear before the others have blinded it"
                    )
                self._require_ids()
                if message.owner not in self._points:
                    raise FederationError(
                        f"party {own!r} was asked for a set that it has not blinded, or has sent already"
                    )
                return Done(), {"points": np.ascontiguousarray(self._points.pop(message.owner)).reshape(-1)}
            case Conclude():
                positions = vectors.get("positions")
                if positions is None or positions.nbytes % 8:
                    raise FederationError(f"party {own!r} was sent no positions")
                return self._conclude(np.frombuffer(positions, "<i8")), {}
        raise self.undue(message)

    def stream(self, message: object, vectors: Mapping[str, Any]) -> Generator[int, None, Sent]:
        """Blind a set and yield the number of points done so far. Messages of any other kind are answered at once."""
        if not isinstance(message, Multiply):
            return self.answer(message, vectors)
        party, owner = self._task.party, message.owner
        self._require_ids()
        if owner == party:
            work = self._begun().owning(self._distinct.ids)
        else:
            if "points" not in vectors or owner not in self.sizes:
                raise FederationError(f"party {party!r} was sent no set to blind")
            points = np.frombuffer(vectors["points"], np.uint8)  # read-only if the received buffer is
            if points.size != psi.SIZE * self.sizes[owner]:
                raise FederationError(f"the set of {owner!r} has a different size from the one announced")
            work = self._begun().blinding(points.reshape(-1, psi.SIZE), owner)
        shown = time.monotonic()
        while True:
            try:
                done, _ = next(work)
            except StopIteration as end:
                self._points[owner] = end.value
                return Done(), {}
            if time.monotonic() - shown > EVERY_SECONDS:
                shown = time.monotonic()
                yield done

    def concluded(self) -> Index:
        """Return the aligned rows of this service's own alignment, which the run uses; end the alignment."""
        self._require_ids()
        index, kept = self._index, self._of_run
        if index is None:
            raise FederationError(
                f"party {self._task.party!r} was asked to load its columns before its records were aligned"
            )
        if kept is not None and self._keeping.last:
            kept.unlink(missing_ok=True)
        elif kept is not None and not kept.exists():
            index.write(kept)
        self.close()
        return index

    def settled(self) -> Index | None:
        """Return the index with the rows to load, after a restart the index that the run kept; None without alignment."""
        if not self._task.id:
            return None
        if self._ids is None and self._keeping.run is None:
            raise FederationError(
                f"party {self._task.party!r} was restarted, and a run without an output folder keeps no aligned rows: name "
                "an output folder"
            )
        if self._ids is None:
            self._open(resumed=True)
            if self._index is None and self._of_run is not None:
                self.close()
                raise OutputError(
                    f"party {self._task.party!r} was restarted, and its index folder {str(self._of_run.parent)!r} no longer "
                    f"holds the run's aligned rows, {self._of_run.name}: mount the folder again, or restore it from a backup"
                )
        return self.concluded()

    def close(self) -> None:
        """Release the state of an unfinished alignment, which remains on disk."""
        if self._pending is not None:
            self._pending.release()
        self._ids = self._pending = self._index = self._blinder = None
        self._distinct = DistinctIds(())
        self._points.clear()

    def _open(self, *, resumed: bool) -> None:
        """Read the ids, and look for an index to continue with. resumed : as in `IndexRules`."""
        task, keeping = self._task, self._keeping
        self._digest = digest_of(self.source, task.party)
        opened = open_for(task, self.source, ids=True)
        check_before(task, opened)
        ids, kind = read_ids(task, opened) if self._read is None else self._read(opened)
        path = file_of(self.source)
        self._distinct = DistinctIds.of(ids, task)
        described = (*task.job.joining, task.party, path)
        folder = place(keeping.folder)
        self._of_job = folder / (named("job", *described) + SUFFIX) if path else None
        self._of_run = folder / (named("run", keeping.run, task.party) + SUFFIX) if keeping.run else None
        self._index = self._found(ids, resumed=resumed)
        continues = keeping.later or (self._index is None and keeping.run)
        self._pending = (
            AlignmentState(folder, named("pending", *described), task.party, self._distinct.ids) if continues else None
        )
        self._ids = ids, kind

    def _found(self, ids: Sequence[bytes], *, resumed: bool) -> Index | None:
        """Return an index from an earlier process: the index of this run, else the one that `vfl align` stored for these files.

        If the data have changed since, None is returned before a new alignment; a run that needs the index raises DataError.
        """
        if self._keeping.again:
            return None
        index = Index.read(self._of_run) if self._of_run is not None and resumed else None
        if index is None and self._of_job is not None and not resumed:
            index = Index.read(self._of_job)
        if index is None:
            return None
        try:
            check_unchanged(index, self._digest, ids, self._task)
        except DataError:
            if self._keeping.later:
                return None
            raise
        return index

    def _greeting(self) -> IdsGreeting:
        _, kind = self._require_ids()
        kept = None if self._index is None else self._index.said()
        return IdsGreeting(__version__, len(self._distinct.ids), kind, self._task.key.digest, self._offered(), kept)

    def _offered(self) -> str | None:
        """Return the name of a pending alignment that this party can continue."""
        salt = None if self._pending is None else self._pending.salt
        return None if salt is None else alignment_name(salt)

    def _begin(self, pending: str | None) -> None:
        """Start an alignment.

        pending : name of the interrupted alignment to continue, from this party's greeting; None for a new one.
        """
        self._index, self._current = None, self.salt
        if pending is not None:
            if self._pending is None or self._pending.salt is None or self._offered() != pending:
                raise FederationError(
                    f"party {self._task.party!r} was asked to continue an alignment that it does not have"
                )
            self._current = self._pending.salt
        folder = None if self._pending is None else self._pending.begin(self._current)
        self._blinder = psi.Blinder(self._task.party, self._current, cores=self.cores, folder=folder)

    def _conclude(self, positions: Any) -> Indexed:
        """Make the index from the coordinator's positions, write files by `IndexRules`, and discard the secret."""
        (ids, _), blinder, base = self._require_ids(), self._begun(), self._base
        count = None if base is None else self.sizes[base]
        try:
            chosen = blinder.rows(positions, count=count, lacks=base not in (None, self._task.party))
        finally:
            blinder.discard()
            self._blinder = None
            if self._pending is not None:
                self._pending.end()
        (rows, person), salt = self._distinct.rows(chosen), self._current
        hashed, agreed = alignment_hash(in_order(ids, present(rows)), salt), ""
        if base is not None:
            agreed = alignment_name(salt)  # no party can hash ids that it lacks
            if not len(present(rows)):  # the owner alone may know it
                log.warning(
                    "party %r: party %r has none of its ids, so its columns hold fills alone: compare how both write ids (kind "
                    "and normalise of the id)",
                    self._task.party,
                    base,
                )
        elif person is not None:
            agreed = alignment_hash(in_order(self._distinct.ids, chosen), salt)
        index = self._index = Index(salt, hashed, self._digest, rows, person, agreed)
        for path in (self._of_job if self._keeping.later else None, self._of_run):
            if path is not None:
                index.write(path)
        return index.said()

    def _require_ids(self) -> tuple[Sequence[bytes], str]:
        if self._ids is None:
            raise FederationError("a party was asked to align before it read its ids")
        return self._ids

    def _begun(self) -> psi.Blinder:
        self._require_ids()
        if self._blinder is None:
            raise FederationError(f"party {self._task.party!r} was asked for blinded ids before its alignment began")
        return self._blinder

    def _check_sizes(self, sizes: Mapping[str, int]) -> None:
        """Refuse impossible numbers of ids, and sets that this machine cannot hold, before any memory is taken for them."""
        from vfl.planning.cost import memory_here  # imported here, since training without an alignment does not need it

        own = self._task.party
        if set(sizes) != set(self._parties) or not all(0 < size <= MOST_IDS for size in sizes.values()):
            raise FederationError(f"party {own!r} was sent impossible numbers of ids")
        self._require_ids()
        if sizes[own] != len(self._distinct.ids):
            raise FederationError(f"party {own!r} was sent a number of its ids that differs from its own count")
        needed, here = COPIES * psi.SIZE * max(sizes.values()), memory_here()
        if needed > here:
            raise FederationError(
                f"party {own!r} has {here / 1e9:.3g} GB of memory, and a set of {max(sizes.values()):,} ids takes "
                f"{needed / 1e9:.3g} GB: align on a larger machine"
            )

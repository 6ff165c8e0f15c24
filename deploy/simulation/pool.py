"""Pool of workers that answer messages: forked after the data was loaded, one thread each.

Messages are handed over in chunks, the longest first, so that short ones do not wait for a round
trip each. Large arrays come back through memory shared with the worker and not through its pipe.
What a worker that died was at is done again, in the same units and so with the same numbers; where
that kills a second worker, the run ends: it would go on as another one. A chunk that hangs is
handed over again message by message, so that nobody else waits for the one that does it again.
"""

import contextlib
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from common import machine
from common.errors import CoterieError, WorkerError
from deploy.simulation.shared_memory import new_shared, pickled, unpickled
from deploy.simulation.work import DEATHS, Answered, Arrival, Job, answered

__all__ = ["Job", "Pool", "Worker"]

_POLL_SECONDS = 2.0  # how often an idle worker looks whether its parent still lives
_CHUNK_SECONDS = 0.05  # what a chunk may take; a round trip costs less than a hundredth of it
_SMALL_SECONDS = 0.002  # below this, sharing work among the workers costs more than it saves
_PATIENCE_SECONDS = 1.0  # how late a chunk may be before its messages are tried one by one


@dataclass
class _Chunk:
    """What a worker is busy with: units of messages that are answered together."""

    units: list[list[Job]]
    since: float
    overdue: float
    """Monotonic seconds after which its worker counts as hanging."""

    @property
    def tasks(self) -> list[Job]:
        return [task for unit in self.units for task in unit]


@dataclass
class Worker:
    """One worker process."""

    process: BaseProcess
    connection: Connection
    shared: mmap.mmap | None
    known: set[int] = field(default_factory=set)
    """Keys of the contents it was given in this exchange."""
    chunk: _Chunk | None = None


class Pool:
    """Answers messages in worker processes.

    Args:
        load: returns the ClientApp; called once per worker.
        contexts: of every node; their states are kept up to date.
        count: number of processes.
    """

    def __init__(
        self, load: Callable[[], ClientApp], contexts: dict[int, Context], count: int
    ) -> None:
        self._load = load
        self._contexts = contexts
        self._exchange = 0
        self._blobs: dict[int, bytes] = {}
        self._sent = new_shared()
        self._sent_end = 0
        self._waiting: list[list[Job]] = []
        self._suspects: list[list[Job]] = []
        self._last: dict[tuple[int, str], float] = {}
        self._typical: dict[str, float] = {}
        self.workers = [self._start() for _ in range(count)]

    def answer(
        self,
        units: Iterable[list[Job]],
        deadline: float | None,
        came: Callable[[int], None] = lambda count: None,
    ) -> list[Message]:
        """Return the replies to units of messages; none for those that take too long.

        ``came`` is told, now and then, how many there are.
        """
        self._exchange += 1
        self._blobs.clear()
        self._sent_end = 0
        self._suspects = []
        self._waiting = sorted(units, key=self._expected)
        replies: list[Message] = []
        while self._hand_over():
            busy = {w.connection: w for w in self.workers if w.chunk is not None}
            ready = wait(list(busy), self._seconds_to_wait(busy.values(), deadline))
            for connection in ready:
                assert isinstance(connection, Connection)
                replies += self._take_back(busy[connection])
            came(len(replies))
            now = time.monotonic()
            if not ready and deadline is not None and now >= deadline:
                self._give_up(busy.values())
                break
            for worker in [w for w in self.workers if w.chunk and w.chunk.overdue < now]:
                worker.process.kill()
                self._suspects += [[task] for task in self._bury(worker).tasks]
        for worker in self.workers:
            worker.known.clear()
        return replies

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            worker.connection.close()
            worker.process.terminate()
        for worker in self.workers:
            worker.process.join()
        self.workers = []

    # Handing over ------------------------------------------------------------------------------

    def _hand_over(self) -> bool:
        """Give every idle worker a chunk; return whether anything is under way."""
        for worker in self.workers:
            if worker.chunk is None and (self._waiting or self._suspects):
                self._send(worker, self._next_chunk())
        return any(worker.chunk is not None for worker in self.workers)

    def _next_chunk(self) -> _Chunk:
        now = time.monotonic()
        if not self._waiting:
            return _Chunk([self._suspects.pop()], now, float("inf"))
        # A share of what is left, so that all workers end at about the same time.
        most = max(1, len(self._waiting) // (2 * len(self.workers)))
        units = [self._waiting.pop()]
        seconds = self._expected(units[0])
        while self._waiting:
            longer = seconds + self._expected(self._waiting[-1])
            if longer > (_CHUNK_SECONDS if len(units) < most else _SMALL_SECONDS):
                break
            units.append(self._waiting.pop())
            seconds = longer
        alone = len(units) == len(units[0]) == 1
        patience = float("inf") if alone else _PATIENCE_SECONDS + 10 * seconds
        return _Chunk(units, now, now + patience)

    def _expected(self, unit: Sequence[Job]) -> float:
        """Return the seconds a unit took last; of its kind if it is new; infinite if that is."""
        seconds = 0.0
        for task in unit:
            metadata = task.message.metadata
            typical = self._typical.get(metadata.message_type, float("inf"))
            seconds += self._last.get((metadata.dst_node_id, metadata.message_type), typical)
        return seconds

    def _send(self, worker: Worker, chunk: _Chunk) -> None:
        worker.chunk = chunk
        keys = {task.key: task.message.content for task in chunk.tasks}
        blobs = {
            key: self._blob(key, content)
            for key, content in keys.items()
            if key not in worker.known
        }
        worker.known.update(blobs)
        units = [
            [(task.message.metadata, task.key, self._state(task)) for task in unit]
            for unit in chunk.units
        ]
        # A worker that died while idle is noticed when its answer is awaited.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            worker.connection.send((self._exchange, blobs, units))

    def _blob(self, key: int, content: RecordDict) -> bytes:
        if key not in self._blobs:
            self._blobs[key], self._sent_end = pickled(content, self._sent, self._sent_end)
        return self._blobs[key]

    def _state(self, task: Job) -> RecordDict | None:
        return self._contexts[task.message.metadata.dst_node_id].state or None

    # Taking back -------------------------------------------------------------------------------

    @staticmethod
    def _seconds_to_wait(busy: Iterable[Worker], deadline: float | None) -> float | None:
        ends = [worker.chunk.overdue for worker in busy if worker.chunk is not None]
        end = min([*ends, float("inf") if deadline is None else deadline])
        return None if end == float("inf") else max(0.0, end - time.monotonic())

    def _take_back(self, worker: Worker) -> list[Message]:
        chunk = worker.chunk
        assert chunk is not None
        try:
            blob = worker.connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            self._do_again(worker)
            return []
        worker.chunk = None
        answers: list[Answered] | CoterieError = unpickled(blob, worker.shared)
        if isinstance(answers, CoterieError):
            self._give_up([worker for worker in self.workers if worker.chunk is not None])
            raise answers
        for task, answer in zip(chunk.tasks, answers, strict=True):
            metadata = task.message.metadata
            self._last[metadata.dst_node_id, metadata.message_type] = answer.seconds
            self._typical[metadata.message_type] = answer.seconds
            if answer.state is not None:
                self._contexts[metadata.dst_node_id].state = answer.state
        return [answer.reply for answer in answers]

    def _do_again(self, worker: Worker) -> None:
        """Have another worker do what one died of, or perhaps only with.

        Raises:
            WorkerError: workers die of it.
        """
        chunk = self._bury(worker)
        if len(chunk.units) == 1:
            [unit] = chunk.units
            for task in unit:
                task.deaths += 1
            if unit[0].deaths == DEATHS:
                self._give_up([worker for worker in self.workers if worker.chunk is not None])
                nodes = ", ".join(str(task.message.metadata.dst_node_id) for task in unit)
                raise WorkerError(
                    f"{DEATHS} processes that worked for node {nodes} died, the last with exit "
                    f"code {worker.process.exitcode}: where memory ran out set fewer workers, then "
                    "coterie resume"
                )
        self._suspects += chunk.units

    def _bury(self, worker: Worker) -> _Chunk:
        """Replace a worker that died, and return what it was at."""
        worker.process.join()
        assert worker.chunk is not None
        self._replace(worker)
        return worker.chunk

    def _give_up(self, late: Iterable[Worker]) -> None:
        """Stop clients that are over time: what they still do must not reach a later round."""
        for worker in list(late):
            worker.process.kill()
            worker.process.join()
            self._replace(worker)

    def _replace(self, worker: Worker) -> None:
        worker.connection.close()
        if worker.shared is not None:
            worker.shared.close()
        self.workers[self.workers.index(worker)] = self._start()

    def _start(self) -> Worker:
        processes = machine.sharing_processes()
        ours, theirs = processes.Pipe()
        shared = new_shared()
        process = processes.Process(
            target=_work,
            args=(theirs, self._load, self._contexts, os.getpid(), self._sent, shared),
            daemon=True,
        )
        process.start()
        theirs.close()
        return Worker(process, ours, shared)


# In the worker ---------------------------------------------------------------------------------


def _work(
    connection: Connection,
    load: Callable[[], ClientApp],
    contexts: dict[int, Context],
    parent: int,
    received: mmap.mmap | None,
    shared: mmap.mmap | None,
) -> None:
    """Answer chunks until the parent closes the pipe or is gone."""
    if machine.end_with_parent is not None:
        machine.end_with_parent()  # else who waits for the rest of a message would do so for ever
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what ctrl-C means
    torch.set_num_threads(1)
    app = load()
    contents: dict[int, RecordDict] = {}
    current = 0
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while os.getppid() == parent:
            if not connection.poll(_POLL_SECONDS):
                continue
            exchange, blobs, units = connection.recv()
            if exchange != current:  # what earlier exchanges sent is not needed again
                contents, current = {}, exchange
            for key, blob in blobs.items():
                contents[key] = unpickled(blob, received)
            connection.send_bytes(pickled(_answers(app, units, contents, contexts), shared)[0])


def _answers(
    app: ClientApp,
    units: list[list[Arrival]],
    contents: dict[int, RecordDict],
    contexts: dict[int, Context],
) -> list[Answered] | CoterieError:
    """Return what is sent back for some units, or the error that ends the run."""
    try:
        return answered(app, units, contents, contexts)
    except CoterieError as error:
        return error

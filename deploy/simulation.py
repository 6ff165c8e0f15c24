"""A federation in one process: a Flower ``Grid`` that calls the ClientApp directly.

The same ServerApp, Strategy and ClientApp run here as under Flower's own runtimes. There is no
polling, no queue between processes of different owners and no protobuf: a message is handed to one
of a few worker processes, forked after the data was loaded, and its reply is taken back. A model
that goes to many clients is handed to each worker once.

Flower's private names that this needs stand in this file only, and ``tests/test_simulation.py``
says which one broke: ``TaskIdentity``, ``Run.create_empty``, ``metadata.__dict__["_message_id"]``,
and ``Message(metadata=..., content=...)``.
"""

import contextlib
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.app.metadata import Metadata
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from client_app.site import simulated_federation
from client_app.training import choose_device
from common.config import Scalar, Settings
from server_app import app as server
from server_app import methods

_RUN_ID = 1
_SERVER_NODE = 1  # the id that Flower gives the SuperLink
_POLL_SECONDS = 2.0  # how often an idle worker looks whether its parent still lives


def load_client_app() -> ClientApp:
    """Return Coterie's ClientApp."""
    from client_app.app import app

    return app


def simulate(settings: Settings) -> Path:
    """Run a federation and return the absolute path of its run folder.

    Everything that can be refused is refused before a worker starts.
    """
    settings = settings.with_absolute_paths()
    methods.build(settings)
    # Asking CUDA itself would start it here, and a process that has started it cannot be forked.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    choose_device(settings.device)
    _, sites = simulated_federation(settings)
    # One thread here and in each worker: workers are the parallelism, and a process that has
    # started OpenMP threads cannot be forked safely again when a worker must be replaced.
    torch.set_num_threads(1)
    run_config = settings.to_dict()
    with InProcessGrid(
        load_client_app, run_config, num_nodes=len(sites), workers=settings.workers
    ) as grid:
        context = Context(_RUN_ID, _SERVER_NODE, {}, RecordDict(), dict(run_config))
        server.app(grid, context)
    return server.run_folder_of(context)


@dataclass
class _Task:
    """One message on its way to a client."""

    message: Message
    exchange: int
    """Number of the exchange it belongs to."""
    key: int
    """Number of its content in that exchange; equal contents are sent to a worker once."""


@dataclass
class _Worker:
    """One worker process and what it is busy with."""

    process: BaseProcess
    connection: Connection
    known: set[int] = field(default_factory=set)
    """Keys of the contents it was given in this exchange."""
    task: _Task | None = None
    since: float = 0.0


class InProcessGrid(Grid):
    """Executes messages in this process (one worker) or in forked workers (several).

    Args:
        load: returns the ClientApp; called once per worker.
        run_config: what clients find in ``context.run_config``.
        num_nodes: nodes 2 .. num_nodes + 1, with partition ids from 0.
        workers: processes; 0: one per core that this process may use; 1: none but this one.
        node_config: more entries for every node's config.
    """

    def __init__(
        self,
        load: Callable[[], ClientApp],
        run_config: dict[str, Scalar],
        *,
        num_nodes: int,
        workers: int = 0,
        node_config: dict[str, Scalar] | None = None,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = _RUN_ID, _SERVER_NODE, 0
        self._run = Run.create_empty(_RUN_ID)
        self._load = load
        self._contexts = {
            _SERVER_NODE + 1 + index: Context(
                run_id=_RUN_ID,
                node_id=_SERVER_NODE + 1 + index,
                node_config={
                    "partition-id": index,
                    "num-partitions": num_nodes,
                    **(node_config or {}),
                },
                state=RecordDict(),
                run_config=run_config,
            )
            for index in range(num_nodes)
        }
        self._ids = itertools.count(1)
        self._exchanges = itertools.count(1)
        self._pushed: dict[str, Message] = {}
        self._last_seconds: dict[tuple[int, str], float] = {}
        count = min(workers or len(os.sched_getaffinity(0)), num_nodes)
        self._app = load() if count <= 1 else None
        self._workers = [] if count <= 1 else [self._start_worker() for _ in range(count)]

    # Grid --------------------------------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        """Take the run that this grid operates in."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that this grid operates in."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message, as Flower's constructor does."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Take messages; they are executed when their replies are pulled."""
        ids = []
        for message in messages:
            self._identify(message)
            self._pushed[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Execute pushed messages and return their replies."""
        found = [self._pushed.pop(key) for key in message_ids if key in self._pushed]
        return self._execute(found, None)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Execute messages and return their replies; none for a client that takes too long."""
        outgoing = list(messages)
        for message in outgoing:
            self._identify(message)
        return self._execute(outgoing, timeout)

    def _identify(self, message: Message) -> None:
        message.metadata.__dict__["_message_id"] = str(next(self._ids))

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.connection.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
        self._workers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Execution ---------------------------------------------------------------------------------

    def _execute(self, outgoing: Sequence[Message], timeout: float | None) -> list[Message]:
        unknown = [m for m in outgoing if m.metadata.dst_node_id not in self._contexts]
        if unknown:
            raise ValueError(f"no node {unknown[0].metadata.dst_node_id} in this federation")
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._app is not None:
            return self._execute_here(self._app, outgoing, deadline)
        return self._execute_in_workers(outgoing, deadline)

    def _execute_here(
        self, app: ClientApp, outgoing: Sequence[Message], deadline: float | None
    ) -> list[Message]:
        replies = []
        for message in outgoing:
            if deadline is not None and time.monotonic() > deadline:
                break
            copy = _message(message.metadata, message.content)
            replies.append(_answer(app, copy, self._contexts[message.metadata.dst_node_id]))
        return replies

    def _execute_in_workers(
        self, outgoing: Sequence[Message], deadline: float | None
    ) -> list[Message]:
        """Keep every worker busy with one message at a time, the longest client first."""
        waiting = self._in_order(outgoing)
        blobs: dict[int, bytes] = {}
        replies: list[Message] = []
        idle = list(self._workers)
        while waiting or len(idle) < len(self._workers):
            while waiting and idle:
                self._hand_over(idle.pop(), waiting.pop(), blobs)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            busy = {w.connection: w for w in self._workers if w.task is not None}
            ready = wait(list(busy), left)
            if not ready:
                self._give_up(busy.values())
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                worker = busy[connection]
                replies.append(self._take_back(worker))
                # a worker that died was replaced in its place
                idle = [w for w in self._workers if w.task is None]
        for worker in self._workers:
            worker.known.clear()
        return replies

    def _in_order(self, outgoing: Sequence[Message]) -> list[_Task]:
        """Return the tasks, the longest last: by the client's last time, unknown ones longest."""
        exchange = next(self._exchanges)
        keys: dict[int, int] = {}
        tasks = []
        for message in outgoing:
            key = keys.setdefault(id(message.content), len(keys))
            tasks.append(_Task(message, exchange, key))
        return sorted(tasks, key=self._expected_seconds)

    def _expected_seconds(self, task: _Task) -> float:
        metadata = task.message.metadata
        key = (metadata.dst_node_id, metadata.message_type)
        return self._last_seconds.get(key, float("inf"))

    def _hand_over(self, worker: _Worker, task: _Task, blobs: dict[int, bytes]) -> None:
        metadata = task.message.metadata
        blob = None
        if task.key not in worker.known:
            if task.key not in blobs:
                blobs[task.key] = pickle.dumps(task.message.content, protocol=5)
            blob = blobs[task.key]
            worker.known.add(task.key)
        state = self._contexts[metadata.dst_node_id].state
        worker.task, worker.since = task, time.monotonic()
        # A worker that died while idle is noticed when its answer is awaited.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            worker.connection.send((metadata, task.exchange, task.key, blob, state or None))

    def _take_back(self, worker: _Worker) -> Message:
        task = worker.task
        assert task is not None
        metadata = task.message.metadata
        worker.task = None
        try:
            reply, state = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            return self._bury(worker, task)
        self._last_seconds[metadata.dst_node_id, metadata.message_type] = (
            time.monotonic() - worker.since
        )
        if state is not None:
            self._contexts[metadata.dst_node_id].state = state
        assert isinstance(reply, Message)
        return reply

    def _bury(self, worker: _Worker, task: _Task) -> Message:
        """Replace a worker that died, and answer for the client it died with."""
        worker.process.join()
        code = worker.process.exitcode
        reason = f"the process that worked for this client ended with exit code {code}"
        self._replace(worker)
        return Message(Error(ErrorCode.CLIENT_APP_CRASHED, reason), reply_to=task.message)

    def _give_up(self, late: Iterable[_Worker]) -> None:
        """Stop clients that are over time: what they still do must not reach a later round."""
        for worker in list(late):
            worker.process.kill()
            worker.process.join()
            self._replace(worker)

    def _replace(self, worker: _Worker) -> None:
        worker.connection.close()
        self._workers[self._workers.index(worker)] = self._start_worker()

    # Workers -----------------------------------------------------------------------------------

    def _start_worker(self) -> _Worker:
        # Forked where that is safe, so that data loaded before is shared and not loaded again.
        linux = sys.platform.startswith("linux")
        processes: Any = multiprocessing.get_context("fork" if linux else "spawn")
        ours, theirs = processes.Pipe()
        process = processes.Process(
            target=_work, args=(theirs, self._load, self._contexts, os.getpid()), daemon=True
        )
        process.start()
        theirs.close()
        return _Worker(process, ours)


def _work(
    connection: Connection,
    load: Callable[[], ClientApp],
    contexts: dict[int, Context],
    parent: int,
) -> None:
    """Answer messages until the parent closes the pipe or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what ctrl-C means
    torch.set_num_threads(1)
    app = load()
    contents: dict[int, RecordDict] = {}
    current = 0
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while os.getppid() == parent:
            if not connection.poll(_POLL_SECONDS):
                continue
            metadata, exchange, key, blob, state = connection.recv()
            if exchange != current:  # what earlier exchanges sent is not needed again
                contents, current = {}, exchange
            if blob is not None:
                contents[key] = pickle.loads(blob)  # noqa: S301 - from our own parent
            context = _with_state(contexts[metadata.dst_node_id], state)
            reply = _answer(app, _message(metadata, contents[key]), context)
            connection.send((reply, context.state or None))


def _message(metadata: Metadata, content: RecordDict) -> Message:
    # The overload that takes metadata is not part of Flower's typed interface.
    make: Any = Message
    message: Message = make(metadata=metadata, content=_copy(content))
    return message


def _with_state(context: Context, state: RecordDict | None) -> Context:
    return Context(
        context.run_id,
        context.node_id,
        context.node_config,
        RecordDict() if state is None else state,
        context.run_config,
    )


def _answer(app: ClientApp, message: Message, context: Context) -> Message:
    """Return the ClientApp's reply, or an error reply with the text of what it raised."""
    try:
        return app(message, context)
    except Exception as error:
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)


def _copy(content: RecordDict) -> RecordDict:
    """Return records of their own over the same immutable bytes.

    A client may do to its message what it likes; its neighbours must not see it.
    """
    result = RecordDict()
    for key, record in content.items():
        if isinstance(record, ArrayRecord):
            arrays = {name: _copy_array(array) for name, array in record.items()}
            result[key] = ArrayRecord(arrays)
        else:
            result[key] = pickle.loads(pickle.dumps(record))  # noqa: S301 - made a line above
    return result


def _copy_array(array: Array) -> Array:
    return Array(array.dtype, array.shape, array.stype, array.data)

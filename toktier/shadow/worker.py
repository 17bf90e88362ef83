"""The process that checks: it reads jobs from its standard input and writes answers to its standard output.

Invariants:
 - It shares nothing with the process that started it but the files that a job names. Files are read from disk, never
   from the network.
 - It is the last in line for the processor (`toktier.shadow.process` sees to that). It ends when its input ends,
   even in the middle of a job. Signals that are meant for the whole group of processes do not end it, since a server
   that drains still wants verdicts.
 - Nothing but answers is written to its output, whatever a library prints.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from typing import BinaryIO

from toktier.errors import is_failure
from toktier.shadow import frames
from toktier.shadow.frames import Answer
from toktier.shadow.job import Drop, Job, NotComparable, Verdict


def main() -> None:
    """Runs until the input ends; never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ["HF_HUB_OFFLINE"] = "1"  # before anything that might read it is imported
    output = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, jobs), daemon=True).start()
    _serve(jobs, output)


def _read(source: BinaryIO, jobs: queue.SimpleQueue[Job]) -> None:
    def receive(size: int) -> bytes:
        content = source.read(size)
        if len(content) < size:
            raise EOFError
        return content

    try:
        while True:
            jobs.put(frames.read_job(receive))
    finally:
        os._exit(0)  # nobody waits for an answer any more


def _serve(jobs: queue.SimpleQueue[Job], output: BinaryIO) -> None:
    from toktier.shadow.check import Checker  # slow to import: the input is watched already

    checker = Checker()

    def answer(result: Verdict | NotComparable | None, *, final: bool) -> None:
        content = frames.pack_answer(Answer(result, final))
        output.write(frames.head(content) + content)
        output.flush()

    answer(None, final=False)  # to say that the slow part of the start is over
    while True:
        job = jobs.get()
        try:
            result = checker.check(job, lambda so_far: answer(so_far, final=False))
        except BaseException as error:
            if not is_failure(error):
                raise
            result = NotComparable(Drop.INTERNAL_ERROR, _place(error))
        del job
        answer(result, final=True)


def _place(error: BaseException) -> str:
    """Type and place of an error; its message may quote text."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" at {trace.tb_frame.f_code.co_name}:{trace.tb_lineno}"
    return f"{type(error).__name__}{where}"

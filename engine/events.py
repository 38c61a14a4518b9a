"""Files of events, which TensorBoard reads.

They are written without TensorBoard's own writer: it writes in a thread, which prints a traceback if the disk is full.
"""

import os
import secrets
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


class EventFile:
    """A new file of events in a folder. All methods raise OSError if the disk is full or gone; the file is closed then.

    `hides_from`: events of earlier files are hidden from this step on, because they are written again; None: they stay.
    """

    def __init__(self, folder: Path, hides_from: int | None = None):
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # loads TensorBoard
        from tensorboard.summary.writer.record_writer import RecordWriter  # loads TensorBoard

        self._event = Event
        name = f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
        self._file = open(folder / name, "xb")  # noqa: SIM115  closed by `close`
        self._records = RecordWriter(self._file)
        events = [Event(file_version="brain.Event:2")]
        if hides_from is not None:
            events.append(Event(step=hides_from, session_log=SessionLog(status=SessionLog.START)))
        self._write(events)

    def write(self, values: Iterable[Mapping[str, Any]], step: int) -> None:
        """Writes values of a step: {"tag": "loss/total", "simple_value": .5}, or an image in place of the number."""
        self._write([self._event(step=step, summary={"value": list(values)})])

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, events: Iterable[Any]) -> None:
        try:
            for event in events:
                event.wall_time = time.time()
                self._records.write(event.SerializeToString())
            self._records.flush()
        except OSError:
            with suppress(OSError):  # the same error again: what the buffer holds is lost
                self.close()
            raise

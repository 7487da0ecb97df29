"""What the command line shows of the log: warnings as human lines, or everything as JSON for a collector.

Lines go to stderr, so that stdout stays what was asked for. A library user's own structlog configuration
is left alone: only the command line calls `configure`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO

import structlog

Form = Literal["plain", "json"]
LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


def configure(form: Form = "plain", verbosity: int = 0, stream: TextIO | None = None) -> None:
    """Choose the form of log lines; each `-v` shows one level more. JSON is for machines: it starts at info."""
    level = LEVELS[min(verbosity + (form == "json"), len(LEVELS) - 1)]
    output = stream or sys.stderr
    logging.basicConfig(level=level, stream=output, format="%(levelname)s: %(name)s: %(message)s", force=True)
    for chatty in ("py4j", "pyiceberg", "urllib3", "botocore"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
    structlog.configure(
        processors=_processors(form, colors=output.isatty()),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=output),
        cache_logger_on_first_use=False,
    )


def _processors(form: Form, *, colors: bool) -> list[structlog.types.Processor]:
    shared: list[structlog.types.Processor] = [structlog.contextvars.merge_contextvars, structlog.processors.add_log_level]
    if form == "json":
        return [
            *shared,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(default=str),
        ]
    return [*shared, structlog.processors.TimeStamper(fmt="%H:%M:%S"), _Line(colors=colors)]


class _Line:
    """One event as one line: `12:00:01 warning: what happened  key=value`."""

    _COLORS = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}

    def __init__(self, *, colors: bool) -> None:
        self._colors = colors

    def __call__(self, _logger: Any, _name: str, event: MutableMapping[str, Any]) -> str:
        level = str(event.pop("level", "info"))
        time = event.pop("timestamp", "")
        what = event.pop("event", "")
        trace = event.pop("exception", None)
        event.pop("exc_info", None)
        color = self._COLORS.get(level, "") if self._colors else ""
        details = "".join(f"  {key}={value}" for key, value in event.items())
        line = f"{time} {color}{level}{': ' if not color else chr(27) + '[0m: '}{what}{details}"
        return f"{line}\n{trace}" if trace else line

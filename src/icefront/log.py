"""What the command line shows of the log: warnings as human lines, or everything as JSON for a collector.

Lines go to stderr, so that stdout stays what was asked for. A library user's own structlog configuration
is left alone: only the command line calls `configure`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO, cast

import structlog

from icefront.settings.secrets import masked

Form = Literal["plain", "json"]
LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
_COLORS = {"warning": "33", "error": "31", "critical": "31"}


def configure(form: Form = "plain", verbosity: int = 0) -> None:
    """Choose the form of log lines; each `-v` shows one level more. JSON is for machines: it starts at info."""
    level = LEVELS[min(verbosity + (form == "json"), len(LEVELS) - 1)]
    output = cast("TextIO", _Stderr())
    logging.basicConfig(level=level, stream=output, format="%(levelname)s: %(name)s: %(message)s", force=True)
    for chatty in ("py4j", "pyiceberg", "urllib3", "botocore"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
    structlog.configure(
        processors=_processors(form),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=output),
        cache_logger_on_first_use=False,
    )


class _Stderr:
    """Whatever sys.stderr is when a line is written: a progress display takes its place for a while.

    Libraries log by `logging`, and quote what they were given: lines are masked once more, whoever wrote them.
    """

    def write(self, text: str) -> int:
        return sys.stderr.write(masked(text))

    def flush(self) -> None:
        sys.stderr.flush()


def _processors(form: Form) -> list[structlog.types.Processor]:
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _without_secrets,
    ]
    if form == "json":
        return [
            *shared,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(default=str),
        ]
    return [*shared, structlog.processors.TimeStamper(fmt="%H:%M:%S"), structlog.processors.format_exc_info, _line]


def _without_secrets(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Mask what came from `${…}`: libraries quote it in their messages."""
    return {key: masked(value) if isinstance(value, str) else value for key, value in event.items()}


def _line(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> str:
    """Print one event as one line: `12:00:01 warning: what happened  key=value`."""
    level, time, what = (event.pop(key, "") for key in ("level", "timestamp", "event"))
    trace = event.pop("exception", "")
    color = _COLORS.get(str(level)) if sys.stderr.isatty() else None
    shown = f"\x1b[{color}m{level}\x1b[0m" if color else level
    details = "".join(f"  {key}={value}" for key, value in event.items())
    return f"{time} {shown}: {what}{details}" + (f"\n{trace}" if trace else "")

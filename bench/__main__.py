"""`python -m bench [--short|--long] [names…]`: each benchmark in a process of its own, so that none inherits another's memory."""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import structlog

from bench import changes, epochs, intake, planning, publish, settling, upkeep
from bench.results import Result, write_page

BENCHMARKS: Mapping[str, Callable[[str, Callable[[str], None]], Result]] = {
    "epochs": epochs.measure,
    "intake": intake.measure,
    "memory": intake.measure_memory,
    "publish": publish.measure,
    "changes": changes.measure,
    "planning": planning.measure,
    "upkeep": upkeep.measure,
    "settling": settling.measure,
}


def main() -> int:
    arguments = parse()
    begun = time.monotonic()
    failed = 0
    if arguments.inside:
        (name,) = arguments.names
        return run(name, arguments.form)
    for name in arguments.names or BENCHMARKS:
        print(f"── {name} ({arguments.form}) ──", flush=True)
        command = [sys.executable, "-m", "bench", f"--{arguments.form}", "--inside", name]
        failed += subprocess.run(command, check=False).returncode != 0
    if arguments.form != "tiny":
        write_page()
    print(f"took {time.monotonic() - begun:.0f} s", flush=True)
    return 1 if failed else 0


def run(name: str, form: str) -> int:
    begun = time.monotonic()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))

    def say(text: str) -> None:
        print(f"  {time.monotonic() - begun:6.1f} s  {text}", flush=True)

    result = BENCHMARKS[name](form, say)
    for figure in result.figures:
        print(figure.row(), flush=True)
    for fact, value in result.facts.items():
        print(f"  {fact}: {value}", flush=True)
    if form != "tiny":
        result.save()
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    forms = parser.add_mutually_exclusive_group()
    for form, text in {
        "short": "all of them in about ten minutes (default)",
        "long": "larger tables, more rounds",
        "tiny": "only shows that the benchmarks work: nothing is written",
    }.items():
        forms.add_argument(f"--{form}", dest="form", action="store_const", const=form, help=text)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="name", help=f"which: {', '.join(BENCHMARKS)} (default: all)")
    parser.set_defaults(form="short")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())

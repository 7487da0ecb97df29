"""How a command ends when something is wrong: a sentence and a next step on stderr, and an exit code that scripts can use."""

from __future__ import annotations

import sys
import tempfile
import traceback
from typing import Any, ClassVar

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from icefront.core.errors import UNEXPECTED, IcefrontError
from icefront.settings.secrets import masked

INTERRUPTED = 130


class Commands(TyperGroup):
    """Runs a command and turns what it raises into an exit code; a traceback is shown only to those who asked for it."""

    debug: ClassVar[bool] = False
    """Whether this process was started with --debug; threads of a command ask too."""

    def invoke(self, ctx: Any) -> Any:
        Commands.debug = bool(ctx.params.get("debug"))
        try:
            return super().invoke(ctx)
        except IcefrontError as error:
            if Commands.debug:
                tell(masked(traceback.format_exc()))
            tell_error(error)
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:
            raise  # nobody reads on, as behind `| head`: typer ends it quietly
        except KeyboardInterrupt:
            tell("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if type(error).__module__.partition(".")[0] in {"typer", "click"}:
                raise  # their own: a usage error, or an exit
            tell_unexpected(error)
            raise typer.Exit(UNEXPECTED) from None


def tell_error(error: IcefrontError) -> None:
    """Print each fact as `error: …` and what to do as `→ …`; one error may list several findings."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for line in masked(str(error)).splitlines():
        if line.lstrip().startswith("→"):
            console.print(Text(f"  {line.strip()}"))
        else:
            console.print(Text.assemble(("error: ", "bold red"), line))


def tell_unexpected(error: BaseException) -> None:
    """Say shortly what was not foreseen, and where the whole of it can be read."""
    trace = masked("".join(traceback.format_exception(error)))
    what = " ".join(str(error).split())[:300]
    fact = f"unexpected {type(error).__name__}: {what}" if what else f"unexpected {type(error).__name__}"
    if Commands.debug:
        tell(trace)
        tell_error(IcefrontError(fact))
        return
    with tempfile.NamedTemporaryFile("w", prefix="icefront-error-", suffix=".txt", delete=False, encoding="utf-8") as file:
        file.write(trace)
    tell_error(IcefrontError(fact, f"this is a defect: the traceback is in {file.name}; `icefront --debug …` shows it here"))


def tell(text: str) -> None:
    """Print a plain line on stderr."""
    sys.stderr.write(f"{text.rstrip()}\n")
    sys.stderr.flush()

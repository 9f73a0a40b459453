"""The command line: dufs-core fit, sweep, warmup, gradcheck, info.

Results go to stdout; notes, warnings and errors to stderr, one sentence each. Heavy imports follow the arguments.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from dufs_core.cli.common import BAD_INPUT, DONE, FAILED, INTERRUPTED, UsageError, single_line
from dufs_core.cli.parser import build_parser
from dufs_core.training.progress import stage


@contextmanager
def _clean_warnings() -> Iterator[None]:
    """Print each warning for users once, as one sentence on stderr; drop those for developers."""
    seen: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        text = single_line(message)
        if text not in seen:
            seen.add(text)
            print(f"dufs-core: warning: {text}", file=sys.stderr)

    with warnings.catch_warnings(action="ignore"):
        for category in (UserWarning, RuntimeWarning):
            warnings.simplefilter("always", category)
        warnings.showwarning = show
        yield


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on `argv` (default: sys.argv) and return the exit code, as `dufs-core --help` lists them."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of features may not be encodable
    try:
        with _clean_warnings():
            command = argv[0] if argv else None
            silent = command not in ("sweep", "gradcheck") or {"-q", "--quiet", "-h", "--help"} & {*argv}
            with stage(not silent and sys.stderr.isatty(), "starting"):  # the parsers of these load all they use
                parser = build_parser(command)
            args = parser.parse_args(argv)
            if args.command is None:
                raise UsageError("a command is needed: fit, sweep, warmup, gradcheck or info (see dufs-core --help)")
            module = "sweep.command" if args.command == "sweep" else args.command
            code = int(import_module(f"dufs_core.cli.{module}").run(args))
            sys.stdout.flush()
            return code
    except SystemExit as end:  # argparse, after --help or an error that it has printed
        return end.code if isinstance(end.code, int) else DONE if end.code is None else FAILED
    except UsageError as error:
        print(f"dufs-core: {single_line(error)}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt as interruption:
        print(f"dufs-core: interrupted, {single_line(interruption) or 'nothing was written'}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of stdout has gone, as in a pipe to head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except MemoryError as error:
        print(f"dufs-core: out of memory ({single_line(error) or 'no more is known'})", file=sys.stderr)
        return FAILED
    except Exception as error:
        traceback.print_exc()
        print(f"dufs-core: unexpected {type(error).__name__}: {single_line(error)}", file=sys.stderr)
        return FAILED

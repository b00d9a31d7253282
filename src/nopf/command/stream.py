"""`nopf filter` for a live stream: an estimate a line, as lines come."""

import os
import sys

import typer

from nopf.command.request import Request
from nopf.command.voice import complain, say, tell
from nopf.recording import (
    DataError,
    csv_header,
    estimate_names,
    filter_live,
    format_csv,
    format_json,
    live_rows,
)


def filter_stream(request: Request, form: str | None, skip_bad: bool) -> None:
    """An estimate a line, as the lines of standard input come.

    Args:
        request: what with.
        form: of the lines that go out, csv or json; as they come in if None.
        skip_bad: whether to leave out lines that cannot be read.
    """
    request = request.settled(None)
    flt = request.make_filter(None)
    tell(f"waiting for lines; the filter is {request.short}")
    if sys.stdin is None:
        raise typer.BadParameter("standard input is closed", param_hint="-")
    try:
        skip = (lambda message: say(f"left out: {message}")) if skip_bad else None
        rows, incoming = live_rows("standard input", sys.stdin, flt.model, request.columns, skip)
        names = estimate_names(flt.model.state_names, flt.quantiles)
        outgoing = form or incoming
        if outgoing == "csv":
            print(csv_header(names), flush=True)
        for values in filter_live(flt, rows, request.seed, say, request.start):
            line = format_csv(values) if outgoing == "csv" else format_json(names, values)
            print(line, flush=True)
    except (DataError, UnicodeDecodeError) as error:
        complain(str(error))
        raise typer.Exit(2) from None
    except BrokenPipeError:  # Whoever reads has gone: nothing left to do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

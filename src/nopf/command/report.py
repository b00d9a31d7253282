"""`nopf report`: one page of results."""

import json
from pathlib import Path
from typing import Annotated

import typer

from nopf.benchmarks.results import Results, ResultsError
from nopf.command.options import AsJson, check_pictures, check_writable
from nopf.files import write_whole

EXAMPLES = (
    "nopf report results",
    "nopf report results --out page.html --figures svg",
)

Folder = Annotated[Path, typer.Argument(help="A folder of results, from nopf bench or nopf sweep.")]
Out = Annotated[
    Path | None, typer.Option(help="The file of the page. If left out: FOLDER/report.html.")
]
Figures = Annotated[
    str | None,
    typer.Option(help="Also write every figure to FOLDER/figures, as svg, png or pdf."),
]


def report_command(
    folder: Folder, out: Out = None, figures: Figures = None, as_json: AsJson = False
) -> None:
    """Makes one HTML page of results, with tables and animated particles. It needs no network."""
    if figures not in (None, "svg", "png", "pdf"):
        raise typer.BadParameter(
            f"expected svg, png or pdf, got {figures!r}", param_hint="--figures"
        )
    if not (folder / "nopf.json").is_file():
        raise typer.BadParameter(
            f"{folder} holds no results; make some with: nopf bench range-only --out {folder}"
        )
    check_pictures()
    from nopf.report.drawing import draw_all
    from nopf.report.page import page
    from nopf.report.verdict import verdict

    results = _results(folder)
    target = folder / "report.html" if out is None else out
    check_writable(target, "--out")
    write_whole(target, page(results).encode())
    drawn = draw_all(results, folder / "figures", figures) if figures else []
    rows = {name: results.rows(name) for name in results.benchmarks()}
    said = {name: verdict(own).headline for name, own in rows.items() if own}
    if as_json:
        shown = {"page": str(target), "figures": [str(file) for file in drawn], "headlines": said}
        print(json.dumps(shown))
        return
    for name, headline in said.items():
        print(f"{name}: {headline}")
    print(f"{target}: open it in a browser ({target.stat().st_size / 1e6:.1f} MB, no network)")
    if drawn:
        print(f"{len(drawn)} figures in {folder / 'figures'}")


def _results(folder: Path) -> Results:
    try:
        results = Results(folder)
    except ResultsError as error:
        raise typer.BadParameter(str(error)) from None
    if not any(results.rows(name) for name in results.benchmarks()):
        raise typer.BadParameter(f"{folder}: no cell is finished yet; run nopf bench again")
    return results

"""Files that nopf has written, damaged: proposals, checkpoints, cells of a results folder."""

import dataclasses
import json

import jax
import numpy as np
from hypothesis import strategies as st

import nopf
from nopf.benchmarks.results import SCORES, Cell, Results, settings_of
from nopf.benchmarks.tables import tabulate
from nopf.catalogue import make_filter
from nopf.files import read_arrays, write_arrays
from nopf.proposals.fingerprint import fingerprint
from nopf.proposals.neural import untrained
from nopf.training.checkpoint import read_checkpoint, settled_base, write_checkpoint
from tests import models
from tests.fuzz.damage import DEEP, changed, damaged
from tests.fuzz.outcome import Wrong, expect

CELL = Cell("sensor-bias", "bpf", 100, 0)


@dataclasses.dataclass
class Run:
    """Stands for the state of a training."""

    network: np.ndarray
    history: np.ndarray
    step: int = 3
    best_loss: float = np.inf
    interrupted: bool = False


@st.composite
def crafted(draw, header, arrays):
    """A header and arrays of which something is different, as a stranger would write them with a
    checksum that is right."""
    arrays, name = dict(arrays), draw(st.sampled_from(sorted(arrays)))
    what = draw(st.integers(0, 5))
    if what == 0:
        del arrays[name]
    elif what == 1:
        arrays[name] = draw(
            st.sampled_from([np.zeros(0), np.zeros((3, 3)), np.ones(2, int), np.ones(1, bool)])
        )
    elif what == 2:
        arrays[name] = np.full_like(arrays[name], np.nan if arrays[name].dtype.kind == "f" else -1)
    elif what == 3:
        arrays["more"] = np.zeros(2)
    return (header if what in (1, 2) else draw(changed(header))), arrays


class Kept:
    """Reads them as the commands do."""

    def __init__(self, counts, folder):
        self.counts, self.model = counts, models.linear()
        self.proposal_file, self.part = folder / "kept.nopf", folder / "kept.part"
        steps = self.model.steps(3)
        identity = fingerprint(self.model, None)
        recipe = nopf.Recipe.fast(base="skeleton", width=4, depth=1)
        blank = untrained(identity, recipe, steps, jax.random.key(0))
        blank = dataclasses.replace(blank, network=blank.network.folded())
        blank.save(self.proposal_file)
        self.settings = {"model": {"dt": 1.0}, "base": "skeleton", "seed": 0}
        write_checkpoint(self.part, Run(np.ones(3), np.ones((2, 4))), self.settings)
        self.whole = {file: file.read_bytes() for file in (self.proposal_file, self.part)}
        self.parts = {
            file: read_arrays(file, kind)
            for file, kind in [
                (self.proposal_file, "nopf proposal"),
                (self.part, "nopf checkpoint"),
            ]
        }
        self.folder = folder / "results"
        self.results = Results(self.folder)
        self.results.prepare()
        steps = nopf.benchmarks.BENCHMARKS[CELL.benchmark].horizon
        scores = dict.fromkeys(SCORES, 1.0)
        self.row = dataclasses.asdict(CELL) | scores | {"wt": 1.0, "paper_window": scores}
        self.row |= {"log_evidence": -1.0, "compile_seconds": 1.0, "run_seconds": 0.1}
        self.row |= {"ess_path": [1.0] * steps, "evidence_path": [1.0] * steps}
        self.row |= {"draws": 5.0, "draws_worst": 3.0, "repeats": 2}
        self.results.write(CELL, settings_of(CELL), self.row, None)
        (self.cell_file,) = self.folder.rglob("bpf-*.json")
        self.stamp_file = self.folder / "nopf.json"
        self.stamp = json.loads(self.stamp_file.read_text())
        self.content = json.loads(self.cell_file.read_text())
        if len(self.results.rows(CELL.benchmark)) != 1:
            raise Wrong("the cell is not found")

    def _write(self, file, kind, given):
        if isinstance(given, bytes):
            file.write_bytes(given)
        else:
            write_arrays(file, kind, *given)

    def proposal(self, given):
        self._write(self.proposal_file, "nopf proposal", given)

        def load():
            loaded = nopf.NeuralProposal.load(self.proposal_file, self.model)
            make_filter("nopf", self.model, 10, proposal=loaded)

        expect(self.counts, "proposal file", load)
        expect(self.counts, "proposal file", lambda: nopf.NeuralProposal.load(self.proposal_file))

    def checkpoint(self, given):
        self._write(self.part, "nopf checkpoint", given)
        blank = Run(np.zeros(3), np.zeros((0, 4)), 0)
        expect(self.counts, "checkpoint", lambda: settled_base(self.part))
        expect(self.counts, "checkpoint", lambda: read_checkpoint(self.part, blank, self.settings))

    def cell(self, given):
        cell, stamp = given
        for file, content in [(self.cell_file, cell), (self.stamp_file, stamp)]:
            file.write_bytes(
                content if isinstance(content, bytes) else json.dumps(content).encode()
            )

        def read():
            results = Results(self.folder)
            results.made()
            results.read(CELL, settings_of(CELL))
            rows = results.rows(CELL.benchmark)
            if rows:
                table = tabulate(rows)
                for text in (table.markdown(True), table.csv(True), table.latex(True)):
                    if not text:
                        raise Wrong("an empty table")
                json.dumps(table.numbers(), allow_nan=False)

        expect(self.counts, "results folder", read)

    def _files(self, file):
        return st.one_of(
            damaged(self.whole[file]), crafted(*self.parts[file]), crafted(*self.parts[file])
        )

    def kinds(self):
        deep = [text.encode() for text in (DEEP, '{"row": ' + DEEP + "}", '{"nopf": ' + DEEP + "}")]
        cell, stamp = (
            st.one_of(
                changed(whole),
                changed(whole),
                damaged(json.dumps(whole).encode()),
                st.sampled_from(deep),
            )
            for whole in (self.content, self.stamp)
        )
        return [
            (self._files(self.proposal_file), self.proposal, 2),
            (self._files(self.part), self.checkpoint, 1.5),
            (
                st.one_of(
                    st.tuples(cell, st.just(self.stamp)), st.tuples(st.just(self.content), stamp)
                ),
                self.cell,
                3,
            ),
        ]

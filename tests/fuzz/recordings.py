"""Recordings that are damaged, of other columns, of odd numbers: as a file, or as a live stream."""

import gzip
import io
import json

import numpy as np
from hypothesis import strategies as st

import nopf
from nopf.recording import (
    Named,
    estimate_rows,
    filter_live,
    filter_recording,
    live_rows,
    oddities,
    read_recording,
)
from nopf.recording.proposal import imitation
from nopf.training.to_file import Series
from tests.fuzz.damage import DEEP, damaged
from tests.fuzz.outcome import Wrong, check_estimates, expect
from tests.recordings import GOOD, model

STEPS = 3  # of the recordings that are filtered as a whole, so that this is compiled once
ODD_CELLS = [
    "", " ", "nan", "NaN", "inf", "-inf", "1e38", "3e38", "1e39", "1e400", "-1e300", "1_0",
    "0x10", "١", "1,5", '"', "'1'", "true", "null", "1e-320", "-0", "+.5e1", "\u0000", "1\r",
    "1700000000.25", "2024-01-01T00:00:00Z", "1 2", "=1+1", "\ufeff1", "é",
]  # fmt: skip
CELLS = st.one_of(
    st.sampled_from(ODD_CELLS),
    st.just("9" * 400),
    st.floats(width=32).map(repr),
    st.integers(-5, 20).map(str),
)
NAMES = [
    "time",
    "speed",
    "gps",
    "odometer",
    "note",
    "t",
    "Timestamp",
    "",
    "gps ",
    '"gps"',
    "\ufeff",
]
TIMES = [["10.0", "10.5", "11.2"], ["10", "10", "10"], ["3", "2", "1"], ["1.7e9", "1.7e9", "1.7e9"]]
TIMES += [["1700000000.1", "1700000000.2", "1700000000.3"], ["0", "1e-9", "2e-9"]]
TIMES += [["-1e38", "0", "1e38"], ["nan", "1", "2"], ["1", "", "3"]]


@st.composite
def csv_text(draw):
    """Text like that of a recording: with odd names, cells, times, rows of another length."""
    names = ["time", "speed", "gps", "odometer"]
    if draw(st.integers(0, 3)) == 0:
        names = draw(st.lists(st.sampled_from(NAMES), max_size=6))
    times = draw(st.sampled_from(TIMES))
    rows = []
    for at in range(draw(st.sampled_from([STEPS, STEPS, STEPS, 0, 1]))):
        good = {"time": times[at], "speed": "1", "gps": "0.5", "odometer": "0.7"}
        row = [good.get(name, "1") for name in names]
        if draw(st.integers(0, 2)) == 0 and row:
            row[draw(st.integers(0, len(row) - 1))] = draw(CELLS)
        if draw(st.integers(0, 15)) == 0:
            row = draw(st.lists(CELLS, max_size=6))
        rows.append(row)
    between = draw(st.sampled_from([",", ",", ",", ";", "\t"]))
    end = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"]))
    return end.join(between.join(row) for row in [names, *rows]) + end


CSV = st.one_of(
    csv_text().map(str.encode),
    damaged(GOOD.encode()),
    csv_text().map(lambda text: text.encode("utf-16")),
    damaged(gzip.compress(GOOD.encode(), mtime=0)),
)

VALUES = st.one_of(
    st.floats(),
    st.sampled_from([None, True, "1", "", [], {}, [1.0], 10**400, 2**63, "nan", 1e39, -1]),
    st.integers(-3, 20),
)


@st.composite
def json_text(draw):
    """JSON lines like those of a live robot, some of them odd."""
    lines = []
    times = draw(st.sampled_from(TIMES))
    for at in range(draw(st.integers(1, STEPS))):
        try:
            time = float(times[at])
        except ValueError:
            time = None
        row = {"time": time, "speed": 1.0, "gps": 0.5, "odometer": 0.6}
        for _ in range(draw(st.integers(0, 2))):
            name = draw(st.sampled_from([*row, "t", "", "note"]))
            if draw(st.booleans()):
                row[name] = draw(VALUES)
            else:
                row.pop(name, None)
        line = json.dumps(row)
        odd = draw(st.integers(0, 12))
        if odd == 0:
            line = draw(st.sampled_from(['{"gps": ' + DEEP + "}", "[1]", "{", "{}", '"x"', "NaN"]))
        elif odd == 1:
            line = draw(damaged(line.encode())).decode("utf-8", "replace")
        lines.append(line)
    return "\n".join(lines) + "\n"


@st.composite
def parquet(draw):
    """A Parquet file of odd columns, or a damaged one."""
    import pyarrow
    import pyarrow.parquet

    columns = {
        "time": [10.0, 10.5, 11.2],
        "speed": [1.0, 1.0, 0.5],
        "gps": [0.5, None, 1.4],
        "odometer": [0.6, 1.1, None],
    }
    odd = [
        ["a", "b", None], [True, False, True], [1, 2, 3], [2**62, -(2**62), 0], [[1.0], [2.0], []],
        [None] * 3, [float("nan")] * 3, [float("inf"), 0.0, 1.0], [b"x", b"", b""],
        np.array(["2024-01-01", "2024-01-02", "NaT"], "datetime64[ns]"), [3.0, 2.0, 1.0],
        np.array([1, 2, 3], "timedelta64[s]"), np.array([0.5, 1, 2], np.float16),
    ]  # fmt: skip
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from([*columns, "t", "note"]))
        if draw(st.integers(0, 4)):
            columns[name] = draw(st.sampled_from(odd))
        else:
            columns.pop(name, None)
    buffer = io.BytesIO()
    table = pyarrow.table(columns)
    if draw(st.integers(0, 5)) == 0:
        table = table.slice(0, 0)
    pyarrow.parquet.write_table(table, buffer)
    return draw(damaged(buffer.getvalue())) if draw(st.booleans()) else buffer.getvalue()


COLUMNS = st.sampled_from(
    [Named()] * 6
    + [
        Named("gps"),
        Named("t"),
        Named(None, ["speed", "speed"]),
        Named(None, [], ["gps", "odometer"]),
        Named(None, None, ["gps"]),
        Named("note", ["time"], ["", "gps"]),
        Named("", [""], ["gps", "gps"]),
    ]
)


class Recordings:
    """Reads them and, where they can be read, filters them with a few particles."""

    def __init__(self, counts, folder):
        self.counts, self.model = counts, model()
        self.file = folder / "recording"
        self.filter = nopf.ParticleFilter(self.model, None, 16)
        self.rows = 0

    def _whole(self, kind, given):
        content, named = given
        self.file.write_bytes(content)

        def read():
            recording = read_recording(self.file, self.model, named)
            wide = (len(recording.observations), 2)
            if recording.observations.shape != wide or np.isinf(recording.observations).any():
                raise Wrong(f"read as {recording}")
            for message in oddities(self.model, recording):
                if "\n" in message:
                    raise Wrong(message)
            controls = recording.controls
            if len(recording.observations) == STEPS and controls.shape == (STEPS, 1):
                found = filter_recording(self.filter, recording, 0)
                check_estimates(estimate_rows(np.asarray(found.times), found), 2)
                found.warnings()
            if not np.isnan(recording.observations).all() and not isinstance(
                imitation(self.model, recording), Series
            ):
                raise Wrong("nothing to imitate")

        expect(self.counts, kind, read)

    def csv(self, given):
        self._whole("recording, CSV", given)

    def parquet(self, given):
        self._whole("recording, Parquet", given)

    def live(self, given):
        """As JSON lines, or as CSV that comes line by line; with and without --skip-bad."""
        text, named, skips = given

        def read():
            skip = (lambda message: None) if skips else None
            rows, _ = live_rows("stream", io.StringIO(text), self.model, named, skip)
            for values in filter_live(self.filter, rows, 0, lambda message: None):
                check_estimates(values[None], 2)

        expect(self.counts, "recording, live stream", read)

    def kinds(self):
        """(strategy, what is done with an input, share of the inputs)."""
        text = st.one_of(json_text(), json_text(), csv_text())
        return [
            (st.tuples(CSV, COLUMNS), self.csv, 3),
            (st.tuples(parquet(), COLUMNS), self.parquet, 2),
            (st.tuples(text, COLUMNS, st.booleans()), self.live, 2),
        ]

"""The paper's benchmarks: one file each, with a `model` and a `benchmark`; and what runs them."""

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nopf.benchmarks.benchmark import Benchmark

NAMES = ("sensor-bias", "range-bearing", "range-only", "unordered-range")


class _Shelf(Mapping[str, "Benchmark"]):
    """The benchmarks by name. A model is built when it is first asked for."""

    def __getitem__(self, name: str) -> "Benchmark":
        if name not in NAMES:
            raise KeyError(name)
        return __getattr__(name.replace("-", "_")).benchmark

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


BENCHMARKS = _Shelf()


def __getattr__(name: str) -> Any:
    if name == "Benchmark":
        return importlib.import_module("nopf.benchmarks.benchmark").Benchmark
    if name.replace("_", "-") in NAMES:
        return importlib.import_module(f"nopf.benchmarks.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The paper's benchmarks: one file each, with a `model` and a `benchmark`."""

from nopf.benchmarks import sensor_bias as sensor_bias
from nopf.benchmarks.benchmark import Benchmark as Benchmark

"""The paper's benchmarks: one file each, with a `model` and a `benchmark`; and what runs them."""

from nopf.benchmarks import range_bearing as range_bearing
from nopf.benchmarks import range_only as range_only
from nopf.benchmarks import sensor_bias as sensor_bias
from nopf.benchmarks import unordered_range as unordered_range
from nopf.benchmarks.benchmark import Benchmark as Benchmark

BENCHMARKS = {
    module.benchmark.name: module.benchmark
    for module in (sensor_bias, range_bearing, range_only, unordered_range)
}

"""The paper's benchmarks by name."""

from nopf.benchmarks import range_bearing, range_only, sensor_bias, unordered_range

BENCHMARKS = {
    module.benchmark.name: module.benchmark
    for module in (sensor_bias, range_bearing, range_only, unordered_range)
}

"""The filters by their short names, set up for a benchmark as the paper does."""

from collections.abc import Callable

from nopf.benchmarks.benchmark import Benchmark
from nopf.filters import (
    AuxiliaryFilter,
    EnsembleKalmanFilter,
    Filter,
    KalmanFilter,
    ParticleFilter,
)
from nopf.proposals import (
    InnerSamplingProposal,
    LinearisedProposal,
    NeuralProposal,
    NudgedProposal,
    OptimalProposal,
    UnscentedProposal,
)

FILTERS: dict[str, Callable[[Benchmark, int], Filter]] = {
    "kf": lambda b, n: KalmanFilter(b.model, n),
    "enkf": lambda b, n: EnsembleKalmanFilter(b.model, n),
    "bpf": lambda b, n: ParticleFilter(b.model, None, n),
    "apf": lambda b, n: AuxiliaryFilter(b.model, None, n),
    "upf": lambda b, n: ParticleFilter(b.model, UnscentedProposal(b.stand_in_noise), n),
    "nupf": lambda b, n: ParticleFilter(b.model, NudgedProposal(n, b.eta), n),
    "ispf": lambda b, n: ParticleFilter(b.model, InnerSamplingProposal(), n),
    "opf": lambda b, n: ParticleFilter(b.model, OptimalProposal(), n),
    "lpf": lambda b, n: ParticleFilter(b.model, LinearisedProposal(), n),
}


LEARNED = ("nopf", "nopf-paper")  # the default recipe, and the published one
NAMES = (*FILTERS, *LEARNED)


def make_filter(
    name: str,
    benchmark: Benchmark,
    particles: int | None = None,
    proposal: NeuralProposal | None = None,
) -> Filter:
    """A filter by its short name.

    Args:
        name: one of `NAMES`.
        benchmark: what to set it up for.
        particles: how many; the paper's number if left out.
        proposal: the trained one, for the filters that use one.

    Raises:
        ValueError: if the name is unknown, or if the filter does not fit the benchmark's model.
    """
    if name not in NAMES:
        raise ValueError(f"filter: expected one of {', '.join(NAMES)}, got {name!r}")
    count = benchmark.particles if particles is None else particles
    if name not in LEARNED:
        return FILTERS[name](benchmark, count)
    if proposal is None:
        raise ValueError(f"filter: {name} needs a trained proposal; train one with nopf.train")
    return ParticleFilter(benchmark.model, proposal, count)

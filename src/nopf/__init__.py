"""nopf: particle filters that learn where to put their particles.

You write the state-space model that you know; nopf simulates it, filters data with it, and says how
far to trust the estimate:

    import jax
    import jax.numpy as jnp
    import nopf

    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0, 1.0], [1.0, 0.5]),
        transition=lambda x, step: jnp.stack([x[0] + step.dt * x[1], x[1]]),
        process_noise=[0.05, 0.1],
        observation=lambda x, step: jnp.stack([jnp.hypot(x[0], 3.0)]),
        observation_noise=[0.1],
        state_names=("position", "velocity"),
        dt=0.1,
    )
    truth = nopf.simulate(model, 100, jax.random.key(0))
    flt = nopf.ParticleFilter(model, nopf.LinearisedProposal(), particles=1000)
    posterior = flt.run(truth.observations, key=jax.random.key(1))
    print(posterior.mean[-1], posterior.std[-1], posterior.log_evidence)
    print(posterior.warnings())  # empty: nothing is wrong

`nopf.train(model, horizon, key)` learns a proposal for it. The names below are all there is;
the command `nopf --help` does the same from a shell.
"""

import sys
from types import ModuleType
from typing import Any

import lazy_loader

# What there is stands in __init__.pyi. A part is imported when it is first asked for, so that the
# command can answer before JAX is there.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # A module that is imported does not take the place of the function of its name: simulate.
        if not (isinstance(value, ModuleType) and name in __all__ and name not in ROOMS):
            super().__setattr__(name, value)


ROOMS = ("benchmarks", "metrics")
sys.modules[__name__].__class__ = _Package

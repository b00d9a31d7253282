"""Benchmark 1: a robot on a line whose velocity sensor has a drifting bias. Linear and Gaussian."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nopf.benchmarks.benchmark import Benchmark
from nopf.catalogue import PAPER
from nopf.gaussian import Gaussian
from nopf.model import StateSpaceModel
from nopf.steps import Step


def transition(x: Float[Array, "3"], step: Step) -> Float[Array, "3"]:
    position, velocity, bias = x
    return jnp.stack([position + step.dt * velocity, velocity, bias])


def observation(x: Float[Array, "3"], step: Step) -> Float[Array, "2"]:
    position, velocity, bias = x
    return jnp.stack([position, velocity + bias])


model = StateSpaceModel(
    prior=Gaussian([0.8, 0.2, -0.1], np.sqrt([0.5, 0.5, 0.5])),
    transition=transition,
    process_noise=[0.1, 0.1, 0.1],
    observation=observation,
    observation_noise=[0.1, 0.1],
    state_names=("position", "velocity", "bias"),
    dt=0.1,
)

benchmark = Benchmark(
    name="sensor-bias",
    title="Linear system with biased sensors",
    model=model,
    horizon=59,
    particles=2000,
    initial_state=(1.0, 0.0, 0.0),
    tuning=dataclasses.replace(PAPER, eta=1e-2),
    plane=("velocity", "bias"),
)

"""A model with controls, and a recording for it."""

MODEL = """
import jax.numpy as jnp, nopf
model = nopf.StateSpaceModel(
    prior=nopf.Gaussian([0.0, 0.0], [1.0, 1.0]),
    transition=lambda x, step: jnp.stack([x[0] + step.dt * step.control[0], 0.9 * x[1]]),
    process_noise=lambda step: jnp.sqrt(step.dt) * jnp.array([0.3, 0.3]),
    observation=lambda x, step: jnp.stack([x[0], x[0] + x[1]]), observation_noise=[0.2, 0.2],
    state_names=("place", "bias"), observation_names=("gps", "odometer"),
    control_names=("speed",), dt=0.5)
def controls(steps):
    return jnp.ones((steps, 1))
"""
GOOD = "time,speed,gps,odometer,note\n10.0,1,0.5,0.6,a\n10.5,1,,1.1,b\n11.2,0.5,1.4,,c\n"


def model():
    found = {}
    exec(MODEL, found)
    return found["model"]

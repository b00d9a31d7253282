"""Training of neural proposals on simulated data."""

from nopf.training.adaptation import adapt as adapt
from nopf.training.run import TrainingInterrupted as TrainingInterrupted
from nopf.training.trainer import train as train

"""Training of neural proposals on simulated data."""

from nopf.training.trainer import TrainingInterrupted as TrainingInterrupted
from nopf.training.trainer import train as train

"""What looks as if a recording and its model did not mean the same."""

import numpy as np

import nopf
from nopf.recording import Recording, oddities
from tests import recordings


def test_units_that_differ_are_noticed():
    model = recordings.model()

    def said(unit=1.0, gps=(0.0, 0.1, 0.2, 0.3)):
        times = unit * np.array([10.0, 10.5, 11.2, 11.7])
        return oddities(model, Recording(np.stack([gps, np.zeros(4)], axis=1), times, None))

    assert said() == []
    assert said(1000.0)[0].startswith("rows are about 500 apart, and dt of the model is 0.5: do")
    assert "observation_angles=('gps',)" in said(gps=[3.0, 3.1, -3.1, -3.0])[0]
    angular = nopf.StateSpaceModel(
        prior=model.prior,
        transition=lambda x, step: x,
        process_noise=[1.0, 1.0],
        observation=model.observation,
        observation_noise=[1.0, 1.0],
        observation_names=("compass", "other"),
        observation_angles=("compass",),
    )
    degrees = Recording(np.array([[350.0, 0], [355, 0], [2, 0]]), None, None)
    assert oddities(angular, degrees) == ["compass is an angle, but goes to 355: radians?"]

"""The catalogue: every filter once, and made as it says."""

import dataclasses

import jax
import numpy as np
import pytest

import nopf
from nopf import catalogue
from nopf.catalogue import CATALOGUE, LEARNED, NAMES, Tuning, make_filter
from tests import models


def test_what_filters_are_told_apart_by_is_their_own():
    for field in ("name", "label", "colour"):
        assert len({getattr(listing, field) for listing in CATALOGUE.values()}) == len(NAMES)
    assert LEARNED == ("nopf", "anopf", "nopf-paper", "mnopf")


@pytest.mark.parametrize("name", ["alpf", "anopf"])
def test_filters_that_look_ahead_are_those_with_the_same_proposal(name):
    model = models.linear()
    recipe = nopf.Recipe.fast(base="skeleton", steps=0)
    learned = nopf.train(model, 3, jax.random.key(0), recipe=recipe)
    proposal = {"alpf": nopf.LinearisedProposal(), "anopf": learned}[name]
    ys = nopf.simulate(model, 3, jax.random.key(1)).observations
    made, direct = (
        flt.run(ys, key=jax.random.key(2))
        for flt in (
            make_filter(name, model, 50, proposal=learned),
            nopf.AuxiliaryFilter(model, proposal, 50),
        )
    )
    np.testing.assert_array_equal(made.mean, direct.mean)


def test_tuning_reaches_the_filter_that_it_is_for():
    flt = make_filter("nupf", models.linear(), 10, tuning=Tuning(eta=0.3))
    assert flt.proposal.eta == 0.3
    touched = {
        field.name: [
            name
            for name, listing in CATALOGUE.items()
            if field.name in listing.settings(catalogue.USUAL)
        ]
        for field in dataclasses.fields(Tuning)
    }
    assert touched == {"eta": ["nupf"], "stand_in_noise": ["upf"], "ancestor_share": ["apf"]}


def test_filters_that_cannot_be_made_say_why():
    with pytest.raises(ValueError, match=r"filter: expected one of kf, enkf, .* got 'foo'"):
        make_filter("foo", models.linear(), 10)
    for name in LEARNED:
        with pytest.raises(ValueError, match=f"{name} needs a trained proposal"):
            make_filter(name, models.linear(), 10)
